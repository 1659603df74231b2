"""Asking a holder to step down: it is told, and decides."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from tests.support.events import Heard
from tests.support.renewals import renewed
from tests.support.waiting import PATIENCE, eventually
from weblock import AsyncLocks, ConfigurationError, InvalidKey, Locks
from weblock.events import ReleaseAsked

LONG = 60.0
"""A ttl that no test waits for: whoever had to would fail."""

pytestmark = pytest.mark.promise("locks")


class TestTheHolder:
    def test_it_is_told_with_its_renewal(self, locks, one, other) -> None:
        """A holder that was asked knows it after its next renewal, and still has the key."""
        lease = one.do(locks.acquire, "key", ttl=LONG)
        renewed(locks, lease)
        assert not lease.asked_to_release
        assert other.do(locks.ask_release, "key") is True
        renewed(locks, lease)
        eventually(lambda: lease.asked_to_release)
        lease.check()
        assert other.do(locks.try_acquire, "key") is None
        one.do(lease.release)

    def test_it_is_told_when_it_extends(self, locks, one, other) -> None:
        """A holder without renewal learns it from the answer to ``extend``, and it stays so."""
        lease = one.do(locks.acquire, "key", ttl=LONG, renew=False)
        assert other.do(locks.ask_release, "key")
        assert other.do(locks.ask_release, "key")
        for _ in range(2):
            one.do(lease.extend, 1)
            assert lease.asked_to_release
        one.do(lease.release)

    @pytest.mark.of_core
    def test_its_callback_is_called_once(self, locks, one, other) -> None:
        """However often it is asked; a callback that comes later is called at once."""
        calls: list[str] = []
        told, late = threading.Event(), threading.Event()

        def call() -> None:
            calls.append("asked")
            told.set()

        lease = one.do(locks.acquire, "key", ttl=LONG)
        one.do(lease.on_ask_release, call)
        for _ in range(2):
            assert other.do(locks.ask_release, "key")
            one.do(lease.extend, 1)
        assert told.wait(PATIENCE)
        one.do(lease.on_ask_release, late.set)
        assert late.wait(PATIENCE)
        one.do(lease.release)
        assert calls == ["asked"]

    @pytest.mark.of_core
    @pytest.mark.filterwarnings("ignore")
    def test_a_callback_that_raises_harms_nobody(self, locks, one, other) -> None:
        """The lease goes on, and another callback is called as well."""
        told = threading.Event()

        def fail() -> None:
            raise RuntimeError("a callback of the application")

        lease = one.do(locks.acquire, "key", ttl=LONG)
        one.do(lease.on_ask_release, told.set)
        one.do(lease.on_ask_release, fail)
        assert other.do(locks.ask_release, "key")
        one.do(lease.extend, 1)
        assert told.wait(PATIENCE)
        lease.check()
        one.do(lease.release)

    @pytest.mark.promise("several")
    def test_each_of_several_is_told(self, locks, api, probe) -> None:
        """All who share a key are asked, and one that comes later is not."""
        actors = api.actors(3)
        leases = [each.do(locks.acquire, "key", limit=3, ttl=LONG) for each in actors[:2]]
        assert probe.ask_release("key")
        leases.append(actors[2].do(locks.acquire, "key", limit=3, ttl=LONG))
        for each, lease in zip(actors, leases, strict=True):
            each.do(lease.extend, 1)
        assert [lease.asked_to_release for lease in leases] == [True, True, False]
        for each, lease in zip(actors, leases, strict=True):
            each.do(lease.release)

    def test_the_taker_of_its_lease_is_told(self, locks, one, other) -> None:
        """A lease that moves on is asked for as before."""
        lease = one.do(locks.acquire, "key", ttl=LONG)
        assert other.do(locks.ask_release, "key")
        taken = other.do(locks.take_over, one.do(lease.hand_over), ttl=LONG)
        other.do(taken.extend, 1)
        assert taken.asked_to_release
        other.do(taken.release)


def test_the_next_holder_is_not_asked(locks, api, one, other, waiting) -> None:
    """Neither a waiter that gets the key after the holder that was asked, nor the one after it."""
    lease = one.do(locks.acquire, "key", ttl=LONG)
    waiter = api.actor()
    waits = waiter.begin(locks.acquire, "key", ttl=LONG, wait=LONG)
    eventually(lambda: waiting("key") == 1)
    assert other.do(locks.ask_release, "key")
    one.do(lease.release)
    second = waits.result(PATIENCE)
    waiter.do(second.extend, 1)
    assert not second.asked_to_release
    waiter.do(second.release)
    third = one.do(locks.acquire, "key", ttl=LONG)
    one.do(third.extend, 1)
    assert not third.asked_to_release
    one.do(third.release)


def test_nobody_holds_it(locks, one, waiting) -> None:
    """Where nobody has the key there is nobody to ask, and nothing is left of the question."""
    assert one.do(locks.ask_release, "key") is False
    lease = one.do(locks.acquire, "key", ttl=LONG)
    assert one.do(locks.ask_release, "key") is True
    one.do(lease.release)
    assert one.do(locks.ask_release, "key") is False
    assert one.do(locks.inspect, "key") is None
    lease = one.do(locks.acquire, "key", wait=0)
    one.do(lease.extend, 1)
    assert not lease.asked_to_release
    one.do(lease.release)


def test_what_has_ended_is_not_told(locks, one, other) -> None:
    """A callback of a lease that was released is not called, whoever has the key then is asked."""
    calls: list[Any] = []
    lease = one.do(locks.acquire, "key", ttl=LONG)
    one.do(lease.on_ask_release, lambda: calls.append(1))
    one.do(lease.release)
    following = other.do(locks.acquire, "key", ttl=LONG)
    assert one.do(locks.ask_release, "key")
    other.do(following.extend, 1)
    assert following.asked_to_release
    assert not lease.asked_to_release
    other.do(following.release)
    assert not calls


def test_the_event(api, url: str) -> None:
    """The holder's process tells the event once, with the fence and since when it held the key."""
    heard = Heard()
    kind = AsyncLocks if api.name == "asyncio" else Locks
    locks = kind.from_url(url, observers=[heard.observer])
    one = api.actor()
    lease = one.do(locks.acquire, "key", ttl=LONG)
    for _ in range(2):
        one.do(locks.ask_release, "key")
        one.do(lease.extend, 1)
    one.do(lease.release)
    one.do(locks.close)
    (asked,) = heard.of(ReleaseAsked)
    assert (asked.key, asked.fence) == ("key", lease.fence)
    assert asked.held_for >= 0


@pytest.mark.of_core
def test_keys_and_closed_locks_are_refused(locks, one) -> None:
    """As everywhere: no key without a name, and no closed locks."""
    with pytest.raises(InvalidKey):
        one.do(locks.ask_release, "")
    one.do(locks.close)
    with pytest.raises(ConfigurationError):
        one.do(locks.ask_release, "key")
