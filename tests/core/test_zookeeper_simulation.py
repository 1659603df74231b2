"""The ZooKeeper store that is shipped, under the simulator: a leader, servers that lag, and sessions that expire."""

from __future__ import annotations

from functools import partial

from .simulation.campaign import noticed, on_all_processors
from .simulation.zookeeper_campaign import ZOOKEEPER, Variant, zookeeper_schedule
from .simulation.zookeeper_mutants import MUTANTS

SCHEDULES = 180
LIMIT = 400
"""Schedules that a mutant may survive."""


def test_no_schedule_violates_a_property() -> None:
    """No two hold, fences increase, waiters enter in their order, and nothing is left behind."""
    ZOOKEEPER.hold_to_it(SCHEDULES)


def test_clocks_that_differ_too_much_are_found() -> None:
    """With clocks whose rates differ by 5 %, two hold a key or a deadline comes too late, and it is seen."""
    schedule = partial(zookeeper_schedule, variant=Variant(drift=0.05))
    assert noticed(schedule, range(LIMIT), ("P1", "P7"))


def hunt(index: int) -> tuple[str, str]:
    """A mutant, and the property that noticed it; nothing if it survives."""
    mutant = MUTANTS[index]
    with mutant.alive():
        return mutant.name, noticed(zookeeper_schedule, mutant.seeds(LIMIT), mutant.killers)


def test_no_mutant_of_the_store_survives() -> None:
    """Leases that are timed wrongly, grants without conditions, releases that are left out: each is noticed."""
    deaths = list(on_all_processors(hunt, range(len(MUTANTS))))
    survivors = [name for name, property_ in deaths if not property_]
    assert not survivors, f"survived {LIMIT} schedules"
