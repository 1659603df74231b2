"""The quorum store that is shipped, under the simulator: three and five servers that run its Lua.

Each server crashes, comes back with its data or without, stands still, and has a clock of its own.
"""

from __future__ import annotations

from functools import partial

import pytest

from weblock.stores.quorum.store import QuorumStore

from .simulation.campaign import noticed, on_all_processors
from .simulation.mutants import Mutant
from .simulation.properties import Mutex
from .simulation.quorum_campaign import QUORUM, Variant, quorum_schedule
from .simulation.quorum_mutants import MUTANTS
from .simulation.quorum_truth import Fences
from .simulation.takers import TakersSchedule

SCHEDULES = 150
LIMIT = 1_000
"""Schedules that a mutant may survive."""


def test_no_schedule_violates_a_property() -> None:
    """No two hold, fences increase, nothing is left behind, and a minority's faults stop nobody."""
    QUORUM.hold_to_it(100)


HOLES = {
    "servers that come back empty, and recovery is off": (
        *(Variant(recovers=False, forgetful=True, properties=(Mutex,)), "P1"),
        1,
    ),
    "clocks that differ by 30 %": (Variant(drift=0.3, properties=(Mutex,)), "P1", 195),
    "clocks that differ by 3 %": (Variant(drift=0.03), "P7", 1),
    "a server that loses its data while its clock is ten minutes behind": (
        *(Variant(one_by_one=True, behind=600.0, properties=(Mutex, Fences)), "P2"),
        84,
    ),
}
"""What Redlock does not bear, what is violated, and the seed of a schedule that shows it."""


@pytest.mark.parametrize("hole", HOLES)
def test_what_it_does_not_bear_is_found(hole: str) -> None:
    """Beyond its assumptions two hold a key, and the checkers see it; so they would see a bug."""
    variant, property_, first = HOLES[hole]
    assert noticed(partial(quorum_schedule, variant=variant), (first, *range(400)), (property_,))


def test_servers_that_forget_are_borne() -> None:
    """The schedules that find two holders without recovery find none with it."""
    run_all(range(30), Variant(forgetful=True))


def test_fences_increase_though_servers_fail_one_by_one() -> None:
    """One was away, one has lost its data, one is down: fences go on, whatever clients' clocks show."""
    run_all(range(60), Variant(one_by_one=True, properties=(Mutex, Fences)))


def test_servers_may_be_behind_by_less_than_they_recover_for() -> None:
    """A server that has lost its data goes by its own clock, which has that much time to spare."""
    run_all(range(60), Variant(one_by_one=True, behind=1.5, properties=(Mutex, Fences)))


def test_a_server_whose_clock_is_off_changes_no_order() -> None:
    """Waiters are served as they came, by the clocks of the majority that agrees."""
    run_all(range(20), Variant(crowded=True, behind=600.0))


def hunt(index: int) -> tuple[str, str]:
    """A mutant, and the property that noticed it; nothing if it survives."""
    mutant = MUTANTS[index]
    with mutant.alive():
        return mutant.name, noticed(quorum_schedule, mutant.seeds(LIMIT), mutant.killers)


def test_no_mutant_of_the_quorum_survives() -> None:
    """Votes that are miscounted, fences that differ, releases that are left out: each is noticed."""
    deaths = list(on_all_processors(hunt, range(len(MUTANTS))))
    survivors = [name for name, property_ in deaths if not property_]
    assert not survivors, f"survived {LIMIT} schedules"


TAKERS = (
    Mutant(
        "takers ask all servers at once",
        QuorumStore,
        "transfer",
        "if votes.answers(Held):",
        "if True:",
        ("M3",),
    ),
    Mutant(
        "a taker goes on where another one was first",
        QuorumStore,
        "transfer",
        "if server in votes.answers(Gone):",
        "if False:",
        ("M3",),
        seed=1036,
    ),
    Mutant(
        "takers ask the servers in any order",
        QuorumStore,
        "transfer",
        "self._engine.order",
        "sorted(self._all, key=lambda _: self._runtime.jitter())",
        ("M3",),
    ),
)


def test_one_of_several_takers_gets_the_lease() -> None:
    """However their requests arrive, and whichever server is down, the votes are not split."""
    for seed in range(SCHEDULES):
        TakersSchedule(seed).run()


@pytest.mark.parametrize("mutant", TAKERS, ids=lambda mutant: mutant.name)
def test_no_mutant_of_the_takers_survives(mutant: Mutant) -> None:
    """Without the order of the servers, the lease is lost for all takers."""
    with mutant.alive():
        assert noticed(TakersSchedule, mutant.seeds(SCHEDULES), mutant.killers)


def run_all(seeds: range, variant: Variant) -> None:
    """Raises the first ``Violation``."""
    for seed in seeds:
        quorum_schedule(seed, variant).run()
