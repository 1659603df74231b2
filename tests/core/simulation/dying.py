"""Schedules in which keepers die: what is raised in one ends it wherever it is, and it is started again.

Nothing else ever fails, so that no lease may be lost, and nobody may wait for longer than usual.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from random import Random
from typing import Final

from weblock._core.holding import Holding
from weblock.errors import LeaseLost

from .attempts import Attempt
from .campaign import Campaign
from .client import Client
from .mutants import Mutant
from .properties import PROPERTIES, Property
from .schedule import Schedule
from .swarm import Swarm

SOMETIMES: Final = (
    "keeper died",
    "keeper died while it was asking",
    "keeper died while its process held a lease",
)


OFTEN: Final = 2
"""How often one keeper dies, at most: a lease of 0.6 s does not bear it four times in a row."""

LONGEST: Final = 400
"""Looks until a keeper that asks for nothing is killed all the same."""


class Kept(Property):
    """A lease that is renewed is lost to nothing but ``max_hold``."""

    name = "P14 kept"

    def lost(self, attempt: Attempt, loss: LeaseLost) -> None:
        if loss.reason in {"expired", "taken"}:
            self.fail(f"{attempt.name} lost its lease: {loss}")


class DyingSchedule(Schedule):
    """Keepers die, and some of them die again; nothing else ever fails."""

    def __init__(self, random: Random) -> None:
        quiet = (
            "late",
            "lost_requests",
            "lost_replies",
            "lost_notifications",
            "duplicates",
            "unrenewed",
        )
        swarm = replace(
            Swarm.drawn(random),
            **dict.fromkeys(quiet, 0.0),
            **dict.fromkeys(("engine_stops", "restarts", "stops", "crashes", "closes"), 0),
            section=random.choice([0.3, 1.5, 4.0]),
            delay=random.choice([0.005, 0.03]),
        )
        super().__init__(random, swarm)
        self.truth.add([each(self.truth) for each in (*PROPERTIES, Kept)])
        for client in self._slots:
            for _ in range(random.randint(0, OFTEN)):
                kill = partial(self._kill_its_keeper, client, random.choice([0, LONGEST]))
                self.world.after(random.random() * swarm.calm_at, kill)

    def _kill_its_keeper(self, client: Client, patience: int) -> None:
        """Kills it now or, with ``patience``, as soon as it is asking the engine for something."""
        if patience and not client.keeper_store.asking:
            again = partial(self._kill_its_keeper, client, patience - 1)
            self.world.after(self.swarm.delay / 2, again)
            return
        if not client.keeper_dies():
            return
        self.truth.disturb("keeper died", 0.5)
        self.world.note("keeper dies", client.process.name)
        if client.keeper_store.asking:
            self.truth.sometimes("keeper died while it was asking")
        if any(belief.process is client.process for belief in self.truth.beliefs):
            self.truth.sometimes("keeper died while its process held a lease")


def dying_schedule(seed: int) -> Schedule:
    return DyingSchedule(Random(seed))


KEEPERS = Campaign("keepers", dying_schedule, SOMETIMES)
"""Keepers that die."""

MUTANTS: Final = (
    Mutant(
        "a renewal counts as done when it is sent",
        Holding,
        "pulse",
        "self._asked = self.terms.ttl\n",
        "self._asked, self.due = self.terms.ttl, self.deadline\n",
        ("P12", "P14"),
    ),
    Mutant(
        "a keeper that failed is not started again",
        Client,
        "_keep",
        "await self.runtime.sleep(AGAIN_AFTER)",
        "return",
        ("P14",),
        seed=11,
    ),
)
"""The protocol with a mistake that shows only when a keeper dies."""
