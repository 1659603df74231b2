from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from hashlib import sha256
from types import SimpleNamespace
from typing import Any

import pytest

from tests.servers import Memcached, fresh_memcached
from tests.support.waiting import eventually
from weblock import (
    AsyncLocks,
    ConfigurationError,
    EngineRecovering,
    EngineUnavailable,
    LeaseLost,
    Locks,
)
from weblock._core.ports import Pulse
from weblock._core.table import Claim, Gone, Held, Waiting
from weblock._runtime.runtimes import BlockingRuntime, drive
from weblock.stores.findings import refuse
from weblock.stores.memcached import open_engine, parse
from weblock.stores.memcached.engine import LONGEST_PAUSE, MemcachedEngine, Poller
from weblock.stores.memcached.items import ItemCells
from weblock.stores.memcached.server import Client, begin_generation, examine
from weblock.stores.transport.failures import Unfit

LONG = 60.0

SMALL = ("-m", "2", "-I", "512k")
"""Options of a server that is soon full."""


class Machine:
    """A process on a machine whose clock is set by hand."""

    def __init__(self, url: str, clock: float) -> None:
        self.engine = open_engine(url)
        runtime = BlockingRuntime()
        runtime.now = lambda: self.clock
        self.clock = clock
        self.store = self.engine.connect(runtime)

    def acquire(self, owner: str, ttl: float = 10, limit: int = 1) -> Any:
        claim = Claim(owner, self.store.process, ttl, owner, limit)
        return drive(self.store.acquire("key", claim, room=9)).answer

    def renew(self, *owners: str) -> list[Any]:
        replies: Any = drive(self.store.refresh([Pulse("key", owner, 10) for owner in owners]))
        return [reply.answer for reply in replies]

    def release(self, owner: str) -> Any:
        return drive(self.store.release("key", owner)).answer


class Overtaken:
    """A client whose answer to the first read comes late: another thread has gone on meanwhile."""

    def __init__(self, client: Client, other: Callable[[], object]) -> None:
        self._client = client
        self._other: Callable[[], object] | None = other

    def gets_many(self, names: list[str]) -> Any:
        found = self._client.gets_many(names)
        other, self._other = self._other, None
        if other:
            other()
        return found

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)


def test_a_thread_that_reads_before_the_recovery_begins_grants_nothing() -> None:
    """Another thread begins it between the read and what the reader makes of that."""
    with Memcached("-M") as server:
        engine = open_engine(server.url())
        cells = ItemCells(engine, BlockingRuntime())

        def read(client: Client) -> Any:
            begin_generation(client, f"{engine.settings.prefix}/generation")
            overtaken: Any = Overtaken(client, lambda: cells.read(client, ["k"]))
            return cells.read(overtaken, ["k"])

        assert engine.ask(read, first=False).recovering
        engine.close()


@pytest.fixture
def machine() -> Iterator[Callable[[float], Machine]]:
    """Machines that lock on one server, each with a clock of its own."""
    url = fresh_memcached()
    started: list[Machine] = []

    def start(clock: float) -> Machine:
        started.append(Machine(url, clock))
        return started[-1]

    yield start
    for each in started:
        each.engine.close()


class TestClocks:
    """No two machines agree on the time."""

    def test_what_others_write_starts_no_lease_anew(self, machine) -> None:
        """Waiters who come and go and look do not make the lease in front of them last longer."""
        holder, first, second = machine(5000.0), machine(0.0), machine(1e6)
        holder.acquire("holder")
        for _ in range(7):
            assert isinstance(first.acquire("first"), Waiting)
            assert isinstance(second.acquire("second"), Waiting)
            first.clock += 1.5
            second.clock += 1.5
        assert isinstance(first.acquire("first"), Held)

    def test_a_lease_learned_of_late(self, machine) -> None:
        """A waiter that looks too late for the lease it was handed does not believe that it holds."""
        holder, late, other = machine(5000.0), machine(0.0), machine(1e6)
        holder.acquire("holder")
        late.acquire("late")
        other.acquire("other")
        holder.release("holder")
        assert isinstance(other.acquire("other"), Waiting)
        other.clock += 1.6
        assert isinstance(other.acquire("other"), Held)
        assert not isinstance(late.acquire("late"), Held)

    def test_fences_go_on_where_the_wall_clock_went_back(self, machine, monkeypatch) -> None:
        """The next fence is larger also on a machine whose date is years behind."""
        one, other = machine(5000.0), machine(0.0)
        fence = one.acquire("one").fence
        one.release("one")
        monkeypatch.setattr(time, "time", lambda: 1.0)
        assert other.acquire("other").fence > fence


def test_those_who_wait_do_not_poll_busily() -> None:
    """Looks at a key that is held for long come to a few a second, however many wait in a process."""
    with Memcached("-M") as server:
        url = server.url(recovery="off")
        elsewhere = MemcachedEngine(open_engine(url).settings)
        with Locks(elsewhere) as holder, Locks.from_url(url) as waiters:
            lease = holder.acquire("key", ttl=LONG)
            tasks = [
                _in_thread(lambda: waiters.acquire("key", wait=None).release()) for _ in range(20)
            ]
            eventually(lambda: len(holder.inspect("key").waiters) == 20)
            poller, looks = waiters._engine.poller, []
            eventually(lambda: _pause(poller) >= LONGEST_PAUSE)
            plan, started = poller._plan, time.monotonic()
            poller._plan = lambda *looked: (looks.append(looked), plan(*looked))
            eventually(lambda: len(looks) >= 5)
            count, elapsed = len(looks), time.monotonic() - started
            assert count <= elapsed / (0.75 * LONGEST_PAUSE) + 2
            lease.release()
            for each in tasks:
                each.join(LONG)
            assert not any(each.is_alive() for each in tasks)


def _in_thread(work: Callable[[], Any]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def _pause(poller: Poller) -> float:
    watch = poller._watches.get("default:key")
    return watch.pause if watch else 0.0


class TestServers:
    def test_one_that_evicts_is_refused(self) -> None:
        """A server that may throw leases away is no place for them, unless that is asked for."""
        with Memcached() as server:
            refused = pytest.raises(EngineUnavailable, match=r"-M.*allow_eviction")
            with Locks.from_url(server.url()) as locks, refused:
                locks.acquire("key", wait=0)
            with Locks.from_url(server.url(allow_eviction="true", recovery="off")) as locks:
                locks.acquire("key", wait=0).release()

    def test_one_that_does_not_say_whether_it_evicts_is_refused(self) -> None:
        """Other servers with the same protocol may not report the setting."""
        silent: Any = SimpleNamespace(stats=lambda *_: {})
        with pytest.raises(Unfit, match="might evict"):
            refuse(examine(silent, parse("memcached://h")))

    def test_a_lease_that_is_thrown_away_is_told(self) -> None:
        """Where a server may evict, the former holder finds out when it asks, and the fence is larger."""
        with Memcached(*SMALL) as server:
            url = server.url(allow_eviction="true", recovery="off")
            with Locks.from_url(url) as holder, Locks(open_engine(url)) as other:
                lease = holder.acquire("key", ttl=LONG)
                for _ in _fill(server, _item_of("key"), 8000):
                    pass
                theirs = other.try_acquire("key")
                assert theirs
                assert theirs.fence > lease.fence
                with pytest.raises(LeaseLost):
                    lease.extend(1)

    def test_one_that_is_full_says_so(self) -> None:
        """One that does not evict answers with an error when it is full, and keeps what it has."""
        with Memcached("-M", *SMALL) as server:
            url = server.url(recovery="off")
            with Locks.from_url(url) as holder, Locks(open_engine(url)) as other:
                lease = holder.acquire("key", ttl=LONG)
                assert any(
                    b"out of memory" in each for each in _fill(server, _item_of("key"), 8000)
                )
                for ask in (partial(lease.extend, 1), partial(other.acquire, "another", wait=0)):
                    with pytest.raises(EngineUnavailable, match="raise -m"):
                        ask()
                assert lease.held
                assert other.try_acquire("key") is None

    def test_one_without_cas_is_refused(self) -> None:
        """Without cas nothing can be replaced safely."""
        refused = pytest.raises(EngineUnavailable, match="-C")
        with Memcached("-M", "-C") as server, Locks.from_url(server.url()) as locks, refused:
            locks.acquire("key", wait=0)

    @pytest.mark.parametrize("how", ["flush", "flush and reset", "restart"])
    def test_one_that_has_forgotten_grants_nothing_for_a_while(self, how: str) -> None:
        """After a restart or a flush nobody gets a key before its former holder is told, and fences go on."""
        with Memcached("-M") as server:
            url = server.url(recovery=3)
            # Without renewals, it is not the holder who notices what has happened.
            with (
                Locks.from_url(url, ttl=2, renew=False) as holder,
                Locks(open_engine(url), ttl=3) as other,
            ):
                lease = _as_soon_as_it_grants(holder)
                if "flush" in how:
                    assert server.ask(b"flush_all") == b"OK"
                    if "reset" in how:  # Then the server counts no flush, nor anything else.
                        assert server.ask(b"stats reset") == b"RESET"
                        # Writes that are refused count as commands, and change nothing.
                        for _ in range(100):
                            server.ask(b"add taken 0 0 1\r\n1")
                else:
                    server.kill()
                    server.start()
                assert 0 < _recovery(other).retry_after <= 3
                theirs = _as_soon_as_it_grants(other)
                with pytest.raises(LeaseLost):
                    lease.check()
                assert theirs.fence > lease.fence
                theirs.release()

    @pytest.mark.parametrize("answered", [True, False], ids=["answered", "unanswered"])
    def test_a_loss_between_reading_and_writing(self, *, answered: bool) -> None:
        """A key that was free before a flush is not granted after it, however often its caller asks."""
        with Memcached("-M") as server, Locks.from_url(server.url(recovery=3), ttl=3) as locks:
            _as_soon_as_it_grants(locks).release()  # Before it recovers, nothing is granted anyway.
            holder, late = (Machine(server.url(recovery=3), clock) for clock in (5000.0, 0.0))
            opened, clients = late.engine.pool._connect, []

            def watched() -> _Between:
                clients.append(_Between(opened()))
                return clients[-1]

            def happen() -> None:
                assert isinstance(holder.acquire("holder"), Held)
                assert server.ask(b"flush_all") == b"OK"

            late.engine.pool._connect = watched
            drive(late.store.look("key"))
            clients[-1].happen, clients[-1].answers = happen, answered
            with pytest.raises(EngineUnavailable) as error:
                late.acquire("late")
            assert isinstance(error.value, EngineRecovering) is answered
            with pytest.raises(EngineRecovering):
                late.acquire("late")
            for each in (holder, late):
                each.engine.close()

    def test_an_item_from_across_a_loss_is_nobodys(self) -> None:
        """What was written across a flush is no lease to anybody, and the key is granted after the recovery."""
        with Memcached("-M") as server, Locks.from_url(server.url(recovery="off")) as locks:
            fence = locks.acquire("key", ttl=LONG, wait=0).fence
            _written_before_a_loss(locks)
            assert locks.inspect("key") is None
            assert locks.list() == []
            lease = locks.acquire("key", wait=0)
            assert lease.fence > fence
            with Locks.from_url(server.url(recovery="off", allow_eviction="true")) as lenient:
                _written_before_a_loss(lenient)
                assert lenient.inspect("key").fence == lease.fence

    @pytest.mark.parametrize("first", ["off", "1"])
    def test_one_client_does_not_end_the_quarantine_of_another(self, first: str) -> None:
        """After a flush, the longest recovery of all clients counts for all, also for those without one."""
        with Memcached("-M") as server:
            sooner, later = server.url(recovery=first), server.url(recovery=600)
            with (
                Locks.from_url(sooner, ttl=1, wait=0) as one,
                Locks.from_url(later, wait=0) as other,
            ):
                server.ask(b"flush_all")
                if first == "off":
                    one.acquire("key").release()
                else:
                    with pytest.raises(EngineRecovering):
                        one.acquire("key")
                with pytest.raises(EngineRecovering) as error:
                    other.acquire("key")
                assert error.value.retry_after > 500
                with pytest.raises(EngineRecovering):
                    one.acquire("key")
                quiet = one._engine.ask(lambda client: client.get("weblock/recovering"))
                assert int(quiet) >= 590

    def test_a_lease_is_renewed_though_a_waiter_cannot_be_let_in(self) -> None:
        """While a server recovers, a place that becomes free stays free, and the other holders go on."""
        with Memcached("-M") as server:
            sooner, later = server.url(recovery="off"), server.url(recovery=600)
            here, other = Machine(sooner, 0.0), Machine(later, 0.0)
            for owner in ("first", "second", "waiter"):
                answer = here.acquire(owner, limit=2)
            assert isinstance(answer, Waiting)
            drive(other.store.look("key"))  # So that the recovery of the server is a long one.
            for here.clock in range(2, 12, 2):
                first, waiter = here.renew("first", "waiter")
                assert isinstance(first, Held)
            assert isinstance(waiter, Gone)
            with pytest.raises(EngineRecovering):
                here.acquire("waiter", limit=2)
            for each in (here, other):
                each.engine.close()

    def test_one_that_stands_still_does_not_stop_the_loop(self) -> None:
        """A server that does not answer is an error after ``timeout``, and the event loop goes on."""

        async def main() -> bool:
            async with AsyncLocks.from_url(server.url(recovery="off", timeout=0.3)) as locks:
                lease = await locks.acquire("key", wait=LONG)
                await lease.release()
                server.stop()
                asked = asyncio.create_task(locks.acquire("key", wait=0))
                beside = asyncio.Event()
                asyncio.get_running_loop().call_later(0.1, beside.set)
                with pytest.raises(EngineUnavailable, match="did not answer within"):
                    await asked
                server.cont()
                return beside.is_set()

        with Memcached("-M") as server:
            assert asyncio.run(main())

    def test_a_long_list_among_strangers(self) -> None:
        """Hundreds of keys are listed in full, out of a cache in which others have their own items."""
        with Memcached("-M") as server:
            server.ask(b"set stranger 0 0 2\r\nhi")
            with Locks.from_url(server.url(recovery="off")) as locks:
                names = [f"item:{number:03}" for number in range(600)]
                leases = [locks.acquire(name, ttl=LONG, wait=0) for name in names]
                assert [info.key for info in locks.list("item:")] == names
                assert all(lease.held for lease in leases)

    def test_a_queue_that_no_item_can_hold(self, machine) -> None:
        """Who does not fit into the item of a key is told what to do, and the others wait on."""
        long = machine(0.0)
        long.acquire("holder")

        def wait(number: int) -> Any:
            claim = Claim(str(number), long.store.process, LONG, "x" * 100_000)
            return drive(long.store.acquire("key", claim, room=99)).answer

        assert [type(wait(number)) for number in range(10)] == [Waiting] * 10
        with pytest.raises(EngineUnavailable, match="max_waiters"):
            wait(10)
        long.release("holder")
        assert isinstance(long.acquire("0"), Held)

    def test_a_note_that_is_kept_for_months(self) -> None:
        """What is done once for all is remembered beyond the 30 days that memcached counts in seconds."""
        with Memcached("-M") as server, Locks.from_url(server.url(recovery="off")) as locks:
            drive(locks._locker.store.mark("default:key", 90 * 86400.0))
            assert drive(locks._locker.store.marked("default:key"))
            drive(locks._locker.store.mark("default:key", 0))
            assert not drive(locks._locker.store.marked("default:key"))

    def test_what_is_not_ours_is_not_overwritten(self) -> None:
        """An item that another version wrote is an error that says what to do."""
        with Memcached("-M") as server, Locks.from_url(server.url(recovery="off")) as locks:
            lease = locks.acquire("key", ttl=LONG)
            assert lease.held
            server.ask(b"set " + _item_of("key") + b" 0 0 5\r\n[99]\n")
            with pytest.raises(ConfigurationError, match=r"format '\[99\]\\n'"):
                locks.inspect("key")
            assert server.ask(b"get " + _item_of("key")) == b"VALUE %s 0 5" % _item_of("key")

    def test_what_is_not_ours_spoils_nothing_else(self) -> None:
        """Leases are renewed, though an item that another version wrote is asked for along with them."""
        with Memcached("-M") as server, Locks.from_url(server.url(recovery="off")) as locks:
            lease = locks.acquire("fine", ttl=LONG)
            server.ask(b"set " + _item_of("spoilt") + b" 0 0 5\r\n[99]\n")
            owners = {"spoilt": "somebody", "fine": lease.owner}
            pulses = [Pulse(f"default:{key}", owner, LONG) for key, owner in owners.items()]
            spoilt, fine = drive(locks._locker.store.refresh(pulses))
            assert isinstance(spoilt, EngineUnavailable)
            assert isinstance(fine.answer, Held)

    def test_prefixes_are_worlds_of_their_own(self) -> None:
        """No prefix sees the keys of another, whatever it is called."""
        prefixes = ("a", "a:b", "a.mark", "a.done", "a-lock")
        with Memcached("-M") as server, contextlib.ExitStack() as stack:
            urls = [server.url(recovery="off", prefix=prefix) for prefix in prefixes]
            worlds = [stack.enter_context(Locks.from_url(url)) for url in urls]
            leases = [each.acquire("key", ttl=LONG, wait=0) for each in worlds]
            for each in worlds:
                drive(each._locker.store.mark("default:key", None))
            assert [len(each.list()) for each in worlds] == [1] * len(worlds)
            assert all(lease.held for lease in leases)


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("memcached://", "names no server"),
        ("memcached://h:0", "names no server"),
        ("memcached://h:99999", "names no server"),
        ("memcached://h/path", "names no server"),
        ("memcached://a..b", "names a server, and no host can have that name"),
        ("memcached://joe:secret@h", "no such login"),
        ("memcached://a,b", "several servers"),
        ("memcached://h?ttl=3", "no memcached option 'ttl'"),
        ("memcached://h?timeout=0", "timeout='0' must be seconds"),
        ("memcached://h?recovery=never", "recovery='never' must be 'safe', 'off'"),
        ("memcached://h?allow_eviction=perhaps", "must be true or false"),
        ("memcached://h?prefix=a%20b", "prefix='a b' must be"),
    ],
)
def test_a_url_that_cannot_work(url: str, told: str) -> None:
    """Each is refused at once, with what is wrong, and without its password."""
    with pytest.raises(ConfigurationError, match=told) as refused:
        Locks.from_url(url)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("memcached://h", "memcached://h:11211"),
        ("MEMCACHED://h:7/", "memcached://h:7"),
        ("memcached://[::1]:7?prefix=shop", "memcached://[::1]:7"),
    ],
)
def test_a_url_says_where_the_server_is(url: str, name: str) -> None:
    """Host and port are taken from the URL, the port may be left out."""
    assert open_engine(url).name == name


class _Between:
    """The driver's client: something happens between what it reads next and what it writes then."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.happen: Callable[[], None] | None = None
        self.answers = True

    def gets_many(self, keys: Any) -> Any:
        found = self._client.gets_many(keys)
        happen, self.happen = self.happen, None
        if happen:
            happen()
        return found

    def raw_command(self, *request: Any) -> bytes:
        answer = self._client.raw_command(*request)
        if not self.answers:
            raise OSError("the answer was lost")
        return answer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)


def _written_before_a_loss(locks: Locks) -> None:
    """Makes the item of a key one that was written in another generation of the server."""

    def change(client: Client) -> None:
        item = _item_of("key").decode()
        client.set(item, b"another " + client.get(item))

    locks._engine.ask(change)


def _item_of(key: str) -> bytes:
    return f"weblock/lock/{sha256(f'default:{key}'.encode()).hexdigest()}".encode()


def _fill(server: Memcached, like: bytes, count: int) -> Iterator[bytes]:
    """Sets so many items that are as large as one that is there; the answers."""
    with socket.create_connection(("127.0.0.1", server.port)) as sock, sock.makefile("rb") as lines:
        sock.sendall(b"get " + like + b"\r\n")
        size = int(lines.readline().split()[3])
        while lines.readline() != b"END\r\n":
            pass
        for number in range(count):
            name = b"%0*d" % (len(like), number)
            sock.sendall(b"set %s 0 0 %d\r\n%s\r\n" % (name, size, bytes(size)))
            yield lines.readline()


def _recovery(locks: Locks) -> EngineRecovering:
    """What a caller is told by a server that has forgotten; it may just be starting."""
    while True:
        try:
            assert locks.try_acquire("key") is None
        except EngineRecovering as recovering:
            return recovering
        except EngineUnavailable:
            time.sleep(0.02)


def _as_soon_as_it_grants(locks: Locks) -> Any:
    until = time.monotonic() + LONG
    while True:
        try:
            return locks.acquire("key", wait=0)
        except EngineUnavailable:
            assert time.monotonic() < until
            time.sleep(0.02)
