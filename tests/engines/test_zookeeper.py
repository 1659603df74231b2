"""ZooKeeper servers that die, hang, restart and are cut off, and sessions that expire."""

from __future__ import annotations

import itertools
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial

import pytest
from kazoo.client import KazooClient
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.protocol.states import KeeperState

from tests.contract.puppets import Puppet
from tests.servers import Proxy
from tests.servers.proxy import Listener
from tests.servers.zookeeper import Ensemble, ZooKeeper, fresh_zookeeper, shared_zookeeper
from tests.support import interrupts
from tests.support.renewals import renewed
from tests.support.urls import varied
from tests.support.waiting import PATIENCE, eventually, now, waiters
from weblock import ConfigurationError, EngineUnavailable, Lease, LeaseLost, Locks, LockTimeout
from weblock._core.table import HANDOFF, Gone, Held, Waiting
from weblock._runtime.runtimes import BlockingRuntime, drive
from weblock.cli.doctor import _found
from weblock.stores.zookeeper import parse
from weblock.stores.zookeeper.session import Session
from weblock.stores.zookeeper.store import ZooKeeperStore
from weblock.stores.zookeeper.wire import Memory

from .machines import Machine, starting_machines

LONG = 60.0
"""A ttl that no test waits for."""


@pytest.fixture(scope="module")
def three_servers() -> Iterator[Ensemble]:
    with Ensemble() as servers:
        yield servers


@pytest.fixture
def ensemble(three_servers: Ensemble) -> Iterator[Ensemble]:
    """Three servers. Those that a test has killed, and did not start again, are started for the next."""
    yield three_servers
    three_servers.start_the_dead()


@pytest.fixture
def server() -> Iterator[ZooKeeper]:
    with ZooKeeper() as server:
        yield server


@pytest.fixture
def client() -> Iterator[Callable[..., KazooClient]]:
    """Clients for the test itself; of the shared server, unless told otherwise."""
    started: list[KazooClient] = []

    def start(address: str = "", **options) -> KazooClient:
        started.append(KazooClient(address or shared_zookeeper().address, **options))
        started[-1].start()
        return started[-1]

    yield start
    for each in started:
        each.stop()
        each.close()


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor() as threads:
        yield threads


def hold(locks: Locks, **options) -> int:
    """Holds the key for a moment; its fence."""
    with locks.hold("key", wait=LONG, **options) as lease:
        return lease.fence


def below(client: KazooClient, url: str) -> list[str]:
    """The nodes of the key: a lease, and places."""
    root = url.rpartition("/")[2].partition("?")[0]
    node = f"/{root}/keys/default:key"
    return [name.partition("-")[0] for name in client.get_children(node)]


def keys_left(client: KazooClient, url: str) -> list[str]:
    return client.get_children(f"/{url.rpartition('/')[2].partition('?')[0]}/keys")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_client_that_fails_is_started_again(server, caplog) -> None:
    """An error of kazoo's own is an outage for the caller, and the next one gets a new session."""
    with Locks.from_url(f"zookeeper://{server.address}/failing") as locks:
        first = hold(locks)
        session = locks._engine.session()
        # As kazoo finds it where an answer is not the one that it waits for: its thread ends.
        session.client._connection._connect_attempt = None
        session.client.handler.hang_up()
        eventually(lambda: session.ended)
        assert hold(locks) > first
        assert locks._engine.session() is not session
        assert "failed and is restarted" in caplog.text


class TestEnsemble:
    """Three servers, of which one is killed or stopped."""

    def test_a_leader_that_is_killed(self, ensemble) -> None:
        """A lease outlives its leader: nobody else gets it meanwhile, and the next fence is larger."""
        url = fresh_zookeeper(ensemble.address)
        # Longer than an election may take. They differ so that each has its own session.
        here, there = varied(url, timeout=LONG), varied(url, timeout=LONG + 1)
        with Locks.from_url(here) as locks, Locks.from_url(there) as others:
            lease = locks.acquire("key", ttl=LONG)
            assert others.inspect("key").fence == lease.fence
            dead = ensemble.leader()
            dead.kill()
            assert ensemble.leader() is not dead
            with pytest.raises(LockTimeout):
                others.acquire("key", wait=0)
            lease.extend(1)
            lease.release()
            assert hold(others) > lease.fence

    def test_a_server_that_hangs(self, ensemble) -> None:
        """A holder whose server is stopped renews its lease at another, in time.

        kazoo would not find out: it does not miss an answer as long as it has something to send.
        """
        leader = ensemble.leader()
        followers = [server for server in ensemble.servers if server is not leader]
        hosts = ",".join(server.address for server in followers)
        with Locks.from_url(fresh_zookeeper(hosts, session_timeout=4, timeout=1)) as locks:
            lease = locks.acquire("key", ttl=20)
            (holding,) = lease._holdings
            connection = locks._engine.session().client._connection
            port = connection._socket.getpeername()[1]
            stopped = next(server for server in followers if server.port == port)

            def renewed_or_lost() -> bool:
                with suppress(EngineUnavailable):
                    locks.inspect("another key")
                return holding.deadline > before or not lease.held

            stopped.stop()
            try:
                before = holding.deadline
                eventually(renewed_or_lost)
            finally:
                stopped.cont()
            lease.release()
        stopped.wait_until_up()


@pytest.fixture
def linked() -> Iterator[Ensemble]:
    """Three servers, the first of which can be cut off from the leader."""
    with Ensemble(link=True) as ensemble:
        yield ensemble


def test_a_holder_whose_server_is_cut_off(linked, client, threads) -> None:
    """It knows before another holds. The holder of kazoo's own lock is told nothing by then."""
    first, leader = linked.first.address, linked.leader().address
    naive, rival = client(first, timeout=10.0), client(leader)
    assert naive.Lock("/naive").acquire()

    def take_over_naively() -> str:
        assert rival.Lock("/naive").acquire()
        return naive.client_state

    url = fresh_zookeeper(first)
    impatient = varied(url, session_timeout=2, timeout=0.8)
    with Locks.from_url(impatient) as here, Locks.from_url(url.replace(first, leader)) as there:
        lease = here.acquire("key", ttl=LONG, wait=PATIENCE)

        def take_over() -> tuple[int, bool]:
            with there.hold("key", wait=None) as theirs:
                return theirs.fence, lease.held

        naively, properly = threads.submit(take_over_naively), threads.submit(take_over)
        eventually(lambda: waiters(there, "key") == 1)
        eventually(lambda: len(rival.get_children("/naive")) == 2)
        shorten(here, lease, 3.0)
        linked.link.freeze()
        try:
            assert naively.result(PATIENCE) == KeeperState.CONNECTED
            fence, both = properly.result(PATIENCE)
        finally:
            linked.link.thaw()
        assert not both
        assert fence > lease.fence
        with pytest.raises(LeaseLost) as lost:
            lease.release()
        assert lost.value.reason == "expired"


def shorten(locks: Locks, lease: Lease, ttl: float) -> None:
    """Has a lease last for so long from now on, as if it had been acquired for no longer: it is renewed at once.

    If a slow machine does not get round to that, it is lost.
    """
    (holding,) = lease._holdings
    leases, soon = locks._engine.memory.leases, now() + ttl / 2
    # Else a renewal keeps what was promised before.
    leases[holding.owner] = leases[holding.owner]._replace(until=soon)
    holding.terms = replace(holding.terms, ttl=ttl)
    holding.deadline = soon  # The answer moves it on.
    with suppress(LeaseLost):
        renewed(locks, lease)


class TestServer:
    """One server, that is killed or stopped."""

    def test_a_restart(self, server, threads) -> None:
        """A server that is killed and started again knows leases and waiters; fences go on."""
        url = fresh_zookeeper(server.address)  # Its clients find it again when they next try.
        here, there = varied(url, timeout=LONG), varied(url, timeout=LONG + 1)
        with Locks.from_url(here) as locks, Locks.from_url(there) as others:
            lease = locks.acquire("key", ttl=LONG)
            behind = threads.submit(hold, others)
            eventually(lambda: waiters(locks, "key") == 1)
            server.restart()
            with pytest.raises(LockTimeout):
                others.acquire("key", wait=0)
            lease.release()
            assert behind.result(LONG) > lease.fence


class TestSession:
    """The connection of a process, and what hangs on it."""

    def test_a_session_that_expires(self, client, threads) -> None:
        """Neither a lease nor a wait ends with its session: both go on in the next one."""
        url = fresh_zookeeper()
        with Locks.from_url(url) as locks, Locks.from_url(varied(url, timeout=21)) as others:
            lease = locks.acquire("key", ttl=LONG)
            behind = threads.submit(hold, others)
            eventually(lambda: waiters(locks, "key") == 1)
            for each in (locks, others):
                driver = each._engine.session().client
                client_id = driver.client_id
                client(client_id=client_id).stop()  # Which ends the session for both.
                eventually(lambda d=driver, i=client_id: d.connected and d.client_id != i)
            eventually(lambda: waiters(locks, "key") == 1)
            lease.extend(1)
            lease.release()
            assert behind.result(LONG) > lease.fence
            assert keys_left(client(), url) == []

    @pytest.mark.parametrize("busy", [False, True], ids=["lease", "place"])
    def test_an_answer_that_is_lost(self, client, threads, busy) -> None:
        """Asking again finds the lease or the place that was made; nothing is left of either."""
        url = fresh_zookeeper(session_timeout=4)
        address, look = shared_zookeeper().address, client()
        with (
            Proxy(Listener(shared_zookeeper().port)) as proxy,
            Locks.from_url(url) as holders,
            Locks.from_url(url.replace(address, f"127.0.0.1:{proxy.port}")) as locks,
        ):
            locks.acquire("another key").release()
            driver = locks._engine.session().client
            before = driver.last_zxid
            lease = holders.acquire("key", ttl=LONG) if busy else None
            proxy.delay(500, "replies")
            got = threads.submit(locks.acquire, "key", wait=LONG, ttl=LONG)
            made = ["lease", "place"] if busy else ["lease"]
            eventually(lambda: keys_left(look, url) and sorted(below(look, url)) == made)
            proxy.reset()
            proxy.heal()
            eventually(lambda: driver.connected and driver.last_zxid > before)
            eventually(lambda: sorted(below(look, url)) == made)
            if lease:
                lease.release()
            theirs = got.result(LONG)
            assert below(look, url) == ["lease"]
            theirs.release()
            assert keys_left(look, url) == []

    def test_a_request_is_not_sent_late(self, server) -> None:
        """Who gave up during an outage gets nothing when it is over."""
        url = fresh_zookeeper(server.address, timeout=2)
        longer = varied(url, session_timeout=3)
        with Locks.from_url(url) as locks, Locks.from_url(longer) as others:
            locks.acquire("key").release()
            server.kill()
            with pytest.raises(EngineUnavailable):
                locks.acquire("key", wait=0.5)
            server.start()
            # A server that takes long to start has ended the sessions, and each process begins anew.
            eventually(lambda: hold(locks), despite=EngineUnavailable)
            eventually(lambda: others.inspect("key") is None, despite=EngineUnavailable)
            assert hold(others)


@pytest.fixture
def machine() -> Iterator[Callable[..., Machine]]:
    """Machines that lock on one key, each with a clock of its own."""
    with starting_machines() as start:
        yield start


class TestLateDecisions:
    """What was decided on a look is done later, when the look is not true any more."""

    def test_who_waits_again_has_all_the_time_for_its_turn(self, machine) -> None:
        """Is not passed over for a turn that it did not take in an earlier life of the key's node."""
        holder, stopped, behind = machine(), machine(), machine()

        def queue() -> None:
            holder.acquire("holder")
            stopped.acquire("first")
            behind.acquire("behind")
            holder.release("holder")
            assert isinstance(behind.acquire("behind"), Waiting)

        queue()
        names = [place.name for place in behind.snapshot().places]
        stopped.release("first")
        behind.release("behind")
        behind.clock += HANDOFF
        queue()
        assert [place.name for place in behind.snapshot().places] == names
        assert isinstance(stopped.acquire("first"), Held)


def owners_waiting(machine: Machine) -> list[str]:
    """The owners of the places, first come, first served."""
    return [place.owner for place in machine.snapshot().places]


class TestTraces:
    """What is left of waiters that got no answer, or were released by another thread."""

    def test_a_release_ends_an_acquisition(self, machine, monkeypatch) -> None:
        """What another thread has released makes neither a lease nor a place any more."""
        here, there = machine(), machine()
        store = here.store
        grant = store._grant

        async def released_meanwhile(*arguments: object) -> object:
            here.release("ours")
            return await grant(*arguments)

        monkeypatch.setattr(store, "_grant", released_meanwhile)
        assert isinstance(here.acquire("ours"), Gone)
        snapshot = there.snapshot()
        assert (snapshot.live, snapshot.places) == ((), ())

    def test_a_place_that_was_given_up(self, machine) -> None:
        """A process removes a place that it could not take back, when it next has to do with the key."""
        holder, here = machine(), machine()
        holder.acquire("holder")
        here.acquire("given up")
        here.engine.memory.forget("given up")
        here.acquire("next")
        eventually(lambda: owners_waiting(holder) == ["next"])


class TestEndedLeases:
    def test_who_never_waits_gets_the_key_of_the_dead(self) -> None:
        """Processes that just try, each for the first time, find that a killed holder's lease ended."""
        url = fresh_zookeeper(session_timeout=1)
        holder = Puppet("sync", url, {"ttl": 1})
        try:
            holder.do("acquire", "key")
            holder.kill()
        finally:
            holder.close()

        def newcomer_gets_it() -> bool:
            with Locks.from_url(url) as locks:
                lease = locks.try_acquire("key")
                return bool(lease)

        eventually(newcomer_gets_it)


def test_what_is_watched_for_long_is_remembered() -> None:
    """However many other leases a process sees meanwhile, a dead holder's ends for who waits for it."""
    memory = Memory()
    for second in range(300):
        assert memory.first_seen("the dead holder's", second) == 0
        for number in range(100):
            memory.first_seen((second, number), second)


class RefusingServer:
    """Lets a session begin, and refuses its password: as one does that knows no digests."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.sessions = 0
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                self.sessions += 1
                with connection, suppress(OSError, struct.error):
                    self._refuse(connection)

    def _refuse(self, connection: socket.socket) -> None:
        self._request(connection)
        begun = struct.pack(">iiqi", 0, 10_000, 77, 16) + b"p" * 16 + b"\0"
        connection.sendall(struct.pack(">i", len(begun)) + begun)
        while struct.unpack(">i", self._request(connection)[:4])[0] != -4:  # Which is the password.
            pass
        refused = struct.pack(">iqi", -4, 0, -115)
        connection.sendall(struct.pack(">i", len(refused)) + refused)

    def _request(self, connection: socket.socket) -> bytes:
        (size,) = struct.unpack(">i", connection.recv(4, socket.MSG_WAITALL))
        return connection.recv(size, socket.MSG_WAITALL)


def refusal_by(locks: Locks) -> str:
    with pytest.raises(EngineUnavailable) as refused:
        locks.try_acquire("key")
    return str(refused.value)


def tried_anew(locks: Locks, server: RefusingServer) -> bool:
    with suppress(EngineUnavailable):
        locks.try_acquire("key")
    return server.sessions > 1


def test_a_caller_whose_unknown_lease_was_taken_away_goes_on_waiting(monkeypatch) -> None:
    """It asks again after a lost answer, sees its lease, and cannot renew it: it still gets the key."""
    grant, renew_again = ZooKeeperStore._grant, ZooKeeperStore._renew_again
    lost: list[str] = []

    async def grant_and_lose(store, key, claim, given):
        reply = await grant(store, key, claim, given)
        if reply and not lost:
            lost.append("the answer")
            store._memory.leases.pop(claim.owner, None)
            raise EngineUnavailable("zookeeper", "the answer was lost")
        return reply

    async def take_away_and_renew(store, key, claim):
        if lost == ["the answer"]:
            lost.append("the lease")
            deleted = key.session.client.delete_async(key.lease_of(claim.owner))
            await store._wire.all(deleted)
        return await renew_again(store, key, claim)

    monkeypatch.setattr(ZooKeeperStore, "_grant", grant_and_lose)
    monkeypatch.setattr(ZooKeeperStore, "_renew_again", take_away_and_renew)
    with Locks.from_url(fresh_zookeeper(), wait=PATIENCE) as locks:
        locks.acquire("key").release()
    assert lost == ["the answer", "the lease"]


@pytest.mark.parametrize("number", ["2147483647", "-2147483648", "-000000001"])
def test_a_queue_whose_numbers_are_used_up(number, threads, monkeypatch) -> None:
    """Nobody waits out of order: it is said, nothing is left, and a key that was free counts anew."""
    create = KazooClient.create_async

    def create_async(self, path, *arguments, sequence=False, **options):
        return create(self, path + number if sequence else path, *arguments, **options)

    url = fresh_zookeeper()
    with Locks.from_url(url) as locks, Locks.from_url(url) as others:
        lease = locks.acquire("key")
        with monkeypatch.context() as patch:
            patch.setattr(KazooClient, "create_async", create_async)
            waiting = threads.submit(others.acquire, "key", wait=0.3)
            with pytest.raises(EngineUnavailable, match="has had 2147483647 children"):
                waiting.result(PATIENCE)
            found = locks.inspect("key")
            assert found
            assert not found.waiters
        lease.release()
        with others.hold("key"), pytest.raises(LockTimeout):
            threads.submit(locks.acquire, "key", wait=0.05).result(PATIENCE)


class TestFormat:
    """Nodes that another version of weblock keeps its leases in."""

    def test_another_format_is_named_and_nothing_is_changed(self, client) -> None:
        """Locking, looking, and the doctor's check fail with the remedy, whoever created the nodes."""
        url, servers = fresh_zookeeper(), client()
        root = "/" + url.rpartition("/")[2].partition("?")[0]
        servers.create(f"{root}/keys", b"2", makepath=True)
        with Locks.from_url(url) as locks:
            for ask in (locks.try_acquire, locks.inspect, locks.force_release):
                with pytest.raises(
                    ConfigurationError, match=r"format b'2'.*another node in the URL"
                ):
                    ask("key")
            assert any("format b'2'" in each.text for each in _found(locks, 10, measure=False))
        assert servers.get_children(f"{root}/keys") == []
        assert servers.get(f"{root}/keys")[0] == b"2"


class TestAccess:
    def test_nodes_are_for_their_user_only(self, caplog) -> None:
        """With a user in the URL, others can neither read nor take what it locks, nor see the password."""
        caplog.set_level(1)
        url = fresh_zookeeper()
        ours = url.replace("://", "://joe:s%40cret@")
        with Locks.from_url(ours) as locks, Locks.from_url(url) as others:
            assert "s@cret" not in locks.engine + repr(locks)
            lease = locks.acquire("key")
            with pytest.raises(EngineUnavailable, match="no right to write below its root"):
                others.acquire("key", wait=0)
            lease.release()
        assert "Auth(auth_type=0, scheme='digest', auth='...')" in caplog.text
        assert "s@cret" not in caplog.text

    @pytest.mark.parametrize(
        ("url", "names"),
        [
            ("zookeeper://host:99999", "host:99999"),
            ("zookeeper://a,b c", "b c"),
            ("zookeeper://a,b..c:1", "names a server, and no host can have that name"),
            ("zookeeper://[1.2]", "a server '1.2', and no host can have that name"),
            ("zookeeper://host/a//b", "/a//b"),
            ("zookeeper://host/a/../b", "/a/../b"),
            ("zookeeper://joe@host", "user:password@"),
            ("zookeeper://host?ttl=3", "'ttl'"),
            ("zookeeper://host?timeout=none", "timeout='none'"),
            ("zookeeper://host?session_timeout=-1", "session_timeout='-1'"),
        ],
    )
    def test_a_url_that_cannot_work(self, url, names) -> None:
        """It is refused when it is read, with what is wrong with it."""
        with pytest.raises(ConfigurationError, match=names.replace("?", r"\?")):
            Locks.from_url(url)

    def test_a_refused_password_is_tried_again(self) -> None:
        """It is named, and once the servers accept it, who asks goes on: a session begins anew."""
        server = RefusingServer()
        with Locks.from_url(f"zookeeper://joe:secret@127.0.0.1:{server.port}?timeout=1") as locks:
            # On a busy machine a request may come when kazoo has closed the connection already.
            eventually(lambda: "rejects the user and password" in refusal_by(locks))
            eventually(lambda: tried_anew(locks, server))
        server.close()

    def test_no_password_is_shown(self) -> None:
        """A password that is not percent-encoded is in no message."""
        with pytest.raises(ConfigurationError) as refused:
            Locks.from_url("zookeeper://joe:se/cret@host:99999/x")
        assert "cret" not in str(refused.value)

    def test_a_url(self) -> None:
        """Hosts, ports and the chroot may be left out."""
        settings = parse("zookeeper://")
        assert (settings.hosts, settings.root) == (("localhost:2181",), "/weblock")
        settings = parse("zookeeper://u:p@a:1,[::1]:2,c/x/y?timeout=3&session_timeout=4")
        assert settings.hosts == ("a:1", "[::1]:2", "c:2181")
        assert (settings.root, settings.credentials) == ("/x/y", "u:p")
        assert (settings.timeout, settings.session_timeout) == (3, 4)
        assert settings.name == "zookeeper://a:1,[::1]:2,c:2181/x/y"
        assert "u:p" not in repr(settings)


def test_exceptions_of_signal_handlers_lock_no_result(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever one is raised in the standard library while a caller waits, the answer can be stored.

    One thread of kazoo stores all answers of a process, and must not wait for a caller that has gone.
    """
    monkeypatch.setattr(interrupts, "PACKAGE", threading.__file__)
    handler = Session._new_client(None, parse("zookeeper://localhost")).handler  # type: ignore[arg-type]
    for line in itertools.count(1):
        result = handler.async_result()
        interrupter = interrupts.Interrupter(line)
        with suppress(KazooTimeoutError):
            answer = result.answer(BlockingRuntime().mailbox, 0.01)
            interrupter.run(partial(drive, answer))
        storing = threading.Thread(target=result.set, daemon=True)
        storing.start()
        storing.join(PATIENCE)
        assert not storing.is_alive(), interrupter.where
        if not interrupter.where:
            break
