"""The protocol under the simulator, on a server that runs the Lua that is shipped."""

from __future__ import annotations

import pytest

from .simulation.redis_campaign import (
    REDIS,
    RESTARTS,
    redis_schedule,
    restarting_schedule,
    uptime_believed,
)
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


def test_restarts_at_any_part_of_a_second_end_no_quarantine_early() -> None:
    """A server that tells its uptime in whole seconds grants nothing until all leases have ended."""
    RESTARTS.hold_to_it(200)


def test_an_uptime_that_is_believed_is_noticed() -> None:
    """The same schedules find two holders where a server's word counts for when it was started."""
    for seed in range(600):
        try:
            restarting_schedule(seed, uptime_believed).run()
        except Violation as violation:
            if violation.name == "P1 mutex":
                return
    pytest.fail("nothing was found")
