"""What becomes of leases that nobody refers to any more."""

from __future__ import annotations

import asyncio
import gc
import logging
import warnings
from collections.abc import Callable, Iterator

import pytest

from tests.support.events import Heard
from tests.support.renewals import renewed
from tests.support.waiting import eventually
from weblock import Lease


@pytest.mark.promise("locks")
def test_a_lease_that_was_forgotten_is_given_back(locks, one, other, caplog) -> None:
    """A lease that nobody refers to is released, though its process lives, and its key is named."""
    _acquire_and_forget(locks, one)
    lease = other.do(locks.acquire, "forgotten", ttl=60, wait=30)
    other.do(lease.release)
    said = [record.message for record in caplog.records if record.levelno == logging.ERROR]
    assert any("forgotten" in each and "no longer referenced" in each for each in said)


def _acquire_and_forget(locks, one) -> None:
    lease = one.do(locks.acquire, "forgotten", ttl=60)
    assert lease.held
    del lease
    _forget(one)


def _forget(actor) -> None:
    actor.do(str)  # It may keep what it was returned last.
    actor.kept.clear()
    gc.collect()


@pytest.mark.of_core
@pytest.mark.promise("locks")
def test_a_lease_is_kept_while_somebody_has_it(locks, one, waiting) -> None:
    """A lease in anybody's hands is renewed, and so is that of a block whose lease nobody names."""
    held = [one.do(locks.acquire, f"held:{number}", ttl=60) for number in range(3)]
    gc.collect()
    for lease in held:
        renewed(locks, lease)
    gc.collect()
    assert all(lease.held for lease in held)
    for lease in held:
        one.do(lease.release)


@pytest.mark.of_core
@pytest.mark.promise("locks")
def test_a_lease_that_is_to_end_by_itself_may_be_dropped(locks, one, waiting) -> None:
    """Without renewal a lease lasts its ttl, whether or not somebody refers to it."""
    one.do(locks.acquire, "a while", ttl=60, renew=False)
    _forget(one)
    one.do(one.do(locks.acquire, "other").release)
    assert waiting("a while") == 0


@pytest.mark.of_core
def test_a_forgotten_lease_is_warned_of(api, url, one) -> None:
    """Python's own warning for what was not closed names the key."""
    if api.name == "asyncio":
        pytest.skip("the warning is the keeper's, whichever API the lease was of")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        locks = api.open(url)
        _acquire_and_forget(locks, one)
        # There may be warnings of what other tests have left, too.
        eventually(lambda: any("'forgotten'" in str(each.message) for each in caught))
    said = [each.category for each in caught if "'forgotten'" in str(each.message)]
    assert said == [ResourceWarning]
    api.shut(locks)


@pytest.mark.of_core
@pytest.mark.promise("locks")
def test_the_result_of_a_task_is_no_owner(locks, one, other, api) -> None:
    """A lease that a task returned is forgotten with the task's result."""
    if api.name == "sync":
        pytest.skip("threads return nothing")

    async def forget() -> None:
        await asyncio.wait_for(asyncio.ensure_future(locks.acquire("result", ttl=60)), 30)

    one.do(forget)
    _forget(one)
    lease = other.do(locks.acquire, "result", wait=30)
    other.do(lease.release)


@pytest.mark.of_core
def test_a_lease_that_a_generator_has_given_back_is_not_released_again(probe) -> None:
    """The collector ends a generator whose block has released its lease, or handed it over."""
    heard = Heard()
    stop = probe.observe(heard.observer)

    def section(end: Callable[[Lease], object]) -> Iterator[list[object]]:
        itself: list[object] = []
        with probe.acquire("given back", ttl=60) as lease:
            end(lease)
            yield itself

    for end in (Lease.release, Lease.hand_over):
        generator = section(end)
        next(generator).append(generator)  # Only the collector ends what refers to itself.
        del generator
        gc.collect()
    probe.force_release("given back")
    eventually(lambda: "forced" in heard.names)
    stop()
    assert heard.names == ["acquired", "released", "acquired", "handed_over", "forced"]
