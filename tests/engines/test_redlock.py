"""A majority of independent servers: what it takes, what it bears, and what it refuses."""

from __future__ import annotations

import asyncio
import os
import select
import threading
from collections.abc import Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from typing import Any

import pytest

from tests.servers import Server
from tests.servers.proxy import Proxy
from tests.support.forks import fork, needs_fork
from tests.support.renewals import renew_often
from tests.support.waiting import PATIENCE, eventually
from weblock import AsyncLocks, ConfigurationError, EngineUnavailable, LeaseLost, Locks, LockTimeout
from weblock._core.ports import CheckAgain, Granted, Pulse, Reply
from weblock._core.table import Claim, Gone, Held, Waiting
from weblock._runtime.runtimes import BlockingRuntime, drive, now
from weblock.stores.quorum import Board, open_quorum
from weblock.stores.quorum.acquisition import SPLIT, Acquisition, Clocks, Votes
from weblock.stores.redis.blocking import connected
from weblock.stores.redis.settings import Address
from weblock.stores.redis.store import RedisStore
from weblock.stores.transport.failures import Unfit

TTL = 2.0
DOWN = EngineUnavailable("redis://x", "it is down")


@pytest.fixture
def servers() -> Iterator[list[Server]]:
    with ExitStack() as stack:
        yield [stack.enter_context(Server()) for _ in range(3)]


def urls(servers: list[Server], **options: object) -> list[str]:
    """The URLs of a quorum; one of its servers that is slow is no outage."""
    patient = {"recovery": "off", "timeout": 2, "connect_timeout": 2}
    return [server.url(**{**patient, **options}) for server in servers]


class TestTally:
    """The pure function that counts votes. Times are the asker's: it asked at 100."""

    def votes(self, *replies: Reply | EngineUnavailable) -> Votes:
        return Votes(3, 100.0, dict(enumerate(replies)))

    def held(self, fence: int, left: float = 10.0) -> Reply:
        return Reply(Held(fence, 5000.0 + left), 5000.0)

    def test_a_majority_grants(self) -> None:
        """Two of three hold: until the earlier of both ends, with the larger fence."""
        outcome = self.votes(self.held(7, 10.0), self.held(9, 4.0), DOWN).outcome()
        assert outcome == Reply(Held(9, 104.0), 100.0)

    def test_a_third_vote_prolongs_it(self) -> None:
        """Of three that hold, the two that last longest make the majority."""
        outcome = self.votes(self.held(7, 10.0), self.held(7, 1.0), self.held(7, 4.0)).outcome()
        assert outcome == Reply(Held(7, 104.0), 100.0)

    def test_a_heartbeat_is_lost_only_when_a_majority_cannot_have_it(self) -> None:
        """Unknown while those who are silent may have it still, lost when they cannot."""
        gone = Reply(Gone(), 5000.0)
        assert self.votes(self.held(7), gone, DOWN).heartbeat(7) is None
        assert self.votes(gone, gone, DOWN).heartbeat(7) == Reply(Gone(), 100.0)
        assert self.votes(self.held(7), gone, gone).heartbeat(7) == Reply(Gone(), 100.0)
        assert isinstance(self.votes(self.held(7), gone, self.held(7)).heartbeat(7), Reply)

    def test_a_waiter_that_some_have_let_in_is_to_ask(self) -> None:
        """With no fence agreed on, nobody holds; and who has a minority must see who came first."""
        waiting = Reply(Waiting(2, 5003.0), 5000.0)
        for replies in ((self.held(7), self.held(7), DOWN), (self.held(7), waiting, waiting)):
            assert self.votes(*replies).heartbeat(None) == Reply(Gone(), 100.0)
        assert self.votes(waiting, waiting, DOWN).heartbeat(None) == Reply(Waiting(2, 103.0), 100.0)


def test_who_is_rung_by_a_minority_looks_if_no_majority_follows() -> None:
    """Servers that hand over to one each would else wait for the next heartbeats of all."""
    acquisition = Acquisition(Claim("waiter", "", 10.0, ""))
    assert acquisition.notified(0, CheckAgain(), majority=3) == CheckAgain(after=SPLIT)
    assert acquisition.notified(1, CheckAgain(), majority=3) == CheckAgain(after=SPLIT)
    assert acquisition.notified(2, CheckAgain(), majority=3) == CheckAgain()


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (["redis://a"], "odd number of servers, not 1"),
        (["redis://a", "redis://b"], "not 2"),
        (["redis://a", "redis://b", "redis://c", "redis://d"], "not 4"),
        (["redis://a", "redis://b", "redis://a/1"], "a:6379 is named more than once"),
        (["redis://a", "redis://b", "redis+cluster://c"], "is a cluster"),
        (["redis://a", "redis://b", "file:///tmp/c"], "made of redis:// servers"),
    ],
)
def test_what_is_no_quorum_is_refused(wrong: list[str], told: str) -> None:
    """Too few, an even number, the same one twice, and what is no single server."""
    with pytest.raises(ConfigurationError, match=told):
        Locks.from_url(wrong)


def test_one_server_under_two_names_is_found_out(servers: list[Server]) -> None:
    """A server that is named twice in different ways does not count twice."""
    first, second, _ = urls(servers)
    twice = first.replace("127.0.0.1", "localhost")
    with Locks.from_url([first, second, twice], wait=0) as locks:
        locks.acquire("a", wait=PATIENCE).release()
        servers[1].kill()
        with pytest.raises(EngineUnavailable, match="1 of 3 servers answered"):
            locks.acquire("b")


def test_one_server_under_two_names_is_found_out_when_its_replication_has_begun_anew() -> None:
    """The id of its replication changes while it runs, and says nothing of which server it is."""
    with closing(open_quorum([f"redis://{name}" for name in ("a", "b", "c")])) as engine:
        engine._admit(0, "run:one")
        engine._admit(0, "run:two")
        with pytest.raises(Unfit, match="the same server"):
            engine._admit(1, "run:three")
        engine._admit(1, "other:one")


async def test_any_minority_may_be_down(servers: list[Server]) -> None:
    """With one of three down, hung or empty, everybody goes on; both APIs exclude each other."""
    with Locks.from_url(urls(servers), wait=PATIENCE) as locks:
        async with AsyncLocks.from_url(urls(servers), wait=PATIENCE) as others:
            fences = []
            for trouble in (servers[0].kill, servers[0].start, servers[1].stop, servers[1].cont):
                trouble()
                with locks.hold("a") as lease:
                    fences.append(lease.fence)
                    assert await others.try_acquire("a") is None
                async with others.hold("a") as lease:
                    fences.append(lease.fence)
            assert fences == sorted(set(fences))


def test_what_a_late_ring_told_of_is_over(servers: list[Server]) -> None:
    """A process that slept through a handover does not get its old fence with its next lease."""
    engine = open_quorum(urls(servers))
    store = engine.connect(BlockingRuntime())
    holder, waiter = (Claim(owner, store.process, 60.0, "") for owner in ("holder", "waiter"))
    drive(store.acquire("a", holder, room=0))
    reply = drive(store.acquire("a", waiter, room=1))
    # All three: the holder needed only two, so one server may have met the waiter first.
    for server in range(3):
        Board(engine, server).notify(waiter.owner, Granted(7, reply.now + 10**10))
    assert engine.acquisitions[waiter.owner].fence == 7
    assert isinstance(drive(store.acquire("a", waiter, room=1)).answer, Waiting)
    assert engine.acquisitions[waiter.owner].fence is None
    engine.close()


def test_with_a_majority_down_it_is_said(servers: list[Server]) -> None:
    """Two of three down is an engine that is unavailable, not a key that is busy; nothing hangs."""
    with Locks.from_url(urls(servers), ttl=TTL, wait=1) as locks:
        lease = locks.acquire("a", wait=PATIENCE)  # It has to connect first.
        servers[0].kill()
        servers[1].kill()
        with pytest.raises(EngineUnavailable, match="1 of 3 servers answered, and 2 must agree"):
            locks.acquire("b")
        eventually(lambda: not lease.held)
        with pytest.raises(LeaseLost):
            lease.check()


@pytest.mark.parametrize("down", [0, 1])
def test_one_of_many_takers_gets_the_lease(servers: list[Server], down: int) -> None:
    """Callers that take over one lease at once do not split the votes, however they list the servers."""
    with ExitStack() as stack, ThreadPoolExecutor(8) as threads:
        lists = [urls(servers), urls(servers)[::-1]] * 4
        takers = [stack.enter_context(Locks.from_url(each)) for each in lists]
        for server in servers[:down]:
            server.kill()
        for each in range(20):
            token = takers[0].acquire(f"key {each}", ttl=60).hand_over()
            together = threading.Barrier(len(takers))

            def take_over(locks: Locks, token: str = token, start: Any = together.wait) -> Any:
                start()
                with suppress(LeaseLost):
                    return locks.take_over(token)

            (taken,) = filter(None, threads.map(take_over, takers))
            taken.release()


def knows_a_lease(server: Server) -> bool:
    """Not just that somebody has asked for the key: an attempt to repair it may have come too late."""
    locks = server.command("KEYS", "*:lock:*a")
    return any(
        field.startswith("lease:") for lock in locks for field in server.command("HKEYS", lock)
    )


def test_a_server_that_lost_a_lease_is_given_it_back(
    servers: list[Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lease outlives the loss of one server, and then of another, for it is repaired meanwhile."""
    renew_often(monkeypatch)
    with Locks.from_url(urls(servers), ttl=PATIENCE) as locks, locks.hold("a") as lease:
        for server in servers:
            server.restart(keep_data=False)
            eventually(lambda server=server: knows_a_lease(server))
        lease.check()
        with ThreadPoolExecutor(1) as pool, pytest.raises(LockTimeout):
            pool.submit(lambda: locks.acquire("a", wait=0)).result()


def test_a_recovering_server_gives_no_vote_for_a_lease_that_it_knows(
    servers: list[Server],
) -> None:
    """It might have forgotten that the lease was released. Its holder can renew it there, though."""
    claim = Claim("holder", "", 60.0, "")
    before, after = open_quorum(urls(servers)), open_quorum(urls(servers, recovery=60))
    try:
        drive(before.connect(BlockingRuntime()).acquire("a", claim, room=0))
        eventually(lambda: servers[0].command("KEYS", "*:lock:*a"))
        servers[0].command("SAVE")
        servers[0].restart(keep_data=True)
        store = after.connect(BlockingRuntime())
        restarted, ticket = store._stores[0], before.acquisitions["holder"].ticket
        (renewed,) = to_its_end(restarted.refresh([Pulse("a", "holder", 60.0)]))
        assert isinstance(renewed.answer, Held)
        told = to_its_end(restarted.acquire("a", claim, room=1, ticket=ticket))
        assert isinstance(told.answer, Waiting)
        assert told.answer.recovering
        assert not Votes(3, 0.0, {0: told, 1: renewed, 2: DOWN}).granted
    finally:
        before.close()
        after.close()


def to_its_end(request: Coroutine[Any, Any, Any]) -> Any:
    """Return the result of a request to one server, which suspends where it would block."""
    while True:
        try:
            request.send(None)
        except StopIteration as end:
            return end.value


def test_a_release_tells_of_a_loss_that_a_majority_knows(servers: list[Server]) -> None:
    """That one of the servers hangs does not hide that the lease was taken away."""
    with Locks.from_url(urls(servers)) as locks:
        lease = locks.acquire("key", ttl=60)
        servers[2].stop()
        try:
            assert locks.force_release("key")
            with pytest.raises(LeaseLost) as lost:
                lease.release()
        finally:
            servers[2].cont()
        assert lost.value.reason == "taken"


def leases_or_marks(server: Server) -> list[Any]:
    """The locks of which the server knows anything: a lease, a place, or an owner that gave up."""
    found: list[Any] = server.command("KEYS", "*:lock:*")
    return found


@pytest.mark.parametrize("suspends", [False, True], ids=["blocking", "asyncio"])
async def test_a_release_behind_an_unanswered_request_marks_nothing(
    servers: list[Server], suspends: bool
) -> None:
    """The server has granted what it releases, so no request is late, and no mark costs it time."""
    with Proxy(servers[2]) as proxy:
        direct = urls(servers[:2], timeout=PATIENCE)
        all_urls = [*direct, proxy.url(recovery="off", timeout=PATIENCE)]
        with Locks.from_url(all_urls) as blocking:
            async with AsyncLocks.from_url(all_urls) as suspending:
                for number in range(3):
                    proxy.thaw("replies")
                    if suspends:
                        await (await suspending.acquire("first")).release()
                        proxy.freeze("replies")
                        lease = await suspending.acquire(f"k{number}")
                        over = asyncio.create_task(lease.release())
                    else:
                        blocking.acquire("first").release()
                        proxy.freeze("replies")
                        mine = blocking.acquire(f"k{number}")
                        over = asyncio.create_task(asyncio.to_thread(mine.release))
                    await asyncio.sleep(0.05)
                    proxy.thaw("replies")
                    await over
                    assert not leases_or_marks(servers[2])


async def test_a_request_that_comes_after_the_release_gets_nothing(
    servers: list[Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It came on another way than the release, as after the loss of a connection."""
    acquire, go_on, late = RedisStore.acquire, asyncio.Event(), list[Reply]()

    async def delayed(self: RedisStore, key: str, claim: Claim, **options: Any) -> Reply:
        if str(servers[2].port) in self._name:
            await go_on.wait()
            late.append(await acquire(self, key, claim, **options))
            return late[0]
        return await acquire(self, key, claim, **options)

    async with AsyncLocks.from_url(urls(servers)) as locks:
        await (await locks.acquire("first")).release()
        monkeypatch.setattr(RedisStore, "acquire", delayed)
        lease = await locks.acquire("k", wait=PATIENCE)
        await lease.release()
        assert leases_or_marks(servers[2])
        go_on.set()
        await asyncio.to_thread(eventually, lambda: bool(late))
        assert isinstance(late[0].answer, Gone)


async def test_a_request_that_was_sent_twice_may_be_late(servers: list[Server]) -> None:
    """What a server releases may come from the one, while the other is still under way."""
    with Proxy(servers[2]) as proxy:
        engine = open_quorum([*urls(servers[:2]), proxy.url(recovery="off", timeout=2)])
        async with AsyncLocks(engine) as locks:
            await (await locks.acquire("first")).release()
            lost = proxy.drop_reply(to=b"twice")
            lease = await locks.acquire("twice")
            acquisition = engine.acquisitions[lease.owner]
            await asyncio.to_thread(eventually, lambda: acquisition.asked[2] == 2)
            assert lost.happened
            acquisition.under_way.add((object(), 2))
            await lease.release()
            assert leases_or_marks(servers[2])
            assert not acquisition.may_repeat()


def test_a_clock_that_is_behind_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    """Who could notice before it does harm is told which server it is, and by how much."""
    clocks = Clocks(["redis://a", "redis://b", "redis://c"])
    for _ in range(2):
        for server, time in enumerate((9000.0, 8997.0, 5400.0)):
            clocks.heard(server, time, sent=100.0, received=100.0)
    (record,) = [each for each in caplog.records if "the clock of" in each.getMessage()]
    assert record.levelname == "WARNING"
    assert "the clock of redis://c is 3600 s behind the clock of redis://a" in record.getMessage()


class TestClocks:
    """The time of the servers, which orders waiters. Here their clocks are about 5000 ahead of ours."""

    def clocks(self, *shown: float) -> Clocks:
        clocks = Clocks(["redis://a", "redis://b", "redis://c"])
        for server, time in enumerate(shown):
            clocks.heard(server, time, sent=100.0, received=100.0)
        return clocks

    def test_of_two_the_one_that_is_behind_counts(self) -> None:
        """Both have reached it, so that both take it for the fence as well."""
        assert self.clocks(5101.0, 5100.0).time(100.0) == 5100.0

    def test_it_is_known_from_a_majority_on(self) -> None:
        """What one server of three shows is no time to order waiters by."""
        assert not self.clocks(5100.0).known
        assert self.clocks(5100.0, 5200.0).known

    def test_the_fastest_answer_counts(self) -> None:
        """One that was under way for longer says less; one that cannot be is of a clock that was set."""
        clocks = self.clocks(5100.0, 5100.0, 0.0)
        for server in range(2):
            clocks.heard(server, 5200.0, sent=190.0, received=210.0)
        assert clocks.time(220.0) == 5220.0
        for server in range(2):
            clocks.heard(server, 5300.0, sent=290.0, received=299.0)
        assert clocks.time(300.0) == 5301.0
        for server in range(2):
            clocks.heard(server, 4000.0, sent=300.0, received=301.0)
        assert clocks.time(300.0) == 4000.0


def test_the_servers_time_is_asked_for_once(
    servers: list[Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first lock of a process asks for it, and all answers after that tell it."""
    asked: list[RedisStore] = []
    clock = RedisStore.clock

    async def noted(self: RedisStore) -> Reply:
        asked.append(self)
        return await clock(self)

    monkeypatch.setattr(RedisStore, "clock", noted)
    engine = open_quorum(urls(servers))
    with Locks(engine, wait=PATIENCE) as locks:
        locks.acquire("k").release()
        assert len(asked) == 3
        child = fork()
        if not child:
            status = 1
            try:
                for _ in range(3):
                    locks.acquire("k").release()
                status = len(asked) - 3
            finally:
                os._exit(status)
        assert os.waitpid(child, 0)[1] == 0


def test_waiters_queue_as_they_came_whatever_their_clocks_show(servers: list[Server]) -> None:
    """Of two processes, one of which counts its time from elsewhere, the first is the first."""
    engines = [open_quorum(urls(servers)) for _ in range(3)]
    try:
        for place, engine in enumerate(engines):
            ahead = (0.0, 10.0**6, -(10.0**6))[place]
            runtime = BlockingRuntime()
            runtime.now = lambda ahead=ahead: now() + ahead  # type: ignore[method-assign]
            store = engine.connect(runtime)
            claim = Claim(f"o{place}", store.process, 60.0, "")
            drive(store.acquire("k", claim, room=9))
        queue = drive(store.look("k")).state.queue
        assert [each.claim.owner for each in queue] == ["o1", "o2"]
    finally:
        for engine in engines:
            engine.close()


class TestWhatIsRemembered:
    """A process remembers of each acquisition what it has asked which server, until all is over."""

    def test_one_that_just_ends_is_forgotten(self) -> None:
        """A lease that is neither renewed nor released leaves nothing behind in its process."""
        engine = open_quorum([f"redis://127.0.0.1:{port}" for port in (1, 2, 3)])
        for number in range(10):
            engine.acquisition(Claim(f"o{number}", "p", TTL, ""), 100.0 + number)
        assert len(engine.acquisitions) == 10
        engine.acquisition(Claim("o9", "p", TTL, ""), 112.0)
        engine.acquisition(Claim("other", "p", TTL, ""), 120.0)
        assert set(engine.acquisitions) == {"o9", "other"}
        engine.close()

    def test_one_that_is_renewed_is_remembered(
        self, servers: list[Server], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Each renewal says for how long it is to be remembered from then on."""
        renew_often(monkeypatch)
        engine = open_quorum(urls(servers))
        with Locks(engine, ttl=PATIENCE) as locks, locks.hold("k") as lease:
            acquisition = engine.acquisitions[lease.owner]
            until = acquisition.forgotten_at
            eventually(lambda: acquisition.forgotten_at > until)
        assert not engine.acquisitions


def test_a_name_that_is_looked_up_for_ever_holds_nobody_up(
    servers: list[Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who needs all servers' answers goes on without that one's, and no more threads are left at it."""
    over = threading.Event()
    tried: list[Address] = []
    waited_for: list[Address] = []

    def connected_but_for_one(address: Address, *args: Any, **kwargs: Any) -> Any:
        if address.port != servers[2].port:
            return connected(address, *args, **kwargs)
        tried.append(address)
        if not over.wait(PATIENCE):
            waited_for.append(address)
        raise TimeoutError

    @contextmanager
    def opened_but_for_one(connection: Any) -> Iterator[Any]:
        connected_but_for_one(Address(connection.host, connection.port), connection).discard()
        yield connection

    monkeypatch.setattr("weblock.stores.redis.blocking.connected", connected_but_for_one)
    monkeypatch.setattr("weblock.stores.redis.asking.opened", opened_but_for_one)
    try:
        with Locks.from_url(urls(servers, timeout=1, connect_timeout=1), wait=PATIENCE) as locks:
            locks.acquire("k").release()
            before = len(tried)
            for _ in range(20):
                locks.acquire("k").release()
            assert len(tried) <= before + 2  # The keeper has connections of its own.
    finally:
        over.set()
    assert not waited_for


@needs_fork
def test_a_fork_while_it_connects_holds_nobody_up(
    servers: list[Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A child that is forked while connections are being made keeps the parent from nothing."""
    children: list[int] = []
    stay, leave = os.pipe()

    def connected_beside_a_fork(*args: Any, **kwargs: Any) -> Any:
        if len(children) >= 9:  # One that has to connect again and again needs no more of them.
            return connected(*args, **kwargs)
        child = fork()
        if child == 0:
            os.close(leave)
            select.select([stay], [], [], PATIENCE)
            os._exit(0)
        children.append(child)
        return connected(*args, **kwargs)

    monkeypatch.setattr("weblock.stores.redis.blocking.connected", connected_beside_a_fork)
    try:
        with Locks.from_url(urls(servers)) as locks:
            locks.acquire("k", wait=PATIENCE).release()
            assert children
            assert all(os.waitpid(child, os.WNOHANG) == (0, 0) for child in children)
    finally:
        os.close(leave)
        os.close(stay)
        for child in children:
            os.waitpid(child, 0)


class TestSplitVotes:
    """Answers of all servers that come to no majority are asked for again, while there is time."""

    async def test_a_fence_that_no_majority_would_take_is_agreed_on_again(
        self, servers: list[Server], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Servers whose lease has gone between two questions cost a round, and no error."""
        raise_fence = RedisStore.raise_fence
        refused: list[str] = []

        async def forgets(self: RedisStore, key: str, owner: str, fence: int) -> Reply:
            if len(refused) < 2:
                refused.append(owner)
                await self.force_release(key)
            return await raise_fence(self, key, owner, fence)

        async with AsyncLocks.from_url(urls(servers)) as locks:
            first = await locks.acquire("k")
            await first.release()
            # The fences of all three differ from now on.
            for number, server in enumerate(servers):
                with server.client() as client:
                    (name,) = client.keys("*:epoch")
                    client.hset(name, "fence", first.fence + 10**9 * (number + 1))
            monkeypatch.setattr(RedisStore, "raise_fence", forgets)
            lease = await locks.acquire("k", wait=0)
            assert refused
            assert lease.fence > first.fence
            await lease.release()


@pytest.mark.parametrize("api", [Locks, AsyncLocks])
@pytest.mark.parametrize("options", [{"limit": 2}, {"shared": True}], ids=["limit", "shared"])
def test_a_quorum_keeps_exclusive_leases_only(api: Any, options: dict[str, Any]) -> None:
    """What majorities cannot bound, or order by fences, is refused before any server is asked."""
    urls = [f"redis://{name}.invalid" for name in "abc"]
    with pytest.raises(ConfigurationError, match="cannot grant a key to several holders"):
        api.from_url(urls, **options)
