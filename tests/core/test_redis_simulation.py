"""The protocol under the simulator, on a server that runs the Lua that is shipped."""

from __future__ import annotations

import pytest

from .simulation.redis_campaign import REDIS, redis_schedule
from .simulation.world import Violation

SCHEDULES = 400


@pytest.mark.timeout(900)
def test_no_schedule_violates_a_property() -> None:
    """P1 to P11 hold over restarts, lost writes, promotions and flushes, without allowance."""
    REDIS.hold_to_it(SCHEDULES)


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
