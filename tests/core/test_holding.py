"""What a holder knows of its lease."""

from __future__ import annotations

from dataclasses import replace

from weblock._core.holding import Holding, Terms
from weblock._core.ports import Reply
from weblock._core.table import Held

TTL = 10.0
TERMS = Terms(ttl=TTL, max_hold=None, renew=True, max_waiters=10, label="")


def holding(deadline: float, terms: Terms = TERMS) -> Holding:
    return Holding(
        "shop:k", "owner", 7, terms, deadline=deadline, confirmed=True, now=0.0, control=1, void=0.0
    )


def test_a_lease_with_another_fence_is_not_ours():
    """An answer about another lease of the same owner does not keep this one."""
    lease = holding(deadline=9.0)
    lease.heard(Reply(Held(8, until=120.0), now=103.0), sent=3.0, now=3.1)
    assert lease.reason == "taken"


def test_max_hold_ends_a_lease_also_where_its_answer_took_long():
    """What was asked for no longer than max_hold ends because of it, a little earlier or not."""
    lease = holding(deadline=3.9, terms=replace(TERMS, max_hold=4.0))
    lease.pulse(3.95)
    assert lease.reason == "max_hold"


def test_a_lease_that_may_be_held_longer_ends_because_nobody_renewed_it():
    """A max_hold that is far away is not the reason, as it was not for the ttl that was asked for."""
    lease = holding(deadline=9.0, terms=replace(TERMS, max_hold=40.0))
    lease.pulse(9.5)
    assert lease.reason == "expired"


def test_a_renewal_up_to_max_hold_ends_because_of_it():
    """The last renewal asks for what max_hold leaves, and no more follows."""
    lease = holding(deadline=9.0, terms=replace(TERMS, max_hold=12.0))
    pulse = lease.pulse(6.0)
    assert pulse
    assert pulse.ttl < TTL
    lease.heard(Reply(Held(7, until=106.0 + 5.9), now=106.0), sent=6.0, now=6.2)
    lease.pulse(11.95)
    assert lease.reason == "max_hold"
