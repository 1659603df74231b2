"""The store that is shipped on a cluster whose slots move and whose masters hang, under the simulator."""

from __future__ import annotations

import pytest

from .simulation.cluster_campaign import CLUSTER, MUTANTS, clocks_agree, cluster_schedule
from .simulation.mutants import Mutant
from .simulation.world import Violation

SCHEDULES = 300
LIMIT = 500
"""Schedules that a mutant may survive."""


@pytest.mark.timeout(900)
def test_no_schedule_violates_a_property() -> None:
    """Nobody overlaps and fences increase, whatever clocks show; leases outlive half-moved slots."""
    CLUSTER.hold_to_it(SCHEDULES)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mistake_is_noticed(mutant: Mutant) -> None:
    """The store with each defect that it once had violates a property."""
    with mutant.alive():
        for seed in range(LIMIT):
            _, failure = CLUSTER.run_seed(seed)
            if failure and failure.property.split()[0] in mutant.killers:
                return
    pytest.fail(f"it survived {LIMIT} schedules")


def test_clocks_that_are_taken_for_one_are_noticed() -> None:
    """Where a slot moves to a master whose clock is ahead, and nobody heeds that, two hold a key."""
    for seed in range(LIMIT):
        try:
            cluster_schedule(seed, clocks_agree).run()
        except Violation as violation:
            if violation.name == "P1 mutex":
                return
    pytest.fail(f"it survived {LIMIT} schedules")
