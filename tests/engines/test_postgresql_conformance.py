"""The statements for common cases, on a real server, and the pure functions: both say the same."""

from __future__ import annotations

from typing import Any

from tests.core.simulation.conformance import Clock, Pure, compare
from tests.servers.postgres import fresh_postgresql
from weblock._core.ports import Pulse, Switchboard
from weblock._core.table import Answer, Claim, KeyState
from weblock._runtime.runtimes import BlockingRuntime, drive
from weblock.stores.cells import LocalNotifier
from weblock.stores.postgresql import open_engine
from weblock.stores.postgresql.cells import Row
from weblock.stores.postgresql.engine import PostgreSQLEngine

NOW = b"extract(epoch FROM clock_timestamp())"


def test_a_real_server_does_the_same() -> None:
    """Of random steps, each has the answer and leaves the state that the pure functions say."""
    engine = open_engine(fresh_postgresql())
    try:
        for seed in range(8):
            clock = Clock()
            real = Rows(engine, clock, f"key {seed}")
            compare(seed, clock, Pure(lambda clock=clock: clock.now), [real])  # type: ignore[list-item]
    finally:
        engine.close()


class Rows:
    """One key, as the table keeps it, with a clock of ours in the place of the server's."""

    def __init__(self, engine: PostgreSQLEngine, clock: Clock, key: str) -> None:
        self._key = key
        self._clock = clock
        self._store: Any = engine.connect(BlockingRuntime())
        self._cells: Any = self._store._cells
        self._notifier = self._store._notifier = LocalNotifier(Switchboard())
        self._links, self._cells._links = self._cells._links, self
        self.in_turn, self.callers = self._links.in_turn, self._links.callers

    async def ask(self, statement: bytes, *parameters: Any) -> list[Row]:
        now = f"{self._clock.now / 1e6!r}::float8"
        rows: list[Row] = await self._links.ask(statement.replace(NOW, now.encode()), *parameters)
        return rows

    def acquire(self, claim: Claim, room: int) -> Answer:
        self._notifier.process = (
            claim.process
        )  # One store stands for the callers of several processes.
        return drive(self._store.acquire(self._key, claim, room=room)).answer

    def refresh(self, beats: list[tuple[str, float]]) -> list[Answer]:
        pulses = [Pulse(self._key, owner, ttl) for owner, ttl in beats]
        return [each.answer for each in drive(self._store.refresh(pulses))]  # type: ignore[union-attr]

    def release(self, owner: str, void: float) -> Answer:
        return drive(self._store.release(self._key, owner, void=void)).answer

    def transfer(self, owner: str, claim: Claim) -> Answer:
        return drive(self._store.transfer(self._key, owner, claim, fence=0)).answer

    def force_release(self) -> Answer:
        return drive(self._store.force_release(self._key)).answer

    def ask_release(self) -> Answer:
        return drive(self._store.ask_release(self._key)).answer

    def state(self) -> KeyState:
        return drive(self._cells._look([self._key]))[self._key].state
