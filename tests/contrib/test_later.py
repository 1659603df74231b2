"""The timers of the request layer: cheap, a little late, and gone when they are cancelled."""

import asyncio
import gc
import weakref

import pytest

from weblock.contrib.asgi.later import TICK, call_later

from .waiting import eventually


@pytest.mark.parametrize("seconds", [0.0, TICK, 2.5 * TICK])
async def test_a_call_comes_once_and_not_early(seconds):
    """It comes when its time has passed, and no second time."""
    loop = asyncio.get_running_loop()
    began, calls = loop.time(), []
    call_later(seconds, lambda: calls.append(loop.time() - began))
    last = asyncio.Event()
    call_later(seconds + 2 * TICK, last.set)
    await eventually(last.is_set)
    (came_after,) = calls
    assert came_after >= seconds - time_resolution()


def time_resolution() -> float:
    """How much earlier than asked the loop's own timers may be."""
    return 0.001


@pytest.mark.parametrize("seconds", [TICK / 2, TICK, 2 * TICK])
async def test_one_that_is_cancelled_does_not_come(seconds):
    """Nor does it after a second ``cancel``, and others that are due with it do."""
    calls, other = [], asyncio.Event()
    later = call_later(seconds, lambda: calls.append(1))
    call_later(seconds, other.set)
    later.cancel()
    later.cancel()
    await eventually(other.is_set)
    assert calls == []


async def test_one_may_cancel_another_that_is_due_with_it():
    """Of two that are due in one tick and cancel each other, just one comes."""
    calls, laters = [], {}
    for name, other in (("a", "b"), ("b", "a")):

        def call(name=name, other=other):
            calls.append(name)
            laters[other].cancel()

        laters[name] = call_later(TICK, call)
    await eventually(lambda: calls)
    last = asyncio.Event()
    call_later(2 * TICK, last.set)
    await eventually(last.is_set)
    assert len(calls) == 1


async def test_a_call_may_set_the_next():
    """What is set while others are called comes too."""
    done = asyncio.Event()
    call_later(TICK, lambda: call_later(TICK, done.set))
    await eventually(done.is_set)


def test_a_loop_that_was_closed_is_not_kept():
    """Nothing of an event loop is left when it has gone, though something was pending."""

    async def set_one():
        call_later(60, lambda: None)
        return weakref.ref(asyncio.get_running_loop())

    loop = asyncio.run(set_one())
    gc.collect()
    assert loop() is None
