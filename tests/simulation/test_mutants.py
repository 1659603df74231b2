"""The simulator finds the mistakes that a protocol like this one is known for."""

from __future__ import annotations

import pytest

from .mutants import MUTANTS, Mutant, mutated
from .schedule import simulate

BOUND = 1500


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_is_found(mutant: Mutant) -> None:
    """A protocol with one mistake breaks a property that names it, within few schedules."""
    with mutated(mutant):
        for seed in range(BOUND):
            broken = simulate(seed).violation.partition(" ")[0]
            if broken in mutant.found_by:
                return
    pytest.fail(f"{BOUND} schedules and {mutant.name!r} still lives")


def test_a_mutant_leaves_the_protocol_as_it_was() -> None:
    """What a mutant patched is back in its place afterwards."""
    before = [patch.owner.__dict__[patch.name] for m in MUTANTS for patch in m.patches]
    for mutant in MUTANTS:
        with mutated(mutant):
            pass
    assert before == [patch.owner.__dict__[patch.name] for m in MUTANTS for patch in m.patches]
