"""What engines share to reach a server: a pool, a listener, silence, pauses, and words for errors."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.support.waiting import PATIENCE, eventually
from weblock.stores.transport.failures import LONG, Backoff, Silence, Unfit, explained
from weblock.stores.transport.listener import Listener
from weblock.stores.transport.pool import LoopPool, LoopPools, Pool


class Answer(Exception):
    """An error with which a server answers."""


class Line:
    """A connection."""

    def __init__(self) -> None:
        self.ours, self.servers = socket.socketpair()
        self.fileno = self.ours.fileno
        self.settles = asyncio.Event()

    async def settled(self) -> None:
        await self.settles.wait()

    @property
    def closed(self) -> bool:
        return self.fileno() < 0

    def close(self) -> None:
        self.ours.close()


class Server:
    """Accepts connections while it has ``room``."""

    def __init__(self) -> None:
        self.lines: list[Line] = []
        self.room = 9

    def connect(self) -> Line:
        if len(self.lines) >= self.room:
            raise ConnectionRefusedError("it has too many")
        self.lines.append(Line())
        return self.lines[-1]

    async def connect_in_loop(self) -> Line:
        await asyncio.sleep(0)
        return self.connect()


@pytest.fixture
def server() -> Iterator[Server]:
    """A server, whose connections are closed at the end."""
    server = Server()
    yield server
    for line in server.lines:
        line.close()
        line.servers.close()


def silence() -> Silence:
    return Silence(explained, timeout=60, answers=(Answer,))


def pool_of(server: Server, room: int = 2, patience: float = PATIENCE) -> Pool[Line]:
    return Pool(server.connect, silence(), room=room, patience=patience)


def raises(error: Exception) -> Callable[[Line], None]:
    def work(_line: Line) -> None:
        raise error

    return work


class TestPool:
    """Connections for threads."""

    def test_a_connection_is_used_again(self, server: Server) -> None:
        """One that was answered, be it by an error, serves the next caller."""
        pool = pool_of(server)
        first = pool.use(lambda line: line)
        with pytest.raises(Answer):
            pool.use(raises(Answer()))
        assert pool.use(lambda line: line) is first

    def test_one_in_doubt_is_closed(self, server: Server) -> None:
        """After any other error a reply may still come, which would be taken for another's."""
        pool = pool_of(server)
        pool.use(lambda _line: pool.use(lambda _line: None))
        with pytest.raises(ValueError, match="in doubt"):
            pool.use(raises(ValueError("in doubt")))
        assert [line.closed for line in server.lines] == [True, False]
        with pytest.raises(TimeoutError):
            pool.use(raises(TimeoutError()))
        assert all(line.closed for line in server.lines)

    def test_one_that_the_server_has_ended_is_replaced(self, server: Server) -> None:
        """A caller does not send its request to nobody."""
        pool = pool_of(server)
        pool.use(lambda line: line).servers.close()
        assert pool.use(lambda line: line) is server.lines[1]
        assert server.lines[0].closed

    def test_a_caller_in_vain(self, server: Server) -> None:
        """Whoever gets none learns why: all are in use, or the server is silent."""
        pool = pool_of(server, room=1, patience=0.0)
        with pytest.raises(Unfit, match="did not answer"):
            pool.use(lambda _line: pool.use(lambda _line: None))
        pool.use(lambda _line: None)
        with pytest.raises(Unfit, match="all 1 connections are in use: raise max_connections"):
            pool.use(lambda _line: pool.use(lambda _line: None))

    def test_the_keeper_waits_for_no_caller(self, server: Server) -> None:
        """It has a connection of its own, however many callers there are."""
        pool = pool_of(server, room=1)
        mine = pool.use(lambda _line: pool.use_first(lambda line: line))
        assert mine is server.lines[1]
        assert pool.use_first(lambda line: line) is mine

    @pytest.mark.parametrize("at_work", [False, True])
    def test_the_keeper_borrows(self, server: Server, *, at_work: bool) -> None:
        """Where none can be opened, it gets the next of the callers, ahead of them."""
        pool, goes_on = pool_of(server, room=1), threading.Event()
        server.room = 1
        pool.use(lambda _line: None)
        with ThreadPoolExecutor() as threads:
            if at_work:
                threads.submit(pool.use, lambda _line: goes_on.wait(PATIENCE))
                eventually(lambda: not pool._idle)
            borrows = threads.submit(pool.use_first, lambda line: line)
            eventually(lambda: borrows.done() or pool._wanted)
            goes_on.set()
            assert borrows.result(PATIENCE) is server.lines[0]
        assert pool.use(lambda line: line) is server.lines[0]

    def test_a_keeper_without_any(self, server: Server) -> None:
        """It gets the error of its own attempt."""
        server.room = 0
        with pytest.raises(ConnectionRefusedError):
            pool_of(server).use_first(lambda _line: None)

    def test_closing(self, server: Server) -> None:
        """Those in use are closed when they come back, and no more are opened."""
        pool = pool_of(server)
        pool.use_first(lambda _line: None)
        pool.use(lambda _line: pool.close())
        assert all(line.closed for line in server.lines)
        for use in (pool.use, pool.use_first):
            with pytest.raises(Unfit, match="it was closed"):
                use(lambda _line: None)


async def _answered(_line: Line) -> str:
    return "answer"


class TestLoopPool:
    """Connections for the tasks of an event loop."""

    async def test_as_many_as_there_is_room(self, server: Server) -> None:
        """Tasks get their turn in order, and those that gave up are passed over."""
        pool, order = LoopPool(server.connect_in_loop, silence(), room=2, patience=PATIENCE), []
        goes_on = asyncio.Event()

        async def work(line: Line) -> Line:
            order.append(line)
            await goes_on.wait()
            return line

        tasks = [asyncio.create_task(pool.use(work)) for _ in range(6)]
        await asyncio.to_thread(eventually, lambda: len(order) == 2)
        tasks[3].cancel()
        goes_on.set()
        used = await asyncio.gather(*tasks, return_exceptions=True)
        assert isinstance(used.pop(3), asyncio.CancelledError)
        assert len(order) == 5
        assert set(used) == set(server.lines)
        assert len(server.lines) == 2
        pool.close()
        assert all(line.closed for line in server.lines)

    async def test_a_cancelled_caller_leaves_its_connection(self, server: Server) -> None:
        """It serves the next caller when it has settled."""
        pool = LoopPool(server.connect_in_loop, silence(), room=1, patience=PATIENCE)
        begun, never = asyncio.Event(), asyncio.Event()

        async def work(_line: Line) -> None:
            begun.set()
            await never.wait()

        async def which(line: Line) -> Line:
            return line

        task = asyncio.create_task(pool.use(work))
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        following = asyncio.create_task(pool.use(which))
        await asyncio.sleep(0)
        assert not following.done()
        server.lines[0].settles.set()
        assert [await following] == server.lines
        pool.close()

    async def test_the_keeper_gets_the_next(self, server: Server) -> None:
        """It comes ahead of all that wait, and opens none."""
        pools = LoopPools(server.connect_in_loop, silence(), room=1, patience=PATIENCE)
        goes_on, order = asyncio.Event(), []

        async def work(line: Line) -> None:
            order.append("caller")
            await goes_on.wait()

        async def keep(line: Line) -> None:
            order.append("keeper")

        callers = [asyncio.create_task(pools.use(work)) for _ in range(2)]
        await asyncio.to_thread(eventually, lambda: order)
        keeper = asyncio.create_task(asyncio.to_thread(pools.use_first, keep))
        (pool,) = pools._loops.all()
        await asyncio.to_thread(eventually, lambda: len(pool._waiters) == 2)
        goes_on.set()
        await asyncio.gather(keeper, *callers)
        assert order == ["caller", "keeper", "caller"]
        assert len(server.lines) == 1
        pools.close()
        with pytest.raises(Unfit, match="it was closed"):
            await pools.use(work)

    async def test_a_cancellation_that_the_work_swallows_still_ends_it(
        self, server: Server
    ) -> None:
        """``asyncio.wait_for``, in some drivers, drops a cancellation that comes together with the result."""
        pool = LoopPool(server.connect_in_loop, silence(), room=1, patience=PATIENCE)
        asked = asyncio.Event()

        async def swallow(_line: Line) -> str:
            asked.set()
            try:
                await asyncio.sleep(PATIENCE)
            except asyncio.CancelledError:
                pass
            return "answer"

        task = asyncio.create_task(pool.use(swallow))
        await asked.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        pool.close()

    async def test_a_full_server_makes_callers_share_what_they_have(self, server: Server) -> None:
        """Where it takes no more connections, a caller gets the next that comes back."""
        server.room = 2
        pool = LoopPool(server.connect_in_loop, silence(), room=9, patience=PATIENCE)

        async def work(line: Line) -> Line:
            await asyncio.sleep(0)
            return line

        used = await asyncio.gather(*[pool.use(work) for _ in range(20)])
        assert set(used) == set(server.lines)
        assert len(server.lines) == 2
        pool.close()

    def test_the_keeper_is_served_by_a_loop_that_runs(self, server: Server) -> None:
        """A loop that is busy for long does not keep it from the connection of another."""
        pools: LoopPools[Line] = LoopPools(
            server.connect_in_loop, silence(), room=1, patience=PATIENCE
        )
        go_on, ready = threading.Event(), threading.Barrier(3)

        async def use_and_keep(*, busy: bool) -> None:
            await pools.use(_answered)
            ready.wait(PATIENCE)
            if busy:
                go_on.wait(PATIENCE)  # Which stops its loop.
            else:
                await asyncio.to_thread(go_on.wait, PATIENCE)

        with ThreadPoolExecutor() as threads:
            for busy in (True, False):
                threads.submit(asyncio.run, use_and_keep(busy=busy))
            ready.wait(PATIENCE)
            try:
                assert pools.use_first(_answered) == "answer"
            finally:
                go_on.set()

    async def test_no_loop_to_borrow_of(self, server: Server) -> None:
        """The keeper is told."""
        pools = LoopPools(server.connect_in_loop, silence(), room=1, patience=PATIENCE)
        with pytest.raises(Unfit, match="no event loop has a connection"):
            await asyncio.to_thread(pools.use_first, server.connect_in_loop)

    def test_a_loop_that_ends_takes_its_connections_along(self, server: Server) -> None:
        """``asyncio.run`` leaves none open."""
        pools = LoopPools(server.connect_in_loop, silence(), room=1, patience=PATIENCE)

        async def work(line: Line) -> Line:
            return line

        async def use() -> Line:
            return await pools.use(work)

        for _ in range(2):
            assert asyncio.run(use()).closed

    async def test_those_that_wait_are_told_of_the_end(self, server: Server) -> None:
        """It is no cancellation."""
        pool, begun = LoopPool(server.connect_in_loop, silence(), room=1, patience=60), []

        async def work(line: Line) -> None:
            begun.append(line)
            await goes_on.wait()

        goes_on = asyncio.Event()
        tasks = [asyncio.create_task(pool.use(work)) for _ in range(2)]
        await asyncio.to_thread(eventually, lambda: begun)
        pool.close()
        goes_on.set()
        _, told = await asyncio.gather(*tasks, return_exceptions=True)
        assert isinstance(told, Unfit)
        assert begun[0].closed


class TestSilence:
    """A server that does not answer."""

    def test_each_caller_does_not_wait_for_it_anew(
        self, server: Server, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The first to notice tells the next, for a moment."""
        monkeypatch.setattr("weblock.stores.transport.failures.LATELY", PATIENCE)
        pool = pool_of(server)
        with pytest.raises(TimeoutError):
            pool.use(raises(TimeoutError("no answer")))
        with pytest.raises(Unfit, match="did not answer"):
            pool.use(lambda _line: None)

    @pytest.mark.parametrize("error", [OSError("unreachable"), Answer("no table")])
    def test_an_attempt_to_connect_that_took_long(
        self, error: Exception, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Counts as silence, unless the server has answered."""
        now, known = 0.0, silence()
        monkeypatch.setattr("weblock.stores.transport.failures.time.monotonic", lambda: now)

        def fail() -> None:
            nonlocal now
            with known.connecting():
                now += LONG
                raise error

        with pytest.raises(type(error)):
            fail()
        if isinstance(error, Answer):
            with known.connecting():
                pass
        else:
            with pytest.raises(Unfit, match="unreachable"), known.connecting():
                pass


class TestListener:
    """The thread that listens."""

    def test_it_connects_again_until_it_is_closed(self, server: Server) -> None:
        """A lost connection is replaced, and closing does not wait for the server."""
        heard: list[bytes] = []

        def hear(line: Line) -> None:
            while message := line.ours.recv(9):
                heard.append(message)
            raise ConnectionResetError

        listener = Listener(server.connect, hear, lost=())
        listener.start()
        eventually(lambda: len(server.lines) == 1)
        server.lines[0].servers.send(b"one")
        eventually(lambda: heard == [b"one"])
        listener.hang_up()
        eventually(lambda: len(server.lines) == 2)
        server.lines[1].servers.send(b"two")
        eventually(lambda: heard == [b"one", b"two"])
        listener.close(PATIENCE)
        assert all(line.closed for line in server.lines)


def test_pauses_grow_and_are_spread() -> None:
    """Up to the longest, and from the first again after a success."""
    random = iter([0.0, 1.0, 0.0, 1.0, 0.5])
    backoff = Backoff(1, 3, jitter=lambda: next(random))
    assert [backoff.next() for _ in range(4)] == [0.5, 2.0, 1.5, 3.0]
    backoff.reset()
    assert backoff.next() == 0.75


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ValueError("disk\n full"), "it cannot write (disk full): make room"),
        (Answer("x"), "ask again"),
        (Unfit("too old: upgrade it"), "too old: upgrade it"),
        (TimeoutError(), "it did not answer within 2 s"),
        (OSError(), "OSError"),
    ],
)
def test_errors_in_words(error: Exception, words: str) -> None:
    """By a part of the text, or by the type; else by the text itself."""
    meanings = (("full", "it cannot write ({text}): make room"), (Answer, "ask again"))
    assert explained(error, meanings, timeout=2) == words
