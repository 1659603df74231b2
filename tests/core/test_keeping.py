"""What the keeper sends, and in which order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from weblock._core.holding import Holding, Terms
from weblock._core.keeping import PORTION, Keeper
from weblock._core.ports import Pulse, Reply
from weblock._core.table import Gone, Held, Waiting
from weblock._runtime.blocking import BlockingRuntime, drive

TERMS = Terms(ttl=10.0, max_hold=None, renew=True, max_waiters=9, label="")
WAITERS = 10 * PORTION


class Place:
    """A place in a queue that wants a heartbeat from now on."""

    key = "shop:k"
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


class Engine:
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
        return Reply(Held(7, self.clock + 10) if held else Waiting(3, 9.0, ()), self.clock)


def asked_of_an_engine(lease_due: float) -> list[list[str]]:
    """The owners in each request of a process that has a lease and many who wait."""
    engine, runtime = Engine(), BlockingRuntime()
    runtime.now = lambda: engine.clock  # type: ignore[method-assign]
    engine.keeper = Keeper(runtime, lambda _runtime: engine, lambda: None)  # type: ignore[arg-type,return-value]
    for number in range(WAITERS):
        engine.keeper.keep(Place(number))
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
