"""What happens to keys is told to observers, once each."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from tests.support.events import Heard
from tests.support.waiting import PATIENCE, eventually
from weblock import AsyncLocks, Attempts, Key, LeaseLost, LockTimeout
from weblock.events import Acquired, Forced, GaveUp, Lost, Refused, Released, TimedOut, Waiting


@pytest.fixture
def heard(locks) -> Heard:
    heard = Heard()
    locks.observe(heard.observer)
    return heard


def test_a_lease_is_told_from_its_beginning_to_its_end(locks, one, heard) -> None:
    """A free key is acquired without waiting, and released; both events say whose lease it was."""
    lease = one.do(locks.acquire, Key("item:{item_id}", item_id=7), label="web-1")
    one.do(lease.release)
    one.do(lease.release)
    assert heard.names == ["acquired", "released"]
    for event in heard:
        assert (event.engine, event.namespace) == (locks.engine, "default")
        assert (event.key, event.template) == ("item:7", "item:{item_id}")
        assert (event.label, event.fence) == ("web-1", lease.fence)
    (acquired,), (released,) = heard.of(Acquired), heard.of(Released)
    assert not acquired.handed_over
    assert acquired.waited >= 0
    assert released.held_for >= 0


@pytest.mark.promise("locks")
def test_a_waiter_is_told_when_it_comes_and_when_it_has_its_turn(locks, one, other, heard) -> None:
    """A caller that waits says so once, and then that the key was handed over to it."""
    lease = one.do(locks.acquire, "key")
    acquiring = other.begin(locks.acquire, "key", wait=60)
    eventually(lambda: heard.of(Waiting))
    one.do(lease.release)
    other.do(acquiring.result(PATIENCE).release)
    (came,) = heard.of(Waiting)
    assert (came.key, came.template, came.place) == ("key", None, 0)
    _, second = heard.of(Acquired)
    assert second.handed_over
    assert len(heard.of(Released)) == 2


@pytest.mark.promise("locks")
def test_callers_that_are_not_served_are_told(locks, one, other, heard) -> None:
    """A timeout, a queue that is full, and attempts that were in vain are one event each."""
    one.do(locks.acquire, "key", label="the holder")
    heard.clear()
    for options in ({"wait": 0.05}, {"wait": 0}, {"wait": 1, "max_waiters": 0}):
        with pytest.raises(LockTimeout):
            other.do(locks.acquire, "key", **options)
    with pytest.raises(LockTimeout):
        other.do(locks.acquire, "key", wait=Attempts(3, pause=0.01))
    assert heard.names == ["waiting", "timed_out", "timed_out", "refused", "timed_out"]
    waited, at_once, attempts = heard.of(TimedOut)
    assert (waited.wait, waited.place) == (0.05, 0)
    assert waited.waited >= 0.05
    assert (at_once.wait, at_once.place) == (0, None)
    assert attempts.waited >= 0.01
    assert {event.holder for event in heard} == {"the holder"}  # type: ignore[attr-defined]
    assert [event.waiters for event in heard.of(Refused)] == [0]


@pytest.mark.promise("several")
def test_events_name_a_holder_and_count_the_others(locks, api, heard) -> None:
    """Callers behind three readers are told of one and two others, and so is who takes the key from them."""
    *readers, writer = api.actors(4)
    leases = [each.do(locks.acquire, "key", shared=True, label="a reader") for each in readers]
    heard.clear()
    for options in ({"wait": 0.05}, {"wait": 1, "max_waiters": 0}):
        with pytest.raises(LockTimeout):
            writer.do(locks.acquire, "key", **options)
    writer.do(locks.force_release, "key")
    told = [*heard.of(Waiting), *heard.of(TimedOut), *heard.of(Refused), *heard.of(Forced)]
    assert [(each.holder, each.others) for each in told] == [("a reader", 2)] * 4
    for each, lease in zip(readers, leases, strict=True):
        with suppress(LeaseLost):
            each.do(lease.release)


@pytest.mark.promise("locks")
def test_a_lease_that_is_taken_away_is_told_as_lost(locks, one, other, heard) -> None:
    """A lease that was lost is told of with the reason, once, and never as released."""
    lease = one.do(locks.acquire, "key", ttl=60, renew=False)
    other.do(locks.force_release, "key", by="an operator")
    with pytest.raises(LeaseLost):
        one.do(lease.release)
    assert heard.names == ["acquired", "forced", "lost"]
    (lost,) = heard.of(Lost)
    assert (lost.fence, lost.reason) == (lease.fence, "taken")


@pytest.mark.promise("locks")
async def test_a_waiter_that_is_cancelled_is_told(url, probe) -> None:
    """A caller that was cancelled while it waited has given up, and nothing else is told of it."""
    heard = Heard()
    lease = probe.acquire("key")
    async with AsyncLocks.from_url(url, observers=[heard.observer]) as locks:
        acquiring = asyncio.ensure_future(locks.acquire("key", wait=60))
        await asyncio.to_thread(eventually, lambda: heard.of(Waiting))
        acquiring.cancel()
        with pytest.raises(asyncio.CancelledError):
            await acquiring
    lease.release()
    assert heard.names == ["waiting", "gave_up"]
    (event,) = heard.of(GaveUp)
    assert (event.key, event.place) == ("key", 0)


def test_ping(locks, one) -> None:
    """An engine that answers is pinged in no time, and needs no key for it."""
    assert 0 <= one.do(locks.ping) < 60
