"""A machine that can start no more threads: what needed one does without, and nothing is stuck."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from errno import EMFILE

import pytest
from redis import exceptions

from tests.servers import fresh_memcached
from weblock import AsyncLocks, ConfigurationError, EngineUnavailable
from weblock._core.ports import Switchboard, sent
from weblock._platform.threads import beside_loop
from weblock._runtime.runtimes import drive
from weblock.stores.memcached import open_engine as on_memcached
from weblock.stores.memcached.engine import THREADS
from weblock.stores.redis import asking
from weblock.stores.redis.aio import LoopLinks
from weblock.stores.redis.asking import Health, Lookup, Poll
from weblock.stores.redis.blocking import BlockingLinks
from weblock.stores.redis.calls import Layout
from weblock.stores.redis.link import Subscription
from weblock.stores.redis.settings import Address, parse
from weblock.stores.redis.topology import ClusterNodes
from weblock.stores.transport.failures import Unfit
from weblock.stores.transport.sending import in_this_thread
from weblock.stores.zookeeper import open_engine
from weblock.stores.zookeeper.session import Session

MASTER = Address("master", 1)

NONE_AT_ALL = pytest.mark.parametrize("no_threads", [""], indirect=True)


@pytest.fixture(params=["weblock"])
def no_threads(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Callable[[], None]:
    """No thread whose name begins like this can be started, until this is called."""
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name.startswith(request.param):
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    return lambda: monkeypatch.setattr(threading.Thread, "start", start)


def nodes() -> ClusterNodes:
    """A cluster with one master, to which nobody can connect."""

    def connect(_address: Address) -> object:
        raise LookupError("something unexpected")

    settings = parse("redis+cluster://master:1")
    nodes = ClusterNodes(
        settings,
        Layout(settings.prefix, settings.buckets),
        connect,  # type: ignore[arg-type]
        lambda: None,
    )
    nodes._homes = dict.fromkeys(range(settings.buckets), MASTER)
    return nodes


@pytest.mark.usefixtures("no_threads")
def test_a_master_that_no_thread_can_try_is_not_left_out() -> None:
    """Who needs it goes on asking it, since nothing else would find out that it answers again."""
    cluster = nodes()
    cluster.doubt(MASTER, exceptions.TimeoutError())
    assert cluster.address_of(0) == MASTER


def test_nobody_tries_a_master_of_a_closed_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    """The threads that did so end, and no other begins."""
    started: list[Callable[[], None]] = []
    monkeypatch.setattr(asking, "in_background", lambda work, _name: not started.append(work))
    monkeypatch.setattr(asking, "FIRST_KNOCK", 0.0)
    closed = nodes()
    closed.doubt(MASTER, exceptions.TimeoutError())
    closed.close()
    closed.doubt(MASTER, exceptions.TimeoutError())
    (knock,) = started
    knock()  # Without a connection, which would fail.


def test_a_master_is_left_out_only_while_a_thread_tries_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """However the thread ends, callers ask the master again."""
    monkeypatch.setattr(asking, "FIRST_KNOCK", 0.0)
    tried = nodes()
    tried._hung[MASTER] = exceptions.TimeoutError()
    with pytest.raises(LookupError):
        tried._health._knock_until_answered(MASTER)
    assert tried.address_of(0) == MASTER


@pytest.mark.usefixtures("no_threads")
def test_servers_are_asked_in_the_callers_thread() -> None:
    """All of them are, one after the other."""
    poll = Poll(lambda address: address.port)
    poll.ask([Address("a", 1), Address("b", 2)])
    poll.wait()
    assert sorted(poll.answers) == [1, 2]


class Clock:
    """Time that passes as the test says, and when somebody looked for the servers."""

    def __init__(self) -> None:
        self.time = 1000.0
        self.looked: list[float] = []
        self.lookup = Lookup(self._look, every=0.5, stale=1.0)

    def monotonic(self) -> float:
        return self.time

    def _look(self) -> bool:
        self.looked.append(round(self.time - 1000, 1))
        return False


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(asking, "time", clock)
    return clock


@pytest.mark.usefixtures("no_threads")
def test_callers_look_for_the_servers_by_themselves(clock: Clock) -> None:
    """As often as a thread would: what nobody has asked does not count as asked."""
    for _ in range(20):
        if not clock.lookup.ready():
            clock.lookup.refresh()
        clock.time += 0.1
    assert clock.looked == [0, 0.5, 1.0, 1.5]


@pytest.mark.usefixtures("no_threads")
async def test_a_loop_uses_what_is_known_until_it_is_stale(clock: Clock) -> None:
    """Its callers cannot look, which would stop it, and must not rely on what may be long over."""
    clock.lookup.refresh()
    ready = []
    for _ in range(12):
        ready.append(clock.lookup.ready())
        clock.time += 0.1
    assert ready == [True] * 10 + [False] * 2


@pytest.mark.usefixtures("no_threads")
def test_what_goes_on_side_by_side_goes_on_one_after_the_other() -> None:
    """What is to be asked of several servers at once is asked of all of them."""
    done: list[int] = []

    async def one(number: int) -> None:
        done.append(number)

    links = BlockingLinks(None, None, room=1, patience=0.0)  # type: ignore[arg-type]
    drive(links.together([one(number) for number in range(3)]))
    assert sorted(done) == [0, 1, 2]


@pytest.mark.usefixtures("no_threads")
def test_a_request_that_would_block_does_so_in_its_caller() -> None:
    """A quorum's server to which there is no connection yet is asked all the same."""
    done: list[str] = []

    async def connects() -> None:
        await sent(None, 0.0)
        done.append("connected")

    drive(in_this_thread([connects()], lambda: False))
    assert done == ["connected"]


@pytest.mark.usefixtures("no_threads")
def test_a_server_at_which_no_thread_can_knock_is_asked() -> None:
    """Nothing else would find out that it answers again."""
    health: Health[int] = Health(lambda _server: None)
    health.failed(0, ConnectionError(), sent=0.0)
    assert not health.failures


async def test_a_lookup_that_cannot_begin_keeps_nobody_waiting(
    no_threads: Callable[[], None],
) -> None:
    """Who comes when there are threads again begins anew."""
    links = LoopLinks(Subscription("", Switchboard(), bool), None, timeout=1.0)  # type: ignore[arg-type]
    for _ in range(2):
        with pytest.raises(Unfit, match="thread"):
            await links.aside(lambda: None)
    no_threads()
    looked = asyncio.Event()
    await links.aside(looked.set)
    assert looked.is_set()


@NONE_AT_ALL
@pytest.mark.parametrize("url", ["127.0.0.1:1/shop?create=true", "localhost:1/shop"])
async def test_connections_that_cannot_begin_are_an_outage_of_postgresql(
    url: str, no_threads: Callable[[], None]
) -> None:
    """Its table is looked for in a thread, and so are the names of hosts. The locks close here."""
    async with AsyncLocks.from_url(f"postgresql://{url}") as locks:
        with pytest.raises(EngineUnavailable, match="can't start new thread"):
            await locks.ping()
    with pytest.raises(ConfigurationError, match="is closed"):
        await locks.ping()
    no_threads()  # asyncio ends by one.


async def test_a_machine_without_threads_is_not_a_closed_memcached(
    no_threads: Callable[[], None],
) -> None:
    """What an event loop asks is asked in a thread; who cannot have one is told so."""
    engine, done = on_memcached(fresh_memcached()), []
    with pytest.raises(EngineUnavailable, match="no thread could be started"):
        await engine.ask_in_thread(lambda _client: done.append("given up"))
    no_threads()
    for _ in range(THREADS):  # One of them would have what was queued before.
        await engine.ask_in_thread(lambda _client: done.append("done"))
    assert done == ["done"] * THREADS
    engine.close()


@NONE_AT_ALL
async def test_what_is_done_on_the_loop_is_not_done_again(no_threads: Callable[[], None]) -> None:
    """The first thread that can be started later has nothing to make up for."""
    done: list[str] = []
    await beside_loop(lambda: done.append("closed"))
    no_threads()
    await asyncio.to_thread(done.append, "something else")
    await beside_loop(lambda: done.append("closed anew"))
    assert done == ["closed", "something else", "closed anew"]


@NONE_AT_ALL
def test_a_session_that_cannot_begin_is_an_outage_of_zookeeper(
    no_threads: Callable[[], None],
) -> None:
    """The next caller begins anew, and nothing is left of the first."""
    engine = open_engine("zookeeper://127.0.0.1:1/locks")
    with pytest.raises(EngineUnavailable, match="could not be started"):
        engine.session()
    no_threads()
    assert engine.session() is engine.session()
    engine.close()


def test_a_session_that_gets_no_descriptors_is_an_outage_of_zookeeper(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each attempt leaves no thread behind, and the next caller begins anew."""

    def none_left() -> None:
        raise OSError(EMFILE, "Too many open files")

    before = set(threading.enumerate())
    engine = open_engine("zookeeper://127.0.0.1:1/locks")
    with monkeypatch.context() as patch:
        patch.setattr(socket, "socketpair", none_left)
        with pytest.raises(EngineUnavailable, match=r"could not be started.*Too many open files"):
            engine.session()
    assert set(threading.enumerate()) <= before
    assert engine.session() is engine.session()
    engine.close()


def test_a_session_of_zookeeper_ends_in_the_callers_thread(
    no_threads: Callable[[], None],
) -> None:
    """Where no thread can do it, closing locks leaves none of kazoo's behind."""
    before = set(threading.enumerate())
    session = Session(open_engine("zookeeper://127.0.0.1:1/locks").settings)
    session.close()
    assert set(threading.enumerate()) <= before
    no_threads()


LAST = """
import sys, threading
from weblock._platform.threads import BackgroundThread

thread = BackgroundThread("waits", threading.Event().wait)
thread.start()

class Last:
    def __init__(self):
        self.itself = self

    def __del__(self, join=thread.join, say=print, ends=sys.is_finalizing):
        join()
        say(ends())

last = Last()
"""
"""Has the collector close something when all daemon threads have stopped, as a generator's locks."""


def test_nothing_waits_for_a_thread_while_the_interpreter_ends() -> None:
    """What is collected last does not keep the process from ending: its threads will never end."""
    assert subprocess.check_output([sys.executable, "-c", LAST], text=True) == "True\n"
