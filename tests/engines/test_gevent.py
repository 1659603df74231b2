"""Processes whose threads are greenlets."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.servers import (
    Cluster,
    SentinelDeployment,
    Server,
    fresh_memcached,
    fresh_quorum,
    fresh_url,
)
from tests.servers.ports import free_port
from tests.servers.postgres import fresh_postgresql
from tests.support.waiting import PATIENCE, eventually
from weblock._core.ports import Switchboard
from weblock._platform import greenlets
from weblock.stores.redis import connections
from weblock.stores.redis.nodes import OneNode
from weblock.stores.redis.settings import Address, parse

TOP = Path(__file__).parents[2]

HERE = f"""
from gevent import monkey; monkey.patch_all()
import os, signal, sys, threading, time, gevent
from queue import Empty
from tests.support.renewals import deadlines, renew_often
from weblock import LeaseLost, Locks
PATIENCE = {PATIENCE}
without_yielding = monkey.get_original("time", "sleep")
TTL = 2 * PATIENCE
renew_often()
given = sys.argv[1:]
def opened(**options):
    url = given[0] if len(given) == 1 else given
    return Locks.from_url(url, **{{"ttl": TTL, "wait": PATIENCE, **options}})
def compute(lease):
    "Lets no other greenlet run until the lease has been renewed more than once."
    for _ in range(3):
        before, end = deadlines(lease), time.monotonic() + PATIENCE
        while deadlines(lease) == before:
            assert time.monotonic() < end, "it is not renewed"
            lease.check()
            without_yielding(0.01)
def eventually(condition):
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, "what should have happened has not"
        time.sleep(0.002)
"""
"""The beginning of what runs in a process of its own, which gevent patches before all else."""

SERIALIZES = """
inside, fences = [], []
def section(name):
    with locks.hold("key") as lease:
        inside.append(name)
        assert inside == [name], inside
        compute(lease)
        time.sleep(0.01)  # The others run, and may not come in.
        assert inside == [name], inside
        inside.remove(name)
        fences.append(lease.fence)
with opened() as locks:
    gevent.joinall([gevent.spawn(section, name) for name in "ab"], raise_error=True)
assert len(fences) == 2 and fences == sorted(set(fences)), fences
"""

LOSES = """
home, told = gevent.get_hub(), []
locks = opened()
for number in (1, 2):
    lease = locks.acquire("key")
    lease.on_lost(lambda: told.append(gevent.get_hub() is home))
    assert locks.force_release("key")
    eventually(lambda: told == number * [True])
    try:
        lease.check()
        raise AssertionError("it is not held")
    except LeaseLost:
        pass
last = locks.acquire("key")  # Held until the process ends.
"""

COMES_AND_GOES = """
def descriptors():
    return len(os.listdir("/dev/fd"))
counts = []
for _ in range(6):
    with opened(ttl=10) as locks, locks.hold("key", "other"):
        pass
    counts.append(descriptors())
# A server may just be asked where others are, and what was opened for good may have come late.
eventually(lambda: descriptors() <= counts[1] + 2)
"""

FORKS = """
with opened() as locks:
    lease = locks.acquire("parents")
    child = os.fork()
    if child == 0:
        # gevent reports the copy of any thread that ends here: threading does not know it after a fork.
        gevent.get_hub().NOT_ERROR += (KeyError,)
        status = 1
        try:
            with locks.hold("childs") as own:
                compute(own)
            status = 0
        finally:
            os._exit(status)
    compute(lease)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    lease.release()
"""

RINGS = """
from weblock._platform.greenlets import queue_class
queue, heard = queue_class()(), []
start = monkey.get_original("_thread", "start_new_thread")
def put(name):
    for number in range(1000):
        queue.put((name, number))
for name in range(4):
    start(put, (name,))
for name in range(4, 6):
    gevent.spawn(put, name)
while len(heard) < 6000:
    heard.append(queue.get(timeout=PATIENCE))
for name in range(6):
    assert [number for who, number in heard if who == name] == list(range(1000))
for timeout in (0, 0.001):
    try:
        raise AssertionError(queue.get(timeout=timeout))
    except Empty:
        pass
"""

HANGS = """
server = int(given.pop())
lease = opened().acquire("key")
os.kill(server, signal.SIGSTOP)
time.sleep(1)  # By now the keeper waits for the server.
"""


def done_by(script: str, *arguments: str) -> None:
    """Runs a script in a process of its own, which says nothing of gevent and ends as it should."""
    pytest.importorskip("gevent", reason="gevent is not installed here")
    command = [sys.executable, "-c", HERE + script + "print('well')"]
    done = subprocess.run(
        [*command, *arguments],
        cwd=TOP,
        capture_output=True,
        text=True,
        timeout=3 * PATIENCE,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "well\n"), done.stderr
    assert "gevent" not in done.stderr


@pytest.fixture(params=["memory", "file", "redis", "quorum", "memcached", "postgresql"])
def urls(request: pytest.FixtureRequest, tmp_path: Path) -> list[str]:
    """An engine for which the keeper is a real thread."""
    match request.param:
        case "memory":
            return ["memory://"]
        case "file":
            return [f"file://{tmp_path}/locks?allow_container=true"]
        case "redis":
            return [fresh_url()]
        case "memcached":
            return [fresh_memcached()]
        case "postgresql":
            return [fresh_postgresql()]
    return fresh_quorum(3)


def test_a_real_thread_renews_tells_of_losses_and_leaves_nothing_open(urls: list[str]) -> None:
    """Under gevent, holders that let no greenlet run keep their leases, and hand them over.

    A loss reaches ``on_lost`` in the holder's thread. Locks that are closed leave nothing open.
    """
    done_by(SERIALIZES + COMES_AND_GOES + LOSES, *urls)


@pytest.mark.parametrize("deployment", [SentinelDeployment, Cluster])
def test_a_real_thread_finds_its_servers_by_itself(
    deployment: type[SentinelDeployment | Cluster],
) -> None:
    """Where servers have to be looked up, a holder that computes keeps its lease, and nothing stays open."""
    with deployment() as servers:
        done_by(SERIALIZES + COMES_AND_GOES, servers.url(recovery="off"))


def test_forked_children_renew_by_a_real_thread_of_their_own(urls: list[str]) -> None:
    """After a fork both processes keep their leases while they compute."""
    done_by(FORKS, *urls)


class Told(OneNode):
    """The servers, as one thread knows them, and what it is told of them."""

    def __init__(self, on_change: Callable[[], object]) -> None:
        super().__init__(Address("127.0.0.1", 1))
        self.on_change = on_change
        self.told: list[str] = []

    def doubt(self, address: Address | None = None, error: Exception | None = None) -> None:
        self.told.append("doubt")

    def refresh(self) -> None:
        self.told.append("refresh")


def test_callers_that_only_wait_follow_what_the_real_thread_finds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """When the keeper's thread finds other servers, the callers' greenlets look for them, too."""
    made: list[Told] = []
    at_home: list[Callable[[], object]] = []

    def nodes(_settings: object, _ask: object, on_change: Callable[[], object]) -> Told:
        made.append(Told(on_change))
        return made[-1]

    monkeypatch.setattr(connections, "SentinelNodes", nodes)
    monkeypatch.setattr(connections, "LONGEST_PAUSE", 0.0)
    monkeypatch.setattr(connections, "do_at_home", at_home.append)
    settings = parse("redis+sentinel://127.0.0.1:1/main", {})
    of_process = connections.Connections(settings, Switchboard())
    of_process.store(suspends=False)
    monkeypatch.setattr(connections, "real_thread_here", object)
    of_process.store(suspends=False)
    callers, keepers = made
    keepers.on_change()
    (work,) = at_home
    work()
    assert (callers.told, keepers.told) == (["doubt", "refresh"], [])


def test_a_process_may_end_while_its_keeper_waits_for_a_server() -> None:
    """A process ends as it should while its real thread waits for a server that hangs."""
    with Server() as server:
        try:
            done_by(HANGS, server.url(recovery="off"), str(server.pid))
        finally:
            os.kill(server.pid, signal.SIGCONT)


def test_any_thread_may_put_into_a_queue_of_greenlets() -> None:
    """Real threads and greenlets put; the one that gets misses nothing, and gets it in order."""
    done_by(RINGS)


APPLICATION = """
import time
from gevent import monkey
from tests.support.renewals import deadlines, renew_often
from weblock import Locks
locks = Locks.from_url({url!r}, ttl={PATIENCE})
renew_often()
def application(environ, start_response):
    assert monkey.is_module_patched("threading")
    with locks.hold("key") as lease:
        first, end = deadlines(lease), time.monotonic() + {PATIENCE}
        while deadlines(lease) == first and time.monotonic() < end:
            lease.check()
            monkey.get_original("time", "sleep")(0.01)
        assert deadlines(lease) > first, "it was not renewed"
    start_response("200 OK", [])
    return [b"kept"]
"""


def test_a_gevent_worker_of_gunicorn_computes_under_a_lock(tmp_path: Path) -> None:
    """``gunicorn -k gevent`` serves handlers that compute for more than a ttl, and keeps their leases."""
    pytest.importorskip("gevent", reason="gevent is not installed here")
    pytest.importorskip("gunicorn", reason="gunicorn is not installed here")
    url = f"file://{tmp_path}/locks?allow_container=true"
    (tmp_path / "computes.py").write_text(APPLICATION.format(url=url, PATIENCE=PATIENCE))
    port = free_port()
    command = [sys.executable, "-m", "gunicorn", "-k", "gevent", "--workers=2", "--timeout=100"]
    command += [
        "--no-control-socket",
        f"--bind=127.0.0.1:{port}",
        f"--pythonpath={tmp_path}",
        "computes:application",
    ]

    def answer() -> bytes:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=PATIENCE) as response:
            body: bytes = response.read()
            return body

    with (tmp_path / "log").open("wb") as log:
        site = subprocess.Popen(command, cwd=TOP, stdout=log, stderr=log)
    try:
        eventually(lambda: answer() == b"kept", despite=urllib.error.URLError)
    finally:
        site.terminate()
        assert site.wait(PATIENCE) == 0, (tmp_path / "log").read_text()
    assert "renewed only while" not in (tmp_path / "log").read_text()


@pytest.mark.parametrize(
    ("module", "function", "library"),
    [
        ("gevent.monkey", "is_module_patched", "gevent"),
        ("eventlet.patcher", "is_monkey_patched", "eventlet"),
    ],
)
def test_a_library_counts_only_if_it_has_patched(
    monkeypatch: pytest.MonkeyPatch, module: str, function: str, library: str
) -> None:
    """A library that is merely imported is not warned of; one that has replaced threads is."""
    monkeypatch.setitem(sys.modules, module, SimpleNamespace(**{function: lambda name: False}))
    assert greenlets.patched_by() is None
    monkeypatch.setitem(sys.modules, module, SimpleNamespace(**{function: lambda name: True}))
    assert greenlets.patched_by() == library


WARNED = """
import logging
said = []
logging.getLogger("weblock").addFilter(lambda record: said.append(record.getMessage()))
for _ in range(2):
    opened().close()
assert len(said) == 1 and "gevent has replaced" in said[0] and given[0].split("?")[0] in said[0], said
"""


def test_who_cannot_renew_in_a_real_thread_is_warned() -> None:
    """Where greenlets share the keeper's connections, one warning names the engine and the limit."""
    done_by(WARNED, "zookeeper://127.0.0.1:1/locks")
