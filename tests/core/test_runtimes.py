"""The two runtimes: driving coroutines, and mailboxes."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from weblock._core.ports import CheckAgain, Granted
from weblock._runtime import runtimes
from weblock._runtime.runtimes import AsyncioRuntime, BlockingRuntime, drive


def test_drive_refuses_a_suspension() -> None:
    """A coroutine that suspends is a bug in the blocking world: it is closed, and it is said."""
    closed = []

    async def suspending() -> None:
        try:
            await asyncio.sleep(0)
        finally:
            closed.append(True)

    with pytest.raises(RuntimeError, match="suspended"):
        drive(suspending())
    assert closed == [True]


class Listener:
    """One mailbox of either runtime, heard from a test that is a coroutine."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self.mailbox = (BlockingRuntime() if kind == "blocking" else AsyncioRuntime()).mailbox()

    async def heard(self, timeout: float | None) -> object:
        if self._kind == "asyncio":
            return await self.mailbox.heard(timeout)
        return await asyncio.to_thread(drive, self.mailbox.heard(timeout))


@pytest.fixture(params=["blocking", "asyncio"])
async def listener(request: pytest.FixtureRequest) -> Listener:
    return Listener(request.param)


async def test_rung_before(listener: Listener) -> None:
    """What was put in before anybody listened is heard at once, in order."""
    listener.mailbox.put(Granted(1, 2.0))
    listener.mailbox.put(CheckAgain())
    assert await listener.heard(None) == Granted(1, 2.0)
    assert await listener.heard(None) == CheckAgain()


async def test_rung_while_waiting(listener: Listener) -> None:
    """A listener is woken by another thread."""
    hearing = asyncio.create_task(listener.heard(None))
    await asyncio.sleep(0.02)
    await asyncio.to_thread(listener.mailbox.put, Granted(1, 2.0))
    assert await asyncio.wait_for(hearing, 30) == Granted(1, 2.0)


async def test_nothing_heard(listener: Listener) -> None:
    """Where nothing is put in, the whole time passes, and then there is nothing."""
    began = runtimes.now()
    assert await listener.heard(0.1) is None
    assert runtimes.now() - began >= 0.099


@pytest.mark.parametrize("timeout", [0, -1])
async def test_no_time_to_listen(listener: Listener, timeout: float) -> None:
    """Without time, what is there is heard, and nothing is waited for."""
    assert await listener.heard(timeout) is None
    listener.mailbox.put(CheckAgain())
    assert await listener.heard(timeout) == CheckAgain()


async def test_an_echo_is_no_message(listener: Listener) -> None:
    """A message that is heard before its loop was woken for it does not cut the next wait short."""
    ringer = threading.Thread(target=listener.mailbox.put, args=(CheckAgain(),))
    ringer.start()
    ringer.join()
    assert await listener.heard(5) == CheckAgain()
    began = runtimes.now()
    assert await listener.heard(0.1) is None
    assert runtimes.now() - began >= 0.099


async def test_many_ringers(listener: Listener) -> None:
    """Every message of many threads is heard, each once."""

    def notification(number: int) -> None:
        for count in range(100):
            listener.mailbox.put(Granted(number * 100 + count, 0.0))

    threads = [threading.Thread(target=notification, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    heard = [await listener.heard(30) for _ in range(400)]
    assert sorted(message.fence for message in heard) == list(range(400))
    assert await listener.heard(0) is None


async def test_a_cancelled_listener_loses_nothing() -> None:
    """A message that was put in as the listener was cancelled is still there."""
    mailbox = AsyncioRuntime().mailbox()
    hearing = asyncio.create_task(mailbox.heard(None))
    await asyncio.sleep(0)
    mailbox.put(CheckAgain())
    hearing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await hearing
    assert await mailbox.heard(0) == CheckAgain()


def test_a_mailbox_of_a_closed_loop() -> None:
    """A message for a loop that has ended harms nobody."""

    async def make() -> object:
        return AsyncioRuntime().mailbox()

    asyncio.run(make()).put(CheckAgain())


def test_owners_are_secret() -> None:
    """Each owner is 128 bits that nobody had before."""
    owners = {runtimes.new_owner() for _ in range(1000)}
    assert len(owners) == 1000
    assert {len(bytes.fromhex(owner)) for owner in owners} == {16}


def test_another_context_of_a_thread_is_part_of_the_same_work_only() -> None:
    """In one thread, a part of another request is another flow; two parts of one request are the same."""
    request, other = runtimes.Flow(), runtimes.Flow()
    request.within = other.within = None
    contexts = [contextvars.Context() for _ in range(4)]
    for context, work in zip(contexts, (request, request, other), strict=False):
        context.run(runtimes.part_of.set, work)
    flow = contexts[0].run(runtimes.control)
    found = [context.run(runtimes.is_part_of, flow) for context in contexts]
    assert found == [True, True, False, False]
    assert contexts[0].copy().run(runtimes.is_part_of, flow)


def test_a_loop_goes_on_before_its_thread_in_every_context() -> None:
    """A coroutine that another thread has sent to the loop would stop the thread that runs the loop."""
    mine = runtimes.control()
    with ThreadPoolExecutor(1) as another:
        theirs = another.submit(runtimes.control).result()

    async def main() -> list[bool]:
        return await asyncio.create_task(asked(), context=contextvars.Context())

    async def asked() -> list[bool]:
        return [runtimes.waits_for_this_loop(flow) for flow in (mine, theirs)]

    assert asyncio.run(main()) == [True, False]
    assert not runtimes.waits_for_this_loop(mine)
