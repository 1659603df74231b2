"""Keeping a key: renewal, extension, limits, and finding out that it is lost."""

from __future__ import annotations

import threading
from datetime import timedelta

import pytest

from tests.support.renewals import end, renewed
from tests.support.waiting import PATIENCE, eventually, now
from weblock import LeaseLost, Locks

TTL = 1.0


@pytest.mark.promise("locks")
def test_a_busy_holder_keeps_its_lease(locks, one, probe) -> None:
    """A holder that blocks its thread or its event loop is renewed again and again."""
    lease = one.do(locks.acquire, "key", ttl=60)
    blocks, go_on = threading.Event(), threading.Event()
    blocked = one.begin(lambda: blocks.set() or go_on.wait(PATIENCE))
    assert blocks.wait(PATIENCE)
    for _ in range(3):
        renewed(locks, lease)
    assert probe.try_acquire("key") is None
    go_on.set()
    assert blocked.result(PATIENCE)
    lease.check()
    one.do(lease.release)


def test_fences_increase(locks, api) -> None:
    """Every lease of a key has a higher fence than all before it, whoever had them."""
    fences = []
    for actor in api.actors(4) * 3:
        lease = actor.do(locks.acquire, "key")
        fences.append(lease.fence)
        actor.do(lease.release)
    assert sorted(set(fences)) == fences


@pytest.mark.promise("locks")
def test_fences_increase_when_the_engine_is_opened_again(api, url, one) -> None:
    """A restart of the application does not set fences back."""
    fences = []
    for _ in range(3):
        locks = api.open(url)
        lease = one.do(locks.acquire, "key")
        fences.append(lease.fence)
        one.do(lease.release)
        api.shut(locks)
    assert sorted(set(fences)) == fences


def test_a_second_release_does_nothing(locks, one, other) -> None:
    """Releasing twice is harmless, also when another holds the key by then."""
    lease = one.do(locks.acquire, "key")
    one.do(lease.release)
    theirs = other.do(locks.acquire, "key")
    one.do(lease.release)
    assert theirs.held
    other.do(theirs.release)


@pytest.mark.promise("locks")
def test_extend_pushes_the_deadline_out(locks, one, other, probe) -> None:
    """An extended lease outlives its ttl without any renewal, in its holder's eyes and the engine's."""
    lease = one.do(locks.acquire, "key", ttl=10, renew=False)
    for longer in (3600, 30):  # The second is less than what the drift takes off the first.
        before = now() + lease.remaining()
        one.do(lease.extend, timedelta(seconds=longer))
        assert lease.remaining() + now() >= before + longer - 0.001
    assert now() + probe.inspect("key").remaining > before + 30 - 0.001
    assert other.do(locks.try_acquire, "key") is None
    one.do(lease.release)


def test_extend_cannot_bring_back_a_lost_lease(locks, one) -> None:
    """What is lost stays lost: extending it says so."""
    lease = one.do(locks.acquire, "key", ttl=0.2, renew=False)
    eventually(lambda: not lease.held)
    with pytest.raises(LeaseLost) as lost:
        one.do(lease.extend, 10)
    assert lost.value.reason == "expired"
    assert not lease.held


def test_extend_after_release(locks, one, other) -> None:
    """A lease that was given back cannot be extended, and nobody is locked out by the attempt."""
    lease = one.do(locks.acquire, "key")
    one.do(lease.release)
    with pytest.raises(Exception, match=r"released|lost"):
        one.do(lease.extend, 10)
    other.do(other.do(locks.acquire, "key", wait=0).release)


@pytest.mark.promise("locks")
def test_without_renewal_the_lease_ends(locks, one, other) -> None:
    """With renew=False a lease lasts for its ttl, and then the next one is let in."""
    lease = one.do(locks.acquire, "key", ttl=TTL, renew=False)
    theirs = other.do(locks.acquire, "key", wait=30)
    assert not lease.held
    with pytest.raises(LeaseLost) as lost:
        one.do(lease.release)
    assert (lost.value.reason, lost.value.fence) == ("expired", lease.fence)
    assert theirs.held
    other.do(theirs.release)


@pytest.mark.promise("locks")
def test_a_waiter_without_renewal_gets_its_whole_ttl(locks, one, other, waiting) -> None:
    """A lease that was handed over is as long as one that was free, also without renewal."""
    lease = one.do(locks.acquire, "key")
    waiter = other.begin(locks.acquire, "key", ttl=60, renew=False, wait=None)
    eventually(lambda: waiting("key") == 1)
    released = now()
    one.do(lease.release)
    theirs = waiter.result(PATIENCE)
    assert now() + theirs.remaining() > released + 30


@pytest.mark.promise("locks")
def test_a_handed_over_lease_is_kept(locks, one, other, waiting) -> None:
    """A lease that was handed over is soon as long as its ttl, without any call of its holder."""
    lease = one.do(locks.acquire, "key")
    waiter = other.begin(locks.acquire, "key", ttl=60, wait=None)
    eventually(lambda: waiting("key") == 1)
    one.do(lease.release)
    theirs = waiter.result(PATIENCE)
    eventually(lambda: theirs.remaining() > 30)


def test_max_hold_ends_a_lease_loudly(locks, one, other) -> None:
    """A holder that hangs loses the key after max_hold, is told so, and the next one gets it."""
    lost = threading.Event()
    lease = one.do(locks.acquire, "key", ttl=60, max_hold=0.4)
    one.do(lease.on_lost, lost.set)
    theirs = other.do(locks.acquire, "key", wait=30)
    assert lost.wait(PATIENCE)
    with pytest.raises(LeaseLost, match="max_hold") as found:
        lease.check()
    assert found.value.reason == "max_hold"
    with pytest.raises(LeaseLost) as found:
        one.do(lease.release)
    assert found.value.reason == "max_hold"
    other.do(theirs.release)


@pytest.mark.of_core
@pytest.mark.promise("locks")
def test_max_hold_is_not_moved_by_extending(locks, one) -> None:
    """No extension reaches beyond max_hold."""
    lease = one.do(locks.acquire, "key", max_hold=5)
    one.do(lease.extend, 100)
    assert lease.remaining() <= 5
    one.do(lease.release)


@pytest.mark.of_core
def test_on_lost_is_told_once(locks, api, one) -> None:
    """Each callback is called once; one that comes after the loss is called too."""
    calls: list[str] = []
    lease = one.do(locks.acquire, "key", ttl=0.2, renew=False)
    one.do(lease.on_lost, lambda: calls.append("before"))
    eventually(lambda: calls == ["before"])
    one.do(lease.on_lost, lambda: calls.append("after"))
    eventually(lambda: calls == ["before", "after"])
    with pytest.raises(LeaseLost):
        one.do(lease.release)
    assert calls == ["before", "after"]


@pytest.mark.of_core
def test_on_lost_is_not_told_of_a_release(locks, one, other) -> None:
    """A lease that is given back in time was not lost, also when its ttl is over."""
    calls: list[str] = []
    lease = one.do(locks.acquire, "key", ttl=60)
    one.do(lease.on_lost, lambda: calls.append("the first was lost"))
    one.do(lease.release)
    later = other.do(locks.acquire, "key", ttl=60)
    other.do(later.on_lost, lambda: calls.append("the second was lost"))
    end(locks, lease)
    end(locks, later)
    eventually(lambda: calls)
    assert calls == ["the second was lost"]


@pytest.mark.of_core
def test_a_callback_that_fails_harms_nobody(locks, one, other) -> None:
    """An error in a callback neither hides the loss nor keeps other leases from being renewed."""
    lease = one.do(locks.acquire, "key", ttl=0.3, renew=False)
    kept = other.do(locks.acquire, "kept", ttl=60)
    one.do(lease.on_lost, lambda: 1 / 0)
    eventually(lambda: not lease.held)
    with pytest.raises(LeaseLost):
        lease.check()
    renewed(locks, kept)
    other.do(kept.release)


@pytest.mark.of_core
def test_a_loss_while_the_block_fails(locks, api, one) -> None:
    """Where the block raises after the loss, its own error comes out, with the loss beside it."""

    def body(lease: object) -> None:
        eventually(lambda: not lease.held)
        raise KeyError("own")

    with pytest.raises(KeyError) as error:
        one.do(api.section, locks, "key", body=body, ttl=0.2, renew=False)
    assert "was lost" in error.value.__notes__[0]


@pytest.mark.of_core
def test_a_loss_that_the_block_overlooked(locks, api, one) -> None:
    """A block that goes on after the loss is told of it when it ends."""
    with pytest.raises(LeaseLost):
        one.do(
            api.section,
            locks,
            "key",
            body=lambda lease: eventually(lambda: not lease.held),
            ttl=0.2,
            renew=False,
        )


@pytest.mark.of_core
def test_a_hold_without_its_block_is_told(locks, one) -> None:
    """A forgotten ``with`` leaves a section unlocked: a warning names the line and the remedy."""
    with pytest.warns(RuntimeWarning) as told:
        locks.hold("key", "other")
    (warning,) = told
    block = "with" if isinstance(locks, Locks) else "async with"
    assert str(warning.message) == (
        "hold('key', 'other') was never entered, so it locked nothing:"
        f" write '{block} locks.hold('key', 'other'):' [weblock.never_entered]"
    )
    assert warning.filename == __file__
    one.do(one.do(locks.acquire, "key", wait=0).release)
