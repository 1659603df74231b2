"""What the keeper sends, and in which order."""

from __future__ import annotations

import types
from collections.abc import Generator, Sequence
from dataclasses import replace
from typing import Any

import pytest

from weblock._core.holding import Holding, Holdings, Terms
from weblock._core.keeping import LINGER, NAP, PORTION, Keeper
from weblock._core.ports import Pulse, Reply, Store
from weblock._core.table import Gone, Held, Waiting
from weblock._runtime.runtimes import BlockingRuntime, drive
from weblock.errors import EngineUnavailable

TERMS = Terms(ttl=10.0, max_hold=None, renew=True, max_waiters=9, label="")
WAITERS = 10 * PORTION


class FakeWaiter:
    """A place in a queue that wants a heartbeat from now on."""

    key = "shop:k"
    terms = TERMS
    due = 0.0
    slack = 0.0
    over = False

    def __init__(self, number: int) -> None:
        self.owner = f"waiter {number}"

    def pulse(self, _now: float) -> Pulse:
        return Pulse(self.key, self.owner, 10.0)

    def heard(self, _reply: object, _sent: float, now: float) -> None:
        self.due = now + 60

    def close(self) -> float:
        return 0.0


class Engine(Store):
    """Answers heartbeats, and ends its keeper when it has had those of all."""

    def __init__(self) -> None:
        self.clock = 0.0
        self.asked: list[list[str]] = []
        self.keeper: Keeper

    async def refresh(self, pulses: Sequence[Pulse]) -> Sequence[Reply]:
        self.asked.append([pulse.owner for pulse in pulses])
        self.clock += 1.0  # It takes its time.
        if len({owner for owners in self.asked for owner in owners}) == WAITERS + 1:
            self.keeper.close()
        return [self._answer(pulse.owner) for pulse in pulses]

    async def release(self, *_args: Any, **_options: Any) -> Reply:
        return Reply(Gone(), self.clock)

    def _answer(self, owner: str) -> Reply:
        held = owner == "holder"
        return Reply(Held(7, self.clock + 10) if held else Waiting(3, 9.0), self.clock)


def asked_of_an_engine(lease_due: float) -> list[list[str]]:
    """The owners in each request of a process that has a lease and many who wait."""
    engine, runtime = Engine(), BlockingRuntime()
    runtime.now = lambda: engine.clock  # type: ignore[method-assign]
    engine.keeper = Keeper(runtime, lambda _runtime: engine, lambda: None)  # type: ignore[arg-type,return-value]
    for number in range(WAITERS):
        engine.keeper.keep(FakeWaiter(number))
    lease = Holding(
        *("shop:l", "holder", 7, TERMS), deadline=10.0, confirmed=True, now=0.0, control=1, void=0.0
    )
    lease.due = lease_due
    engine.keeper.keep_holding(lease)
    drive(engine.keeper.run())
    return engine.asked


def test_heartbeats_of_many_go_in_portions() -> None:
    """No request has more than a portion of them, and everybody's is sent once."""
    asked = asked_of_an_engine(lease_due=0.0)
    assert max(map(len, asked)) == PORTION
    sent = [owner for owners in asked for owner in owners if owner != "holder"]
    assert len(sent) == len({*sent}) == WAITERS


def test_leases_come_before_places() -> None:
    """Whoever holds is renewed first, however many wait beside it."""
    assert "holder" in asked_of_an_engine(lease_due=0.0)[0]


def test_a_lease_that_becomes_due_meanwhile_comes_next() -> None:
    """A lease waits for one portion of its neighbours' heartbeats at most, not for all."""
    assert "holder" in asked_of_an_engine(lease_due=0.5)[1]


class Overloaded(Engine):
    """Needs 0.6 s for a portion, and ends its keeper after half a minute."""

    async def refresh(self, pulses: Sequence[Pulse]) -> Sequence[Reply]:
        self.clock += 0.6
        if self.clock > 30:
            self.keeper.close()
        return [Reply(Held(7, self.clock + 10), self.clock) for _ in pulses]


def test_leases_share_an_engine_that_is_too_slow_for_all_heartbeats() -> None:
    """Each lease is renewed later than it should be, but before it ends: none has to wait for all others twice."""
    engine, runtime = Overloaded(), BlockingRuntime()
    runtime.now = lambda: engine.clock  # type: ignore[method-assign]
    engine.keeper = Keeper(runtime, lambda _runtime: engine, lambda: None)  # type: ignore[arg-type,return-value]
    leases = []
    for number in range(10 * PORTION):
        ttl = 10.0 if number else 1.5  # One of them is due after the others, and ends before them.
        lease = Holding(
            *(f"shop:{number}", f"holder {number}", 7, replace(TERMS, ttl=ttl)),
            *(ttl, True, 0.0, 1, 0.0),
        )
        lease.due = 0.0 if number else 0.5
        engine.keeper.keep_holding(lease)
        leases.append(lease)
    drive(engine.keeper.run())
    assert {lease.reason for lease in leases} == {"closed"}


class Sleeper:
    """A runtime with a clock of its own, whose only mailbox is the keeper's: it says how it sleeps."""

    suspends = True

    def __init__(self) -> None:
        self.clock = 0.0
        self.notified = 0

    def now(self) -> float:
        return self.clock

    def jitter(self) -> float:
        return 0.5

    def mailbox(self) -> Sleeper:
        return self

    def put(self, _message: object) -> None:
        self.notified += 1

    @types.coroutine
    def heard(self, timeout: float | None) -> Generator[float | None, None, None]:
        """Give the test the timeout, until it lets the keeper go on."""
        yield timeout


class Naps(Store):
    """A keeper that a test wakes when its sleep is over, and the requests that it sends."""

    def __init__(self) -> None:
        self.runtime = Sleeper()
        self.asked: list[float] = []
        self.keeper = Keeper(self.runtime, lambda _runtime: self, lambda: True)  # type: ignore[arg-type,return-value]
        self._run = self.keeper.run()
        self._wakes_at: float | None = None

    async def refresh(self, pulses: Sequence[Pulse]) -> Sequence[Reply]:
        self.asked.append(self.runtime.clock)
        return [Reply(Held(7, self.runtime.clock + 10), self.runtime.clock) for _ in pulses]

    def until(self, time: float) -> None:
        """Let time pass; the keeper wakes up whenever its sleep is over."""
        while self._wakes_at is not None and self._wakes_at <= time:
            self.runtime.clock = max(self.runtime.clock, self._wakes_at)
            self._step()
        self.runtime.clock = time

    def hold(self) -> Holding:
        now = self.runtime.clock
        arguments = ("shop:l", "holder", 7, TERMS)
        lease = Holding(*arguments, deadline=now + 10, confirmed=True, now=now, control=1, void=0.0)
        self.keeper.keep_holding(lease)
        if self._wakes_at is None:
            self._step()
        return lease

    def _step(self) -> None:
        timeout = self._run.send(None)
        self._wakes_at = None if timeout is None else self.runtime.clock + timeout


def test_a_section_that_ends_before_its_first_renewal_wakes_no_keeper() -> None:
    """Sections come and go, with pauses longer than any nap, and none of them wakes the thread."""
    naps = Naps()
    for number in range(20):
        naps.until(number * 2.7 * NAP)
        lease = naps.hold()
        naps.until(naps.runtime.clock + 0.9 * NAP)
        naps.keeper.drop_holding(lease)
    assert (naps.runtime.notified, naps.asked) == (0, [])


def test_a_lease_that_woke_nobody_is_renewed_in_time() -> None:
    """A keeper that naps while a lease is acquired renews it when it is due."""
    naps = Naps()
    naps.keeper.drop_holding(naps.hold())
    naps.until(5.5)
    due = naps.hold().due
    naps.until(20)
    assert naps.runtime.notified == 0
    assert due <= naps.asked[0] < due + 0.01


def test_a_keeper_that_has_nothing_to_keep_falls_asleep() -> None:
    """A process that locks nothing any more is woken by nothing, until the next lease wakes its keeper."""
    naps = Naps()
    naps.keeper.drop_holding(naps.hold())
    naps.until(2 * LINGER)
    assert naps._wakes_at is None
    naps.hold()
    assert naps.runtime.notified == 1


@pytest.mark.parametrize("begun", [False, True])
def test_a_keeper_whose_start_was_interrupted_is_started_again(begun: bool) -> None:
    """A signal handler may raise before it runs, or just after: the next lease starts it, or wakes it."""
    naps, starts = Naps(), 0

    def spawn() -> bool:
        nonlocal starts
        starts += 1
        if starts == 1:
            if begun:
                naps._step()
            raise KeyboardInterrupt
        return True

    naps.keeper._spawn = spawn
    hands = Holdings[Holding]()
    with pytest.raises(KeyboardInterrupt):
        naps.keeper.watch(hands, "shop:k", "owner", 10.0)
    naps.until(2 * LINGER)  # It has fallen asleep by then.
    naps.hold()
    assert (starts, naps.runtime.notified) == (2, int(begun))


class Slow(Store):
    """An engine that waits for long for a part of it, unless it is asked in haste."""

    def __init__(self, asked: list[str], how: str = "patiently") -> None:
        self.asked = asked
        self._how = how

    def impatient(self) -> Slow:
        return Slow(self.asked, "in haste")

    async def release(self, *_args: Any, **_options: Any) -> Reply:
        self.asked.append(self._how)
        raise EngineUnavailable("test://", "stuck")


def test_pending_releases_are_sent_in_haste_until_nothing_else_is_kept() -> None:
    """What is to be released in one part of an engine does not delay leases in others; on closing there are none."""
    runtime = Sleeper()
    engine = Slow([])
    keeper = Keeper(runtime, lambda _runtime: engine, lambda: True)  # type: ignore[arg-type,return-value]
    keeper.release_later("shop:k", "owner", 60.0, 0.0)
    run = keeper.run()
    run.send(None)
    assert engine.asked == ["in haste"]
    keeper.close()
    with pytest.raises(StopIteration):
        run.send(None)
    assert engine.asked == ["in haste", "patiently"]


class Portions(Slow):
    """An engine that takes all that is given back at once, and fails for one owner."""

    def impatient(self) -> Portions:
        return self

    async def release_some(
        self, releases: Sequence[tuple[str, str, float]]
    ) -> Sequence[EngineUnavailable | None]:
        self.asked.append(f"{len(releases)} at once")
        owners = [owner for _, owner, _ in releases]
        return [EngineUnavailable("test://", "stuck") if each == "7" else None for each in owners]


def test_many_releases_are_sent_at_once_where_the_engine_can() -> None:
    """Two hundred callers that gave up cost the next one a few round trips, and one failure no other release."""
    runtime = Sleeper()
    engine = Portions([])
    keeper = Keeper(runtime, lambda _runtime: engine, lambda: True)  # type: ignore[arg-type,return-value]
    for number in range(PORTION + 50):
        keeper.release_later("shop:k", str(number), 60.0, 0.0)
    run = keeper.run()
    run.send(None)
    run.send(None)
    assert engine.asked[:2] == [f"{PORTION} at once", "50 at once"]
    assert [*keeper._pending] == ["7"]
    keeper.close()
    with pytest.raises(StopIteration):
        run.send(None)
    assert engine.asked[-1] == "1 at once"
