"""Whether the simulator would notice: the protocol with one mistake at a time."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from .simulation.campaign import CORE, noticed, on_all_processors
from .simulation.mutants import MUTANTS

LIMIT = 4_000
"""Schedules that a mutant may survive."""


class Death(NamedTuple):
    """What killed a mutant, and in which schedule; of a survivor, nothing did."""

    mutant: int
    cause: str


def hunt(index: int) -> Death:
    """Runs schedules with a mutant until one violates a property that the mutant should violate."""
    mutant = MUTANTS[index]
    with mutant.alive():
        return Death(index, noticed(CORE.schedule, mutant.seeds(LIMIT), mutant.killers))


def test_no_mutant_survives(capsys: pytest.CaptureFixture[str]) -> None:
    """Each mistake violates a property that it should violate, within a few thousand schedules."""
    deaths = sorted(on_all_processors(hunt, range(len(MUTANTS))))
    with capsys.disabled():
        sys.stdout.write("\n" + "\n".join(_told(deaths)) + "\n")
    survivors = [MUTANTS[death.mutant].name for death in deaths if not death.cause]
    assert not survivors, f"survived {LIMIT} schedules"


def _told(deaths: list[Death]) -> Iterator[str]:
    for death in deaths:
        yield f"  {MUTANTS[death.mutant].name:52s} {death.cause or 'SURVIVED'}"
