"""The Lua scripts in the simulator's model of a server, and the pure functions that say what they mean."""

from __future__ import annotations

import pytest

from weblock._core.table import Busy, Claim

from .simulation.conformance import (
    Clock,
    LongWay,
    Lua,
    Pure,
    compare,
    compare_full_queues,
    in_the_model,
)
from .simulation.costs import EXPECTED, CountingModel, counted
from .simulation.script_checks import SEQUENCES

FURTHER = range(SEQUENCES, 120)
"""Sequences beside those that the mutants of the scripts are tried with (``test_script_mutants.py``)."""


def test_the_lua_is_what_the_pure_functions_say() -> None:
    """On thousands of random steps, the scripts answer and keep the same, also without their usual cases."""
    for seed in FURTHER:
        clock = Clock()
        both = [in_the_model(clock), in_the_model(clock, kind=LongWay)]
        compare(seed, clock, Pure(lambda clock=clock: clock.now), both)


def test_full_queues_are_what_the_pure_functions_say() -> None:
    """Of a long queue that is full, both find the same lapsed places, and refuse the same."""
    for seed in range(2, 4):  # The mutants are tried with the first two.
        clock = Clock()
        pure = Pure(lambda clock=clock: clock.now)
        assert compare_full_queues(seed, clock, pure, in_the_model(clock))


@pytest.mark.parametrize("room", [0, 50])
def test_a_refusal_costs_the_same_however_many_wait(room: int) -> None:
    """Whoever will not wait, or finds the queue full, is refused without a walk through the queue."""
    costs: list[int] = []
    for crowd in (50, 500):
        model = CountingModel(lambda: 1_790_000_000_000_000, lambda _channel, _payload: None)
        lua = Lua(model.evaluate, "key")
        for number in range(crowd + 1):
            lua.acquire(Claim(f"owner{number}", "p", 10.0, ""), 1000)
        model.calls = 0
        assert isinstance(lua.acquire(Claim("late", "p", 10.0, ""), room), Busy)
        costs.append(model.calls)
    assert costs[0] == costs[1] < 50


def test_each_operation_costs_as_little_as_it_should() -> None:
    """The commands that a server runs for each operation are those of the table."""
    assert counted() == EXPECTED
