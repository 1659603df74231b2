"""Leases that move on: one caller hands a lease over, and another continues it."""

from __future__ import annotations

import asyncio
import json
from concurrent.futures import wait
from typing import Any

import pytest

from tests.support.events import Heard
from tests.support.renewals import renewed
from tests.support.tokens import facts_of, sealed
from tests.support.waiting import PATIENCE, eventually, now
from weblock import AsyncLocks, ConfigurationError, LeaseLost, Locks
from weblock.events import HandedOver, Lost, Released, TakenOver

LONG = 60.0
"""A ttl that no test waits for: whoever had to would fail."""

SHORT = 0.3


@pytest.mark.promise("locks")
class TestOneLease:
    def test_it_goes_on_with_its_fence(self, locks, api, one, *, other, waiting) -> None:
        """The taker has the giver's fence and renews it; a waiter gets the key after the taker."""
        lease = one.do(locks.acquire, "key", ttl=LONG)
        waiter = api.actor()
        waits = waiter.begin(locks.acquire, "key", wait=LONG)
        eventually(lambda: waiting("key") == 1)
        token = one.do(lease.hand_over)
        taken = other.do(locks.take_over, token, ttl=LONG)
        assert (taken.keys, taken.fence) == (lease.keys, lease.fence)
        renewed(locks, taken)
        other.do(taken.extend, 1)
        assert not waits.done()
        other.do(taken.release)
        following = waits.result(PATIENCE)
        assert following.fence > taken.fence
        waiter.do(following.release)

    def test_the_giver_has_it_no_more(self, locks, api, one, other) -> None:
        """What the giver does with its lease is refused or does nothing; its ``with`` block just ends."""

        def hand_over(lease: Any) -> Any:
            leases.append(lease)
            return lease.hand_over()

        leases: list[Any] = []
        if api.name == "sync":
            token = one.do(api.section, locks, "key", body=hand_over)
        else:

            async def section() -> Any:
                async with locks.hold("key") as lease:
                    leases.append(lease)
                    return await lease.hand_over()

            token = one.do(section)
        (lease,) = leases
        assert not lease.held
        assert lease.remaining() == 0
        for refused in (lease.check, lease.hand_over, lambda: lease.extend(1)):
            with pytest.raises(LeaseLost, match="handed over") as loss:
                one.do(refused)
            assert loss.value.reason == "handed_over"
        one.do(lease.release)
        assert other.do(locks.try_acquire, "key") is None
        other.do(other.do(locks.take_over, token).release)

    def test_one_of_two_gets_it(self, locks, one, other) -> None:
        """Two callers with one token at the same time: one has the lease, the other ``LeaseLost``."""
        lease = one.do(locks.acquire, "key", ttl=LONG)
        token = one.do(lease.hand_over)
        takes = [each.begin(locks.take_over, token, ttl=LONG) for each in (one, other)]
        wait(takes, PATIENCE)
        (refused,) = [each.exception() for each in takes if each.exception()]
        assert isinstance(refused, LeaseLost)
        assert (refused.key, refused.fence, refused.reason) == ("key", lease.fence, "taken")
        (taken,) = [each.result() for each in takes if not each.exception()]
        renewed(locks, taken)
        one.do(taken.release)

    def test_a_token_works_once(self, locks, one, other, waiting) -> None:
        """It is useless when the lease was taken over, and when that was released or taken away."""
        lease = one.do(locks.acquire, "key", ttl=LONG)
        token = one.do(lease.hand_over)
        taken = other.do(locks.take_over, token)
        for end in (lambda: None, taken.release):
            other.do(end)
            with pytest.raises(LeaseLost):
                other.do(locks.take_over, token)
        assert waiting("key") is None
        token = one.do(one.do(locks.acquire, "key", ttl=LONG).hand_over)
        assert one.do(locks.force_release, "key")
        with pytest.raises(LeaseLost):
            other.do(locks.take_over, token)
        assert waiting("key") is None

    def test_a_token_with_a_wrong_fact_changes_nothing(self, locks, one, other) -> None:
        """A forged token gets ``LeaseLost``, whichever fact is wrong, and the true token still works."""
        lease = one.do(locks.acquire, "a", "b", ttl=LONG)
        token = one.do(lease.hand_over)
        secret, a, b = facts_of(token)
        for wrong in (
            [secret[::-1], a, b],
            [secret, b, a],
            [secret, a],
            *([secret, [a[0], a[1] + by, 1], b] for by in (1, -1)),
            [secret, a, [b[0], b[1], 2]],
        ):
            with pytest.raises(LeaseLost):
                other.do(locks.take_over, sealed(json.dumps(wrong, separators=(",", ":"))))
        taken = other.do(locks.take_over, token)
        assert taken.fences == lease.fences
        other.do(taken.release)

    def test_a_lease_may_move_on_several_times(self, locks, one, other) -> None:
        """Each holder gives it to the next; an earlier token is of no use."""
        lease = one.do(locks.acquire, "key", ttl=LONG)
        first = one.do(lease.hand_over)
        second = other.do(other.do(locks.take_over, first).hand_over)
        assert second != first
        with pytest.raises(LeaseLost):
            one.do(locks.take_over, first)
        last = one.do(locks.take_over, second)
        assert last.fence == lease.fence
        one.do(last.release)

    def test_the_token_is_good_for_its_ttl(self, locks, one, other) -> None:
        """Nobody renews a lease on its way: when its ttl is over, it ends by itself."""
        lease = one.do(locks.acquire, "key", ttl=LONG)
        asked = now()
        token = one.do(lease.hand_over, ttl=SHORT)
        following = other.do(locks.acquire, "key", wait=LONG)
        assert now() - asked >= SHORT * 0.98
        assert following.fence > lease.fence
        with pytest.raises(LeaseLost):
            other.do(locks.take_over, token)
        renewed(locks, following)  # The useless token has changed nothing.
        other.do(following.release)

    def test_a_lost_lease_cannot_be_handed_over(self, locks, one, other, waiting) -> None:
        """A giver whose lease was taken away gets ``LeaseLost``, and its key is free."""
        lease = one.do(locks.acquire, "key", ttl=LONG)
        assert other.do(locks.force_release, "key")
        with pytest.raises(LeaseLost) as loss:
            one.do(lease.hand_over)
        assert loss.value.reason == "taken"
        eventually(lambda: waiting("key") is None)

    def test_what_is_taken_over_can_be_lost(self, locks, one, other) -> None:
        """The taker of a lease that is taken away finds out as every holder does."""
        lease = one.do(locks.acquire, "key", ttl=LONG)
        taken = other.do(locks.take_over, one.do(lease.hand_over), ttl=LONG)
        assert one.do(locks.force_release, "key")
        with pytest.raises(LeaseLost) as loss:
            other.do(taken.extend, 1)
        assert loss.value.reason == "taken"

    @pytest.mark.of_core
    def test_a_taker_that_does_not_renew_loses_it(self, locks, one, other) -> None:
        """The options of ``take_over`` count from there: its ttl, and ``max_hold``."""
        for options in ({"ttl": SHORT, "renew": False}, {"ttl": LONG, "max_hold": SHORT}):
            token = one.do(one.do(locks.acquire, "key", ttl=LONG).hand_over)
            taken = other.do(locks.take_over, token, **options)
            following = one.do(locks.acquire, "key", wait=LONG, ttl=LONG)
            assert not taken.held
            one.do(following.release)


@pytest.mark.promise("locks")
class TestSeveralKeys:
    def test_they_move_together(self, locks, one, other, waiting) -> None:
        """One token continues all keys of a lease."""
        lease = one.do(locks.acquire, "a", "b", ttl=LONG)
        taken = other.do(locks.take_over, one.do(lease.hand_over), ttl=LONG)
        assert taken.fences == lease.fences
        other.do(taken.release)
        assert [waiting(key) for key in "ab"] == [None, None]

    def test_all_or_none(self, locks, one, other, waiting) -> None:
        """If one of the keys is lost, none is taken over or handed over, and the others are free."""
        for lost in "abc":
            token = one.do(one.do(locks.acquire, "a", "b", "c", ttl=LONG).hand_over)
            assert other.do(locks.force_release, lost)
            with pytest.raises(LeaseLost):
                other.do(locks.take_over, token)
            eventually(lambda: [waiting(key) for key in "abc"] == [None] * 3)
        lease = one.do(locks.acquire, "a", "b", ttl=LONG)
        assert other.do(locks.force_release, "b")
        with pytest.raises(LeaseLost):
            one.do(lease.hand_over)
        eventually(lambda: waiting("a") is None)

    def test_a_second_taker_disturbs_nothing(self, locks, one, other) -> None:
        """A caller that comes too late with the token releases none of the keys of the first taker."""
        token = one.do(one.do(locks.acquire, "a", "b", ttl=LONG).hand_over)
        taken = one.do(locks.take_over, token, ttl=LONG)
        with pytest.raises(LeaseLost):
            other.do(locks.take_over, token)
        one.do(taken.extend, 1)
        one.do(taken.release)


@pytest.mark.promise("locks", "processes")
@pytest.mark.costly
class TestProcesses:
    def test_the_giver_may_die(self, locks, one, *, other, puppet) -> None:
        """A process that is killed after it has handed over leaves a lease that is still held."""
        giver = puppet()
        fence = giver.do("acquire", "key", ttl=LONG)["fence"]
        token = giver.do("hand_over", ttl=LONG)["token"]
        giver.kill()
        assert one.do(locks.try_acquire, "key") is None
        taken = other.do(locks.take_over, token, ttl=LONG)
        assert taken.fence == fence
        renewed(locks, taken)
        other.do(taken.release)

    def test_the_giver_may_close(self, locks, one, other, *, url, api) -> None:
        """Locks that are closed after a lease was handed over do not release it."""
        givers = api.open(url)
        token = other.do(other.do(givers.acquire, "key", ttl=LONG).hand_over)
        api.shut(givers)
        assert one.do(locks.try_acquire, "key") is None
        one.do(one.do(locks.take_over, token).release)

    def test_a_taker_that_dies_frees_the_key(self, locks, one, puppet) -> None:
        """A lease that was taken over lasts for the taker's ttl, whatever that of the way was."""
        token = one.do(one.do(locks.acquire, "key", ttl=LONG).hand_over, ttl=LONG)
        taker = puppet()
        assert "fence" in taker.do("take_over", token, ttl=SHORT, renew=False)
        taker.kill()
        one.do(one.do(locks.acquire, "key", wait=LONG / 2).release)


@pytest.mark.promise("locks")
def test_a_lease_that_moves_on_is_told(locks, one, other) -> None:
    """The giver's end and the taker's beginning are events; nothing is released or lost in between."""
    heard = Heard()
    locks.observe(heard.observer)
    lease = one.do(locks.acquire, "key", ttl=LONG, label="web-1")
    taken = other.do(locks.take_over, one.do(lease.hand_over, ttl=SHORT * 100), label="worker-7")
    other.do(taken.release)
    assert heard.names == ["acquired", "handed_over", "taken_over", "released"]
    (given,), (took,), (released,) = heard.of(HandedOver), heard.of(TakenOver), heard.of(Released)
    assert (given.label, took.label, released.label) == ("web-1", "worker-7", "worker-7")
    assert {event.fence for event in heard} == {lease.fence}  # type: ignore[attr-defined]
    assert given.held_for >= 0
    assert given.ttl == SHORT * 100
    assert not heard.of(Lost)


@pytest.mark.promise("locks")
def test_others_see_who_has_it(locks, one, other) -> None:
    """On its way, a lease has the giver's label, and then the taker's; it never was free."""
    lease = one.do(locks.acquire, "key", ttl=LONG, label="web-1")
    token = one.do(lease.hand_over)
    seen = one.do(locks.inspect, "key")
    assert (seen.holder, seen.fence) == ("web-1", lease.fence)
    taken = other.do(locks.take_over, token, label="worker-7")
    seen = one.do(locks.inspect, "key")
    assert (seen.holder, seen.fence) == ("worker-7", lease.fence)
    other.do(taken.release)


@pytest.mark.of_core
class TestWhatCannotWork:
    def test_odd_tokens_are_refused(self, locks, one) -> None:
        """The error says what is wrong, and never shows the secret."""
        token = one.do(one.do(locks.acquire, "key").hand_over)
        for odd, said in (
            (token[:-9], "damaged"),
            *((token[:at] + "?" + token[at + 1 :], "damaged") for at in range(9, len(token))),
            (token[9:], "not a token"),
            (b"bytes", "a bytes that is not a token"),
            (sealed("[" * 100_000), "damaged"),
            (sealed("[]"), "damaged"),
            (sealed('["secret",["default:key",Infinity,1]]'), "damaged"),
            (sealed('["secret",["default:key",1,0]]'), "damaged"),
            (sealed('["secret",["default:key",1]]'), "damaged"),
            (sealed('["secret",["default:",1,1]]'), "the key is empty"),
            (sealed('["secret",["default:a",1,1],["default:\\u0000",1,1]]'), "control character"),
        ):
            with pytest.raises(ConfigurationError, match=said) as refused:
                one.do(locks.take_over, odd)
            assert token[20:40] not in str(refused.value)
        one.do(one.do(locks.take_over, token).release)

    def test_a_token_of_another_namespace_is_refused(self, url, api, locks, one) -> None:
        """A token is bound to the key and its namespace."""
        token = one.do(one.do(locks.acquire, "key").hand_over)
        others = api.open(url, namespace="blog")
        with pytest.raises(ConfigurationError, match=r"namespace='default'.*namespace='blog'"):
            one.do(others.take_over, token)
        api.shut(others)
        one.do(one.do(locks.take_over, token).release)

    def test_odd_options_are_refused(self, locks, one) -> None:
        """A ttl that cannot be, and what makes no sense where nobody waits."""
        lease = one.do(locks.acquire, "key")
        with pytest.raises(ConfigurationError, match=r"ttl=0\.01 must be 0.1 seconds"):
            one.do(lease.hand_over, ttl=0.01)
        token = one.do(lease.hand_over)
        for option in ({"wait": 1}, {"on_unavailable": "open"}):
            with pytest.raises(TypeError, match="leave it out"):
                one.do(locks.take_over, token, **option)
        one.do(one.do(locks.take_over, token).release)

    def test_closed_locks_take_nothing_over(self, api, url, locks, one) -> None:
        """A token outlives the locks that refuse it."""
        token = one.do(one.do(locks.acquire, "key").hand_over)
        closed = api.open(url)
        api.shut(closed)
        with pytest.raises(ConfigurationError, match="is closed"):
            one.do(closed.take_over, token)
        one.do(one.do(locks.take_over, token).release)


def test_either_api_continues_what_the_other_gave(tmp_path) -> None:
    """A token has no API: a blocking worker takes over from an async application."""

    async def request() -> str:
        async with AsyncLocks.from_url(url) as locks, locks.hold("key") as lease:
            return await lease.hand_over(ttl=LONG)

    url = f"file://{tmp_path}/locks"
    token = asyncio.run(request())
    with Locks.from_url(url) as locks, locks.take_over(token) as lease:
        lease.check()
        assert locks.try_acquire("key") is None
