"""``memory://`` takes a short way for keys that nobody waits for: with the same answers."""

from __future__ import annotations

from random import Random
from types import SimpleNamespace

import pytest

from weblock._core import table
from weblock._core.ports import Reply
from weblock._core.table import Claim, KeyState, Moment
from weblock._runtime.blocking import BlockingRuntime, drive
from weblock.stores import memory
from weblock.stores.memory import MemoryEngine

FLOOR = 7_000
"""The fence that the clock gives, which some of the fences are above and some below."""

LIMITS = (1, 1, 1, 3)


@pytest.mark.parametrize("seed", range(40))
def test_the_short_way_answers_what_the_table_answers(
    monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Acquire, release and renew as they come: state, answer and fence are those of the functions."""
    random, runtime, now, floor = Random(seed), BlockingRuntime(), 100.0, 0
    runtime.now = lambda: now  # type: ignore[method-assign]
    monkeypatch.setattr(memory, "time", SimpleNamespace(time_ns=lambda: floor * 1000))
    engine = MemoryEngine(f"memory://{seed}")
    store, expected = engine.connect(runtime), KeyState()
    for _ in range(60):
        now += random.choice((0, 0.1, 1, 4))
        floor = random.choice((0, FLOOR))
        owner, moment = random.choice("abc"), Moment(now, floor)
        claim = Claim(
            owner, "", random.choice((1.0, 10.0)), f"label {owner}", random.choice(LIMITS)
        )
        match random.choice(("acquire", "release", "release", "renew", "void")):
            case "acquire":
                room = random.choice((0, 1, 9))
                reply = drive(store.acquire("key", claim, room=room))
                step = table.acquire(expected, moment, claim, room=room)
            case "release":
                reply = drive(store.release("key", owner))
                step = table.release(expected, moment, owner)
            case "void":
                reply = drive(store.release("key", owner, void=1))
                step = table.release(expected, moment, owner, void=1)
            case _:
                reply = drive(store.transfer("key", owner, claim, fence=1))
                step = table.transfer(expected, moment, owner, claim)
        expected = step.state
        assert reply == Reply(step.answer, now)
        assert drive(store.look("key")).state == table.current(expected, moment)
