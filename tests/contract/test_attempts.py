"""Asking a few times, instead of waiting in the queue."""

from __future__ import annotations

import math

import pytest

from tests.support.waiting import PATIENCE, eventually
from weblock import AlreadyHeld, Attempts, ConfigurationError, LockTimeout

pytestmark = pytest.mark.promise("locks")


@pytest.mark.of_core
def test_a_free_key_is_had_at_the_first_attempt(locks, one) -> None:
    """There is nothing to pause for."""
    one.do(one.do(locks.acquire, "key", wait=Attempts(1)).release)


@pytest.mark.of_core
def test_a_busy_key_is_asked_for_so_often(locks, one, other) -> None:
    """Then the key was busy, and the error says how often that was found."""
    lease = one.do(locks.acquire, "key", ttl=60)
    with pytest.raises(LockTimeout, match="busy at each of 3 attempts") as busy:
        other.do(locks.acquire, "key", wait=Attempts(3, pause=0.001))
    assert busy.value.attempts == 3
    assert busy.value.retry_after > 0
    one.do(lease.release)


def test_a_key_that_becomes_free_is_had_in_time(locks, one, other) -> None:
    """Nobody calls whoever does not wait; they come again by themselves, and leave no place."""
    lease = one.do(locks.acquire, "key", ttl=60)
    tries = other.begin(locks.acquire, "key", wait=Attempts(1000, pause=0.001, longest=0.05))
    assert one.do(locks.inspect, "key").waiters == ()
    one.do(lease.release)
    other.do(tries.result(PATIENCE).release)


@pytest.mark.promise("queue")
@pytest.mark.usefixtures("unhurried")
def test_who_waits_in_the_queue_comes_first(locks, api, one, other, waiting) -> None:
    """The release hands the key to the first waiter, whoever happens to ask at that moment."""
    lease = one.do(locks.acquire, "key", ttl=60)
    waits = other.begin(locks.acquire, "key", wait=None, ttl=60)
    eventually(lambda: waiting("key") == 1)
    tries = api.actor().begin(locks.acquire, "key", wait=Attempts(1000, pause=0.001, longest=0.01))
    one.do(lease.release)
    waited = waits.result(PATIENCE)
    assert not tries.done()
    other.do(waited.release)
    last = tries.result(PATIENCE)
    assert last.fence > waited.fence


@pytest.mark.of_core
def test_ones_own_key_is_not_asked_for(locks, one) -> None:
    """It would be busy each time."""
    lease = one.do(locks.acquire, "key")
    with pytest.raises(AlreadyHeld):
        one.do(locks.acquire, "key", wait=Attempts(3))
    one.do(lease.release)


@pytest.mark.of_core
@pytest.mark.parametrize(
    "options",
    [
        *({"count": count} for count in (0, 2.5, "3")),
        *({"count": 2, "pause": pause} for pause in (0, 9, "1", math.inf, math.nan)),
        *({"count": 2, "longest": longest} for longest in (0, math.inf, math.nan)),
        {"count": 2, "pause": math.inf, "longest": math.inf},
    ],
)
def test_odd_attempts_are_refused(options) -> None:
    """What cannot be meant is refused where it is said."""
    with pytest.raises(ConfigurationError, match="Attempts"):
        Attempts(**options)


def test_pauses_grow() -> None:
    """Each is twice as long as the one before, up to the longest."""
    assert list(Attempts(6, pause=0.1, longest=0.5).pauses()) == [0.1, 0.2, 0.4, 0.5, 0.5]
