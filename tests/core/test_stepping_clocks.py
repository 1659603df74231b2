"""The protocol on an engine whose clock is set, under the simulator."""

from __future__ import annotations

from functools import partial

import pytest

from .simulation.campaign import noticed
from .simulation.mutants import Mutant
from .simulation.stepping import (
    CLOCKS,
    MUTANTS,
    REDIS_CLOCKS,
    fences_by_the_clock,
    stepping_redis_schedule,
)

SCHEDULES = 150
LIMIT = 1_000
"""Schedules that a mutant may survive."""


def test_a_clock_that_steps_deceives_a_holder_only_briefly() -> None:
    """No deadline is later than what was asked for, and two hold a key until one renews, no longer."""
    CLOCKS.hold_to_it(SCHEDULES)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_holder_that_believes_the_clock_is_noticed(mutant: Mutant) -> None:
    """The protocol as it would be if it took the engine's word for how long a lease lasts."""
    with mutant.alive():
        found = noticed(CLOCKS.schedule, mutant.seeds(LIMIT), mutant.killers)
    assert found, f"it survived {LIMIT} schedules"


def test_the_clock_of_a_redis_server_steps() -> None:
    """With the Lua that is shipped, too, and fences increase although the server's clock is set back."""
    REDIS_CLOCKS.hold_to_it(100)


def test_a_fence_that_is_only_a_time_is_noticed() -> None:
    """Scripts that take fences from the server's clock alone give the same fence twice, or a smaller one."""
    mistaken = partial(stepping_redis_schedule, scripted=fences_by_the_clock)
    assert noticed(mistaken, range(LIMIT), ("P2",)), f"it survived {LIMIT} schedules"
