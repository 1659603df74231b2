"""The protocol under the simulator, on a server that runs the Lua that is shipped."""

from __future__ import annotations

from collections import Counter

import pytest

from .simulation.campaign import on_all_processors
from .simulation.redis_campaign import SOMETIMES, redis_schedule, run_redis_seeds
from .simulation.world import Violation

SCHEDULES = 2_000
CHUNK = 100


@pytest.mark.timeout(900)
def test_no_schedule_violates_a_property() -> None:
    """P1 to P11 hold over restarts, lost writes, promotions and flushes, without allowance."""
    chunks = [range(first, first + CHUNK) for first in range(0, SCHEDULES, CHUNK)]
    counts: Counter[str] = Counter()
    stories: list[str] = []
    for met, failed in on_all_processors(run_redis_seeds, chunks):
        counts.update(met)
        stories += failed
    assert not stories, f"{len(stories)} failures:\n\n{stories[0]}"
    never = [what for what in SOMETIMES if not counts[what]]
    assert not never, "the schedules never met these states, so they prove nothing of them"


@pytest.mark.timeout(900)
def test_without_recovery_two_hold_a_key() -> None:
    """The same schedules find it when a server that has lost leases grants at once."""
    for seed in range(3_000):
        try:
            redis_schedule(seed, recovery=0.0).run()
        except Violation as violation:
            if violation.name == "P1 mutex":
                return
    pytest.fail("nothing was found")
