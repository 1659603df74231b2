"""The store that is shipped on a cluster whose slots move and whose masters hang, under the simulator."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial

import pytest

from .simulation.campaign import noticed
from .simulation.cluster_campaign import (
    ASKED_AGAIN,
    CLUSTER,
    HANGING,
    IN_TURN,
    MOVING,
    MUTANTS,
    ClusterSchedule,
    clocks_agree,
    cluster_schedule,
    moving_schedule,
)
from .simulation.mutants import Mutant
from .simulation.redis_campaign import Scripted

SCHEDULES = 150
LIMIT = 500
"""Schedules that a mutant may survive."""


def test_no_schedule_violates_a_property() -> None:
    """Nobody overlaps and fences increase, whatever clocks show; leases outlive half-moved slots."""
    CLUSTER.hold_to_it(SCHEDULES)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mistake_is_noticed(mutant: Mutant) -> None:
    """The store with each defect that it once had violates a property."""
    with mutant.alive():
        found = noticed(cluster_schedule, mutant.seeds(LIMIT), mutant.killers)
    assert found, f"it survived {LIMIT} schedules"


def test_a_master_that_hangs_costs_no_lease_elsewhere() -> None:
    """Leases on the other masters are kept while one hangs, unless callers wait for that one."""
    HANGING.hold_to_it(30)


@pytest.mark.parametrize("defect", [(ASKED_AGAIN,), (ASKED_AGAIN, IN_TURN)], ids=["again", "both"])
def test_leases_that_a_hanging_master_costs_are_noticed(defect: tuple[Mutant, ...]) -> None:
    """The same schedules lose leases if each caller asks such a master, and if masters are asked in turn, too."""
    with ExitStack() as alive:
        for mutant in defect:
            alive.enter_context(mutant.alive())
        failures = [HANGING.run_seed(seed)[1] for seed in range(70, 90)]
    assert {failure.property for failure in failures if failure} == {"P14 kept"}


@pytest.mark.parametrize(
    "scheduled", [cluster_schedule, moving_schedule], ids=["one move", "two moves"]
)
def test_clocks_that_are_taken_for_one_are_noticed(
    scheduled: Callable[[int, Scripted], ClusterSchedule],
) -> None:
    """Where slots move to masters with other clocks, once or twice, and nobody heeds that, a lease is lost."""
    mistaken = partial(scheduled, scripted=clocks_agree)
    assert noticed(mistaken, (798, 1238, *range(LIMIT)), ("P1", "P14")), (
        f"it survived {LIMIT} schedules"
    )


def test_slots_may_move_several_times_within_a_ttl() -> None:
    """Nobody overlaps where the differences of several clocks add up."""
    MOVING.hold_to_it(50)
