"""Processes whose threads are greenlets."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
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
from tests.servers.zookeeper import fresh_zookeeper
from tests.support.waiting import PATIENCE, eventually
from weblock._platform import threads

TOP = Path(__file__).parents[2]

HERE = f"""
from gevent import monkey; monkey.patch_all()
import os, signal, sys, threading, time, gevent
from tests.support.renewals import deadlines, renew_often
from weblock import ConfigurationError, LeaseLost, Locks
PATIENCE = {PATIENCE}
without_yielding = monkey.get_original("time", "sleep")
TTL = 2 * PATIENCE
renew_often()
given = sys.argv[1:]
def opened(**options):
    url = given[0] if len(given) == 1 else given
    return Locks.from_url(url, **{{"ttl": TTL, "wait": PATIENCE, **options}})
def eventually(condition):
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, "what should have happened has not"
        time.sleep(0.002)
def yields(lease):
    "Lets other greenlets run until the lease has been renewed more than once."
    for _ in range(3):
        before = deadlines(lease)
        eventually(lambda: deadlines(lease) != before)
        lease.check()
"""
"""The beginning of what runs in a process of its own, which gevent patches before all else."""

SERIALIZES = """
inside, fences = [], []
def section(name):
    with locks.hold("key") as lease:
        inside.append(name)
        assert inside == [name], inside
        yields(lease)
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

BESIDE_A_LOOP = """
import asyncio
from contextlib import ExitStack
from weblock import AlreadyHeld, AsyncLocks
locks, woken, over = opened(), [], []
def request(_number):
    with locks.hold("key"):
        try:
            locks.acquire("key")
            raise AssertionError("it waited for itself")
        except AlreadyHeld:
            time.sleep(0.01)
async def view():
    async with AsyncLocks.from_url(given[0] if len(given) == 1 else given, wait=PATIENCE) as aio:
        lease = await aio.acquire("asyncs", wait=PATIENCE)
        woken.append(lease.fence)
        await lease.release()
        while not over:
            await asyncio.sleep(0.01)
with ExitStack() as stack:
    stack.callback(locks.close)
    held = locks.acquire("asyncs", ttl=TTL)
    asynchronous = gevent.spawn(lambda: asyncio.run(view()))
    eventually(lambda: (info := locks.inspect("asyncs")) and info.waiters)
    held.release()  # Its loop runs in another greenlet, and is woken.
    eventually(lambda: woken)
    gevent.joinall([gevent.spawn(request, number) for number in range(4)], raise_error=True)
    over.append(True)
    asynchronous.get()
"""

COMPUTES = """
told = []
with opened(ttl=1) as locks:
    lease = locks.acquire("key")
    lease.on_lost(lambda: told.append("lost"))
    while lease.remaining():
        without_yielding(0.01)
    try:
        lease.check()
        raise AssertionError("it is not held")
    except LeaseLost as loss:
        assert loss.reason == "expired", loss.reason
    eventually(lambda: told == ["lost"])
    try:
        lease.release()
        raise AssertionError("it was lost")
    except LeaseLost:
        pass
    with locks.hold("key") as again:
        assert again.fence > lease.fence
"""

REJECTS = """
import warnings
def rejected(call, *arguments):
    try:
        gevent.get_hub().threadpool.apply(call, arguments)
    except ConfigurationError as error:
        return "threadpool" in str(error)
with opened() as locks:
    with locks.hold("key") as lease:
        calls = (opened,), (locks.acquire, "other"), (locks.inspect, "key"), (lease.release,)
        with warnings.catch_warnings(record=True) as warned:
            for call, *arguments in calls:
                assert rejected(call, *arguments), call
        assert not warned, warned[0]
        gevent.get_hub().threadpool.apply(without_yielding, (0.1,))  # Which is how to compute.
        assert gevent.get_hub().threadpool.apply(lease.remaining) > 0
        yields(lease)
    with locks.hold("key", "other"):
        pass
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
                yields(own)
            status = 0
        finally:
            os._exit(status)
    yields(lease)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    lease.release()
"""

COLLECTS = """
import greenlet
from tests.support.collecting import collect
switches = []
with opened() as locks:
    for _ in range(2):
        lease = locks.acquire("key")
        greenlet.settrace(lambda *event: switches.append(event))
        collect(lease.release)
        greenlet.settrace(None)
        assert not switches, switches
        with locks.hold("key"):
            pass
        assert not lease.held
"""

HANGS = """
server = int(given.pop())
lease = opened().acquire("key")
os.kill(server, signal.SIGSTOP)
time.sleep(1)  # By now the keeper waits for the server.
"""


def done_by(script: str, *arguments: str) -> str:
    """Runs a script in a process of its own, which ends as it should; returns what it has logged."""
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
    return done.stderr


@pytest.fixture(
    params=["memory", "file", "redis", "quorum", "memcached", "postgresql", "zookeeper"]
)
def urls(request: pytest.FixtureRequest, tmp_path: Path) -> list[str]:
    if request.param == "quorum":
        return fresh_quorum(3)
    of_one_server = {
        "memory": lambda: "memory://",
        "file": lambda: f"file://{tmp_path}/locks?allow_container=true",
        "redis": fresh_url,
        "memcached": fresh_memcached,
        "postgresql": fresh_postgresql,
        "zookeeper": fresh_zookeeper,
    }
    return [of_one_server[request.param]()]


OF_EACH_KIND = pytest.mark.parametrize("urls", ["memory", "file", "redis"], indirect=True)
"""For what all engines share."""


def test_greenlets_renew_hand_over_tell_of_losses_and_leave_nothing_open(urls: list[str]) -> None:
    """Under gevent, holders that let other greenlets run keep their leases, and hand them over.

    A loss reaches ``on_lost`` in the holder's thread. Locks that are closed leave nothing open. One
    warning names the engine and the remedy.
    """
    log = done_by(SERIALIZES + COMES_AND_GOES + LOSES, *urls)
    assert log.count("gevent has replaced this process's threads by greenlets") == 1
    assert "gevent.sleep(0)" in log


def test_a_greenlet_waits_beside_the_event_loop_of_another(urls: list[str]) -> None:
    """Of four greenlets that want a key while an event loop runs in a fifth, each gets it in turn."""
    done_by(BESIDE_A_LOOP, *urls)


@OF_EACH_KIND
def test_who_computes_for_longer_than_the_ttl_loses_the_lease_and_is_told(urls: list[str]) -> None:
    """A holder that lets no greenlet run gets ``LeaseLost``, and the key can be acquired again."""
    done_by(COMPUTES, *urls)


@OF_EACH_KIND
def test_a_call_from_a_thread_of_the_threadpool_is_rejected(urls: list[str]) -> None:
    """It says what to do instead, and harms no lease. What costs no I/O works there."""
    done_by(REJECTS, *urls)


def test_a_lease_that_is_collected_is_released_without_a_switch_of_greenlets(
    urls: list[str],
) -> None:
    """No other greenlet runs while the garbage collector ends a lease, whatever its greenlet is doing."""
    done_by(COLLECTS, *urls)


@pytest.mark.parametrize("deployment", [SentinelDeployment, Cluster])
def test_greenlets_find_their_servers(deployment: type[SentinelDeployment | Cluster]) -> None:
    """Where servers have to be looked up, leases are renewed too, and nothing stays open."""
    with deployment() as servers:
        done_by(SERIALIZES + COMES_AND_GOES, servers.url(recovery="off"))


def test_forked_children_renew_their_own_leases(urls: list[str]) -> None:
    """After a fork both processes keep their leases."""
    done_by(FORKS, *urls)


def test_a_process_may_end_while_its_keeper_waits_for_a_server() -> None:
    """A process ends as it should while its keeper waits for a server that hangs."""
    with Server() as server:
        try:
            done_by(HANGS, server.url(recovery="off"), str(server.pid))
        finally:
            os.kill(server.pid, signal.SIGCONT)


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
            monkey.get_original("time", "sleep")(0.01)  # It computes,
            time.sleep(0)  # and yields.
        assert deadlines(lease) > first, "it was not renewed"
    start_response("200 OK", [])
    return [b"kept"]
"""


def test_a_gevent_worker_of_gunicorn_computes_and_yields_under_a_lock(tmp_path: Path) -> None:
    """``gunicorn -k gevent`` renews the leases of handlers that yield, and says that they have to."""
    pytest.importorskip("gevent", reason="gevent is not installed here")
    pytest.importorskip("gunicorn", reason="gunicorn is not installed here")
    url = f"file://{tmp_path}/locks?allow_container=true"
    (tmp_path / "computes.py").write_text(APPLICATION.format(url=url, PATIENCE=PATIENCE))
    port = free_port()
    command = [sys.executable, "-m", "gunicorn", "-k", "gevent", "--workers=2", "--timeout=100"]
    command += [
        "--no-control-socket",
        "--graceful-timeout=1",
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
    assert "renewed only while" in (tmp_path / "log").read_text()


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
    assert threads.patched_by() is None
    monkeypatch.setitem(sys.modules, module, SimpleNamespace(**{function: lambda name: True}))
    assert threads.patched_by() == library
