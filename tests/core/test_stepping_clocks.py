"""The protocol on an engine whose clock is set, under the simulator."""

from __future__ import annotations

import pytest

from .simulation.mutants import Mutant
from .simulation.stepping import CLOCKS, MUTANTS

SCHEDULES = 1_000
LIMIT = 1_000
"""Schedules that a mutant may survive."""


@pytest.mark.timeout(900)
def test_a_clock_that_steps_deceives_a_holder_only_briefly() -> None:
    """No deadline is later than what was asked for, and two hold a key until one renews, no longer."""
    CLOCKS.hold_to_it(SCHEDULES)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_holder_that_believes_the_clock_is_noticed(mutant: Mutant) -> None:
    """The protocol as it would be if it took the engine's word for how long a lease lasts."""
    with mutant.alive():
        for seed in range(LIMIT):
            _, failure = CLOCKS.run_seed(seed)
            if failure and failure.property.split()[0] in mutant.killers:
                return
    pytest.fail(f"it survived {LIMIT} schedules")
