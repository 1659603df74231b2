"""A release that the engine answers late."""

from __future__ import annotations

from typing import Any

import pytest

from weblock import LeaseLost
from weblock._core.acquiring import Locker
from weblock._core.holding import Holding, Holdings, Terms
from weblock._core.keeping import Keeper
from weblock._core.ports import Reply, Store, Switchboard
from weblock._core.table import Claim, Gone, Held
from weblock._runtime.runtimes import BlockingRuntime, drive

TTL = 10.0
TERMS = Terms(ttl=TTL, max_hold=None, renew=True, max_waiters=9, label="")


class Engine(Store):
    """Grants whatever is asked for, and takes ``late`` seconds to say that it knows no such lease."""

    process = ""

    def __init__(self, late: float) -> None:
        self.clock = 0.0
        self._late = late

    async def acquire(self, _key: str, _claim: Claim, *, room: int) -> Reply:
        assert room
        return Reply(Held(7, self.clock + TTL), self.clock)

    async def release(self, *_args: Any, **_options: Any) -> Reply:
        self.clock += self._late
        return Reply(Gone(), self.clock)


def acquired(late: float) -> tuple[Locker, Holdings[Holding]]:
    """Return a lease whose release will be answered so late, and what releases it."""
    engine, runtime = Engine(late), BlockingRuntime()
    runtime.now = lambda: engine.clock  # type: ignore[method-assign]
    keeper = Keeper(runtime, lambda _runtime: engine, lambda: True)  # type: ignore[arg-type,return-value]
    locker = Locker(
        store=engine,  # type: ignore[arg-type]
        runtime=runtime,
        keeper=keeper,
        switchboard=Switchboard(),
        engine="slow://",
    )
    return locker, drive(locker.acquire(["shop:k"], TERMS, None))


def test_a_lease_that_ended_while_its_release_was_under_way_was_not_lost() -> None:
    """It was valid when its holder let go of it, so nobody else had the key before that."""
    locker, hands = acquired(late=TTL)
    drive(locker.release(hands))


def test_a_lease_that_the_engine_had_lost_before_is_told() -> None:
    """It should have lasted for longer when the engine said that it did not know it."""
    locker, hands = acquired(late=TTL / 2)
    with pytest.raises(LeaseLost, match="no longer knows"):
        drive(locker.release(hands))
