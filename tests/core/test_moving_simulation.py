"""Leases that move on, under the simulator: one holder, one taker, one fence."""

from __future__ import annotations

from collections import Counter

import pytest

from weblock._core import moving, table

from .simulation.moving import run_seed
from .simulation.mutants import Mutant
from .simulation.world import Violation

SCHEDULES = 300
LIMIT = 300
"""Schedules that a mutant may survive."""

MUTANTS = (
    Mutant(
        "anybody with a token takes the lease over",
        table,
        "transfer",
        "grant = _grant_of(state, owner)",
        "grant = state.grant",
        ("M1", "M3"),
    ),
    Mutant(
        "a token is bound to its secret, and not to its fence",
        moving,
        "leases_in",
        "{number} {text}",
        "{number} {json.loads(urlsafe_b64decode(text + '==='))[0]}",
        ("M7",),
    ),
    Mutant(
        "the owner of a lease is not bound to the other leases of its token",
        moving,
        "leases_in",
        "{number} {text}",
        "{json.loads(urlsafe_b64decode(text + '==='))[0]} {key} {fence} {limit}",
        ("M5",),
    ),
    Mutant(
        "a lease gets another fence on its way",
        table,
        "transfer",
        "Grant(claim, grant.fence,",
        "Grant(claim, grant.fence + 1,",
        ("M5",),
    ),
    Mutant(
        "the giver goes on as if it had the lease",
        moving,
        "hand_over",
        'holding.status, holding.reason = Status.RELEASED, "handed_over"',
        "pass",
        ("M1", "M6"),
    ),
    Mutant(
        "a taker counts from the reply",
        moving,
        "_transfer",
        "        return await locker.store.transfer(key, owner, claim, fence=fence), sent",
        "        return await locker.store.transfer(key, owner, claim, fence=fence),"
        " locker.runtime.now()",
        ("M6",),
    ),
)


def test_no_schedule_violates_a_property() -> None:
    """Of hundreds of schedules, none has two holders, two takers of one token, or another fence."""
    counts: Counter[str] = Counter()
    for seed in range(SCHEDULES):
        counts.update(run_seed(seed))
    for what in (
        "handed over",
        "taken over",
        "refused: LeaseLost",
        "lost or in doubt",
        "forgery rejected",
    ):
        assert counts[what], f"the schedules never met: {what}"


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_no_mutant_survives(mutant: Mutant) -> None:
    """Each mistake violates a property that it should violate."""
    with mutant.alive():
        for seed in mutant.seeds(LIMIT):
            try:
                run_seed(seed)
            except Violation as violation:
                if violation.name.split()[0] in mutant.killers:
                    return
    pytest.fail(f"{mutant.name} survived {LIMIT} schedules")
