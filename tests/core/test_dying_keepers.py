"""The protocol where keepers fail wherever they are, under the simulator."""

from __future__ import annotations

import pytest

from .simulation.campaign import noticed
from .simulation.dying import KEEPERS, MUTANTS
from .simulation.mutants import Mutant

SCHEDULES = 200
LIMIT = 300
"""Schedules that a mutant may survive."""


def test_a_keeper_that_dies_costs_nobody_a_lease() -> None:
    """No lease is lost that is renewed, and nobody waits for long, however often keepers die."""
    KEEPERS.hold_to_it(SCHEDULES)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_lease_that_nobody_looks_after_is_noticed(mutant: Mutant) -> None:
    """A keeper that is not started again, and leases that it forgot when it died, are found."""
    with mutant.alive():
        found = noticed(KEEPERS.schedule, mutant.seeds(LIMIT), mutant.killers)
    assert found, f"it survived {LIMIT} schedules"
