"""What a waiter that gives up can say of when to come again."""

import asyncio

import pytest

from weblock import AsyncLocks, LockTimeout
from weblock._core.acquiring import UNKNOWN_WAIT
from weblock._core.holding import Anchor, Terms
from weblock._core.keeping import Waiter
from weblock._core.ports import CheckAgain
from weblock._core.table import Claim, Waiting
from weblock._runtime.runtimes import BlockingRuntime, now


@pytest.mark.parametrize(
    ("seen", "hint"),
    [
        ([(3, 100.0)], 7.0),
        ([(3, 100.0), (3, 104.0)], 7.0),
        ([(3, 100.0), (1, 104.0)], 4.0),
        ([(1, 100.0), (0, 104.0)], 4.0),
        ([(1, 100.0), (5, 104.0), (4, 105.0)], 5.0),
    ],
)
def test_the_pace_of_a_queue_tells_when_it_is_ones_turn(seen, hint):
    """So many seconds for each place so far; the rest of the lease where nothing has moved."""
    runtime = BlockingRuntime()
    waiter = Waiter(
        "k",
        Claim("owner", "", 10.0, ""),
        Terms(10.0, None, True, 1000, ""),
        runtime=runtime,
        mailbox=runtime.mailbox(),
        locker=None,
        control=None,
        give_up_at=None,
    )
    for place, when in seen:
        waiter.waits(Waiting(place, when + 10.0, ()), Anchor(when, when))
    assert waiter.until_its_turn(7.0) == hint


async def test_who_gives_up_in_a_queue_that_moves_knows_its_place():
    """The hint comes of the pace that was seen, not of a lease that is renewed and renewed."""
    async with AsyncLocks.from_url("memory://pace", ttl=600) as locks:
        holder = await locks.acquire("x")
        others = [asyncio.create_task(locks.acquire("x", wait=None)) for _ in range(2)]
        await asyncio.sleep(0)
        patient = asyncio.create_task(locks.acquire("x", wait=300))
        while len((await locks.inspect("x")).waiters) < 3:  # noqa: ASYNC110 - the engine notifies nobody
            await asyncio.sleep(0.01)
        await holder.release()
        lease = await others[0]
        *_, place = locks._locker.keeper._kept.values()
        while place.waiting.position != 1:  # noqa: ASYNC110 - a heartbeat tells it
            await asyncio.sleep(0.01)
        place.give_up_at = now()
        place._mailbox.put(CheckAgain())
        with pytest.raises(LockTimeout) as refused:
            await patient
        await lease.release()
        await (await others[1]).release()
    assert refused.value.place == 1
    assert 0 < refused.value.retry_after < 60


async def test_the_rest_of_a_renewed_lease_is_no_hint():
    """It is how long the last caller waited, or a default. Only a lease without renewal has an end."""
    async with AsyncLocks.from_url("memory://hint", ttl=600) as locks:
        hints = []
        for renew in (False, True):
            lease = await locks.acquire("x")
            with pytest.raises(LockTimeout) as refused:
                await locks.acquire("x", wait=0, renew=renew)
            hints.append(refused.value.retry_after)
            if renew:
                waiter = asyncio.create_task(locks.acquire("x"))
                while not (await locks.inspect("x")).waiters:  # noqa: ASYNC110 - the engine notifies nobody
                    await asyncio.sleep(0)
            await lease.release()
        async with await waiter:
            with pytest.raises(LockTimeout) as refused:
                await locks.acquire("x", wait=0)
    assert 500 < hints[0] <= 600
    assert hints[1] == UNKNOWN_WAIT
    assert 0 < refused.value.retry_after < UNKNOWN_WAIT
