"""Requests to several servers at once, with both APIs: what is waited for, and what is not."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.servers import Server
from tests.support.waiting import PATIENCE, eventually
from weblock import Locks
from weblock._core.ports import sent
from weblock._runtime.runtimes import drive
from weblock.stores.redis.asking import Health
from weblock.stores.transport.sending import in_tasks, in_this_thread

DOWN = ConnectionError("it is down")


def never() -> bool:
    return False


async def test_those_that_are_not_waited_for_go_on() -> None:
    """When there is enough, or the caller is cancelled, the others come to their end behind it."""
    at_once, go_on, ended = in_tasks, asyncio.Event(), asyncio.Event()

    async def quick() -> None:
        await asyncio.sleep(0)

    async def slow() -> None:
        await go_on.wait()
        ended.set()

    await at_once([quick(), slow()], lambda: True)
    assert not ended.is_set()
    go_on.set()
    await ended.wait()
    go_on, ended = asyncio.Event(), asyncio.Event()
    caller = asyncio.create_task(at_once([slow()], never))
    await asyncio.sleep(0)
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    go_on.set()
    await ended.wait()


@pytest.mark.parametrize("rests", [False, True])
async def test_an_error_of_one_request_reaches_the_caller(rests: bool) -> None:
    """None should raise; one that does is a bug, which is not hidden."""

    async def broken() -> None:
        if rests:
            await asyncio.sleep(0)
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        await in_tasks([broken()], never)


class TestInThisThread:
    """The blocking API sends all requests, and then collects replies."""

    @pytest.fixture
    def pairs(self) -> Iterator[list[tuple[socket.socket, socket.socket]]]:
        """Connections, each as its client and as its server have it."""
        with ExitStack() as stack:
            pairs = [socket.socketpair() for _ in range(3)]
            for each in pairs:
                stack.enter_context(each[0])
                stack.enter_context(each[1])
            yield pairs

    def test_all_are_sent_before_a_reply_is_awaited(
        self, pairs: list[tuple[socket.socket, socket.socket]]
    ) -> None:
        """The last server may answer first, and one that answers in parts is awaited."""
        events: list[str] = []

        async def request(number: int, parts: int) -> None:
            client, server = pairs[number]
            events.append(f"{number} sent")
            if number == 2:  # All have been sent.
                for _, each in reversed(pairs):
                    each.send(b"ab")
            for _ in range(parts):
                await sent(client.fileno(), time.monotonic() + PATIENCE)
                client.recv(1)
            events.append(f"{number} answered")
            del server

        requests = [request(0, 2), request(1, 1), request(2, 1)]
        drive(in_this_thread(requests, never))
        assert events[:3] == ["0 sent", "1 sent", "2 sent"]
        assert sorted(events[3:]) == ["0 answered", "1 answered", "2 answered"]
        assert events[-1] == "0 answered"

    def test_one_that_is_not_needed_is_closed(
        self, pairs: list[tuple[socket.socket, socket.socket]]
    ) -> None:
        """With enough answers, a silent server is not awaited."""
        ended: list[str] = []

        async def quick() -> None:
            ended.append("quick")

        async def silent() -> None:
            try:
                await sent(pairs[0][0].fileno(), time.monotonic() + PATIENCE)
            except GeneratorExit:
                ended.append("closed")
                raise

        async def answered() -> None:
            pairs[1][1].send(b"a")
            await sent(pairs[1][0].fileno(), time.monotonic() + PATIENCE)

        drive(in_this_thread([quick(), silent(), answered()], lambda: True))
        assert ended == ["quick", "closed"]

    def test_one_that_would_block_continues_in_a_thread(self) -> None:
        """What takes long, such as connecting, holds up no other request."""
        threads: list[threading.Thread] = []
        others = threading.Event()

        async def connects() -> None:
            await sent(None, time.monotonic() + PATIENCE)
            threads.append(threading.current_thread())
            assert others.wait(PATIENCE)

        async def other() -> None:
            others.set()

        drive(in_this_thread([connects(), other()], never))
        assert threads
        assert threads != [threading.current_thread()]

    def test_an_interrupt_ends_all(self, pairs: list[tuple[socket.socket, socket.socket]]) -> None:
        """What a signal handler raises leaves no request suspended."""
        closed: list[int] = []

        async def request(number: int) -> None:
            try:
                await sent(pairs[number][0].fileno(), time.monotonic() + PATIENCE)
            finally:
                closed.append(number)

        async def interrupted() -> None:
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            drive(in_this_thread([request(0), request(1), interrupted()], never))
        assert closed == [0, 1]


class TestHealth:
    """Whether a server is worth asking."""

    def test_one_that_is_down_is_skipped_until_it_answers_a_knock(self) -> None:
        """No caller waits for it, and a thread asks again and again."""
        knocks: list[int] = []
        back = threading.Event()

        def knock(server: int) -> None:
            knocks.append(server)
            if not back.is_set():
                raise ConnectionError

        health: Health[int] = Health(knock)
        health.failed(1, DOWN, sent=100.0)
        assert health.failures == {1: DOWN}
        eventually(lambda: len(knocks) > 1)
        assert health.failures == {1: DOWN}
        back.set()
        eventually(lambda: not health.failures)
        assert set(knocks) == {1}

    def test_one_that_answers_others_is_slow_and_not_down(self) -> None:
        """A request that was not answered in time says nothing if a later answer has come."""
        health: Health[int] = Health(lambda _server: None)
        health.answered_at[0] = 100.1
        health.failed(0, DOWN, sent=100.0)
        assert not health.failures

    def test_requests_that_fail_together_are_one_failure(self) -> None:
        """Of many that were under way when a server failed, one starts to knock."""
        knocks = []
        go_on = threading.Event()

        def knock(server: int) -> None:
            knocks.append(server)
            go_on.wait(PATIENCE)

        health: Health[int] = Health(knock)
        for _ in range(100):
            health.failed(0, DOWN, sent=100.0)
        eventually(lambda: bool(knocks))
        go_on.set()
        eventually(lambda: not health.failures)
        assert knocks == [0]

    def test_a_closed_engine_knocks_no_longer(self) -> None:
        """Nothing goes on in the background of an engine that has been closed."""
        health: Health[int] = Health(lambda _server: None)
        health.close()
        health.failed(0, DOWN, sent=100.0)
        assert not health.failures


def test_a_reply_that_comes_late_is_dropped() -> None:
    """A server that is slower than the others keeps its connection, and no reply is taken for another."""
    with ExitStack() as stack:
        servers = [stack.enter_context(Server()) for _ in range(3)]
        urls = [each.url(recovery="off", timeout=PATIENCE) for each in servers]
        with Locks.from_url(urls, ttl=60) as locks:
            locks.acquire("a").release()
            before = servers[2].command("INFO", "stats")["total_connections_received"]
            servers[2].stop()
            leases = [locks.acquire(key) for key in "abc"]
            servers[2].cont()
            for lease in leases:
                lease.release()
            assert not locks.list()
            after = servers[2].command("INFO", "stats")["total_connections_received"]
            assert after <= before + 2  # That of the test, and the keeper's.


def test_a_request_that_connects_for_too_long_asks_nothing() -> None:
    """Its caller has given up, and perhaps released: it may not acquire any more."""
    connected, over = threading.Event(), threading.Event()
    asked = []

    async def request() -> None:
        try:
            await sent(None, time.monotonic())
            connected.wait(PATIENCE)
            await sent(0, time.monotonic() + PATIENCE)
            asked.append(1)
        finally:
            over.set()

    drive(in_this_thread([request()], never))
    connected.set()
    assert over.wait(PATIENCE)
    assert not asked
