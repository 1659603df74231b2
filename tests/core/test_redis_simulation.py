"""The protocol under the simulator, on a server that runs the Lua that is shipped."""

from __future__ import annotations

from functools import partial

from .simulation.campaign import noticed
from .simulation.redis_campaign import (
    REDIS,
    RESTARTS,
    redis_schedule,
    restarting_schedule,
    uptime_believed,
)

SCHEDULES = 200


def test_no_schedule_violates_a_property() -> None:
    """P1 to P11 hold over restarts, lost writes, promotions and flushes, without allowance."""
    REDIS.hold_to_it(SCHEDULES)


def test_without_recovery_two_hold_a_key() -> None:
    """The same schedules find it when a server that has lost leases grants at once."""
    assert noticed(partial(redis_schedule, recovery=0.0), range(3_000), ("P1",))


def test_restarts_at_any_part_of_a_second_end_no_quarantine_early() -> None:
    """A server that tells its uptime in whole seconds grants nothing until all leases have ended."""
    RESTARTS.hold_to_it(100)


def test_an_uptime_that_is_believed_is_noticed() -> None:
    """The same schedules find two holders where a server's word counts for when it was started."""
    mistaken = partial(restarting_schedule, scripted=uptime_believed)
    assert noticed(mistaken, (1908, *range(600)), ("P1",))
