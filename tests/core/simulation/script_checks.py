"""All that the scripts are asked, as many small checks, and which lines of the Lua each of them runs.

A mistake in one line can be noticed by those checks alone that run the line. Those that try one thing come first,
before those that try many by chance; and of each the cheapest.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import NamedTuple

from weblock.stores.redis import scripts

from . import agreeing, costs, lives, recovery, sharing
from .conformance import Clock, LongWay, Lua, Pure, compare, compare_full_queues, in_the_model
from .redis_campaign import AS_SHIPPED, Mutant, Scripted
from .redis_model import lines_run

SEQUENCES = 60
LIVES = 150

Line = tuple[str, int]
"""A file of the scripts, and the number of a line in it."""


class Check(NamedTuple):
    """One of them: it raises something if scripts are not as they should be."""

    name: str
    run: Callable[[Scripted], None]
    by_chance: bool = False


class Known(NamedTuple):
    """What was seen of a check: whether it fails, the lines it runs, and the seconds of a processor it takes."""

    check: Check
    fails: bool
    lines: frozenset[Line]
    cost: float


def checks() -> Iterator[Check]:
    """All of them, those first that try just one thing."""
    for of_recovery in recovery.CASES:
        yield Check(f"recovery{of_recovery.__name__}", partial(_recovers, of_recovery))
    for of_agreement, seconds in agreeing.CASES.items():
        yield Check(f"agreeing{of_agreement.__name__}", partial(_agrees, of_agreement, seconds))
    for of_sharing, seconds in sharing.CASES.items():
        yield Check(f"sharing{of_sharing.__name__}", partial(_shares, of_sharing, seconds))
    yield Check("costs", _costs_no_more)
    for seed in range(SEQUENCES):
        yield Check(f"sequence {seed}", partial(_conforms, seed, Lua), by_chance=True)
        long_way = partial(_conforms, seed, LongWay)
        yield Check(f"sequence the long way {seed}", long_way, by_chance=True)
    for seed in range(2):
        yield Check(f"full queue {seed}", partial(_refuses, seed), by_chance=True)
    for seed in range(LIVES):
        yield Check(f"life {seed}", partial(lives.lives_long, seed), by_chance=True)


def _recovers(case: Callable[[recovery.Rig], None], scripted: Scripted) -> None:
    case(recovery.Rig(scripted))


def _agrees(case: Callable[[agreeing.Rig], None], seconds: float, scripted: Scripted) -> None:
    case(agreeing.Rig(scripted, seconds))


def _shares(case: Callable[[sharing.Rig], None], seconds: float, scripted: Scripted) -> None:
    case(sharing.Rig(scripted, seconds))


def _costs_no_more(scripted: Scripted) -> None:
    assert costs.counted(scripted) == costs.EXPECTED


def _conforms(seed: int, kind: type[Lua], scripted: Scripted) -> None:
    clock = Clock()
    compare(seed, clock, Pure(lambda: clock.now), [in_the_model(clock, scripted, kind)])


def _refuses(seed: int, scripted: Scripted) -> None:
    clock = Clock()
    compare_full_queues(seed, clock, Pure(lambda: clock.now), in_the_model(clock, scripted))


@cache
def known_checks() -> list[Known]:
    """Each check and what it runs and costs, in the order in which they are tried."""
    return sorted(map(_seen, checks()), key=lambda known: (known.check.by_chance, known.cost))


def _seen(check: Check) -> Known:
    began = time.process_time()
    with lines_run() as lines:
        failed = fails(check, AS_SHIPPED)
    cost = time.process_time() - began
    return Known(check, failed, frozenset(_lines_of_files(lines)), cost)


def _lines_of_files(lines: dict[str, set[int]]) -> Iterator[Line]:
    for name, numbers in lines.items():
        places = _places(name)
        yield from (places[number - 1] for number in numbers if number <= len(places))


@cache
def _places(name: str) -> tuple[Line, ...]:
    """For each line of a script, the file that it is from, and its number there."""
    parts = {
        "constants": scripts.constants(name),
        **{each: scripts.source(each) for each in scripts.files_of(name)},
    }
    return tuple(
        (file, number) for file, text in parts.items() for number in range(1, text.count("\n") + 2)
    )


def who_notices(mutant: Mutant) -> str:
    """The name of the first check that fails because of a mutant; nothing if none does."""
    known = known_checks()
    # Of a line without any instruction of its own it is not known who runs it.
    running = [each for each in known if mutant.line in each.lines] or known
    return next((each.check.name for each in running if fails(each.check, mutant)), "")


def fails(check: Check, scripted: Scripted) -> bool:
    """Whether scripts are not as a check wants them, which may show in any way."""
    try:
        check.run(scripted)
    except Exception:  # noqa: BLE001 - a broken script may break anything
        return True
    return False
