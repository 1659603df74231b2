"""Several keys at once: all or none, and never a deadlock."""

from __future__ import annotations

import pytest

from tests.support.renewals import hurry
from tests.support.waiting import PATIENCE, eventually
from weblock import AlreadyHeld, LeaseLost, LockTimeout

pytestmark = pytest.mark.promise("locks")


def test_all_are_held_and_all_are_released(locks, one, waiting) -> None:
    """A lease of three keys holds each of them, and gives back each of them."""
    lease = one.do(locks.acquire, "c", "a", "b", "a")
    assert lease.keys == ("a", "b", "c")
    assert set(lease.fences) == {"a", "b", "c"}
    assert [waiting(key) for key in "abc"] == [0, 0, 0]
    one.do(lease.release)
    assert [waiting(key) for key in "abc"] == [None, None, None]


@pytest.mark.parametrize("wait", [0, 0.2])
def test_none_is_held_where_one_is_busy(locks, one, other, waiting, wait: float) -> None:
    """Where one key is not to be had, none is kept."""
    one.do(locks.acquire, "b")
    with pytest.raises(LockTimeout) as refused:
        other.do(locks.acquire, "a", "b", "c", wait=wait)
    assert refused.value.key == "b"
    assert [waiting(key) for key in "abc"] == [None, 0, None]


def test_opposite_orders_do_not_deadlock(locks, api) -> None:
    """Those who name the same keys in opposite orders all get through."""
    orders = [("a", "b", "c"), ("c", "b", "a")] * 4
    calls = [
        actor.begin(api.section, locks, *order, body=lambda lease: lease.keys, wait=PATIENCE)
        for actor, order in zip(api.actors(8), orders, strict=True)
        for _ in range(10)
    ]
    assert {call.result(PATIENCE) for call in calls} == {("a", "b", "c")}


@pytest.mark.of_core
def test_one_of_them_is_held_already(locks, one) -> None:
    """A key that the caller has already is found among several, before any of them is taken."""
    one.do(locks.acquire, "b")
    with pytest.raises(AlreadyHeld) as refused:
        one.do(locks.acquire, "a", "b")
    assert refused.value.key == "b"
    assert one.do(locks.try_acquire, "a")


@pytest.mark.of_core
def test_a_key_that_is_lost_while_another_is_awaited(locks, one, other, waiting, probe) -> None:
    """Nobody is given a lease of which a part has ended already."""
    blocker = one.do(locks.acquire, "b")
    waiter = other.begin(locks.acquire, "a", "b", ttl=60, wait=None)
    eventually(lambda: waiting("b") == 1)
    assert probe.force_release("a")
    hurry(locks)
    eventually(lambda: "default:a" not in locks._locker.keeper.holdings)
    one.do(blocker.release)
    with pytest.raises(LeaseLost) as lost:
        waiter.result(PATIENCE)
    assert (lost.value.key, lost.value.reason) == ("a", "taken")
    assert [waiting(key) for key in "ab"] == [None, None]


@pytest.mark.of_core
def test_a_timeout_is_told_also_where_a_part_was_lost(locks, one, other, waiting, probe) -> None:
    """Giving back what has ended meanwhile does not turn a timeout into another error."""
    one.do(locks.acquire, "b", ttl=60)
    waiter = other.begin(locks.acquire, "a", "b", ttl=60, wait=1)
    eventually(lambda: waiter.done() or waiting("b") == 1)
    probe.force_release("a")
    hurry(locks)
    with pytest.raises(LockTimeout):
        waiter.result(PATIENCE)
    assert waiting("a") is None


@pytest.mark.of_core
def test_one_lost_key_is_a_lost_lease(locks, one, other, probe) -> None:
    """A lease of several keys is lost when one of them is, and releases the others."""
    lease = one.do(locks.acquire, "a", "b", ttl=60)
    assert probe.force_release("b")
    hurry(locks, lease)
    eventually(lambda: not lease.held)
    with pytest.raises(LeaseLost):
        lease.check()
    with pytest.raises(LeaseLost):
        one.do(lease.release)
    other.do(other.do(locks.acquire, "a", "b", wait=0).release)
