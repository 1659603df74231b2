"""Deadlines, where the engine's clock is set back or forward, and where a lease was extended by far."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from tests.support.waiting import PATIENCE, eventually
from weblock import AsyncLocks, EngineUnavailable, Locks
from weblock._core.holding import Anchor, Holding, Terms
from weblock._core.ports import Reply, Runtime, Store
from weblock._core.table import HANDOFF, Held
from weblock._runtime.runtimes import now
from weblock.stores.memory import MemoryEngine

TTL = 3.0
STEP = 3600.0
TERMS = Terms(ttl=TTL, max_hold=None, renew=True, max_waiters=10, label="")

Call = Callable[[Any], Any]


class Clock:
    """A runtime for an engine whose clock is ``ahead`` seconds ahead of the clients'."""

    def __init__(self, runtime: Runtime, engine: SteppingEngine) -> None:
        self._runtime = runtime
        self._engine = engine

    def now(self) -> float:
        return self._runtime.now() + self._engine.ahead


class SteppingEngine(MemoryEngine):
    """An engine whose clock can be set."""

    ahead = 0.0

    def connect(self, runtime: Runtime) -> Store:
        return super().connect(Clock(runtime, self))  # type: ignore[arg-type]


@pytest.fixture
def engine() -> SteppingEngine:
    """An engine whose clock is right until a test sets it."""
    return SteppingEngine()


@pytest.fixture
def call() -> Iterator[Call]:
    with asyncio.Runner() as runner:

        async def awaited(call: Any) -> Any:
            return await call

        yield lambda made: runner.run(awaited(made)) if inspect.isawaitable(made) else made


@pytest.fixture(params=[Locks, AsyncLocks])
def locks(
    request: pytest.FixtureRequest, engine: SteppingEngine, call: Call
) -> Iterator[Locks | AsyncLocks]:
    locks = request.param(engine, ttl=TTL, wait=None)
    yield locks
    call(locks.close())


@pytest.mark.parametrize("ahead", [-STEP, STEP])
def test_no_clock_makes_a_lease_longer_than_its_ttl(
    engine: SteppingEngine, locks: Any, call: Call, ahead: float
) -> None:
    """A lease that is asked for, renewed or extended lasts as long as was asked for, and no longer."""
    lease = call(locks.acquire("k"))
    engine.ahead = ahead
    try:
        call(lease.extend(0))
    except Exception:  # noqa: BLE001 - of a clock that went forward, the lease may be lost
        assert ahead > 0
    assert lease.remaining() <= TTL
    engine.ahead = 0.0


def test_a_loss_is_noticed_however_far_the_lease_was_extended(
    engine: SteppingEngine, locks: Any, call: Call
) -> None:
    """A lease that was extended by an hour and is taken away does not count for that hour."""
    lease = call(locks.acquire("k"))
    call(lease.extend(STEP))
    with Locks(engine) as another:
        assert another.force_release("k")
    eventually(lambda: not lease.held)


def test_a_loss_is_noticed_where_max_hold_leaves_nothing_to_renew(
    engine: SteppingEngine, locks: Any, call: Call
) -> None:
    """A lease that lasts until its ``max_hold`` as it is still asks the engine whether it is there."""
    lease = call(locks.acquire("k", max_hold=STEP))
    call(lease.extend(2 * STEP))
    assert STEP / 2 < lease.remaining() <= STEP
    with Locks(engine) as another:
        assert another.force_release("k")
    eventually(lambda: not lease.held)


def held(*, max_hold: float | None = None) -> Holding:
    """Return a lease of three seconds that was asked for at time 0."""
    terms = replace(TERMS, max_hold=max_hold)
    return Holding("k", "o", 7, terms, deadline=2.9, confirmed=True, now=0.0, control=1, void=0.0)


def test_a_renewal_is_due_within_a_third_of_the_ttl() -> None:
    """However far an engine or an extension has moved the deadline out."""
    lease = held()
    assert lease.due <= TTL / 3
    lease.renewed(Held(7, until=STEP + 60.0), Anchor(STEP, 1.0), 60.0)
    assert lease.deadline > 50.0
    assert lease.due <= 1.0 + TTL / 3
    assert lease.pulse(1.5)
    lease.heard(Reply(Held(7, until=STEP + 60.0), now=0.0), sent=1.5, now=1.6)
    assert lease.due <= 1.5 + TTL / 3


def test_renewals_do_not_crowd_before_max_hold() -> None:
    """Where nothing can be renewed any more the engine is still asked, each third of the ttl."""
    lease, asked, now = held(max_hold=6.0), 0, 0.0
    while not lease.over:
        now = lease.due
        if pulse := lease.pulse(now):
            asked += 1
            assert now + pulse.ttl <= 6.0 + 0.1
            lease.heard(Reply(Held(7, until=now + pulse.ttl), now=now), sent=now, now=now)
    assert lease.reason == "max_hold"
    assert now == 6.0
    assert asked <= 7


def test_a_heartbeat_that_fails_where_nothing_is_renewed_is_no_risk() -> None:
    """A lease that lasts until its ``max_hold`` as it is loses nothing by an engine that is silent."""
    silent = EngineUnavailable("test://", "silent")
    lease = held(max_hold=2.0)
    assert lease.pulse(1.0)
    lease.heard(silent, sent=1.0, now=1.1)
    assert not lease.at_risk
    lease = held()
    lease.heard(silent, sent=1.0, now=1.1)
    assert lease.at_risk


def test_what_is_asked_to_extend_ends_with_max_hold() -> None:
    """An extension does not have the engine keep a lease that its holder will have given up."""
    lease = held(max_hold=6.0)
    assert lease.ttl_to_extend(STEP, 1.0) < 5.2
    asked = held().ttl_to_extend(STEP, 1.0)
    assert Anchor.at(1.0).deadline(STEP * 9, at_most=asked, drift=TERMS.drift) == pytest.approx(
        2.9 + STEP
    )


async def test_a_turn_that_came_while_the_loop_was_blocked_is_taken(engine: SteppingEngine) -> None:
    """The keeper has kept it meanwhile: that the loop stood still is not the engine's failure."""
    with Locks(engine, ttl=TTL) as others:
        async with AsyncLocks(engine, ttl=TTL) as locks:
            lease = others.acquire("k")
            waiter = asyncio.create_task(locks.acquire("k", wait=PATIENCE))
            await asyncio.to_thread(eventually, lambda: others.inspect("k").waiters)  # type: ignore[union-attr]
            lease.release()
            handed_over = now()
            eventually(lambda: now() > handed_over + HANDOFF + 0.2)  # And the loop with it.
            got = await waiter
            assert got.fence > lease.fence
            await got.release()
