"""The store that is shipped, under the simulator: it speaks bytes with a server that runs its Lua.

Beside what test_redis_simulation.py does, this runs ``RedisStore``, ``Wire``, the packing of calls
and the reading of answers, over connections that end with the server's run.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from weblock._core import ports
from weblock.stores.redis import calls, store, wire

from .simulation import redis_links
from .simulation.redis_stores import STORE, store_schedule
from .simulation.world import Violation

SCHEDULES = 300
LIMIT = 600

Mistake = tuple[Any, str, Callable[..., Any]]


def test_no_schedule_violates_a_property() -> None:
    """P1 to P11 hold for the store, over resets, lost data, flushes, and dead subscriptions."""
    STORE.hold_to_it(SCHEDULES)


def _introduced_once(right: Callable[..., Any]) -> Callable[..., Any]:
    async def introduced(self: Any, link: Any) -> None:
        if not hasattr(self, "first"):
            await right(self, link)
            self.first = link.server
        link.server = self.first

    return introduced


def _with_one_pulse(call: calls.Call) -> calls.Call:
    if call.script.name not in {"renew", "beat"}:
        return call
    return calls.Call(call.script, call.bucket, call.keys, call.args[:2])


MISTAKES: dict[str, Mistake] = {
    "a release leaves no mark": (
        store.RedisStore,
        "release",
        lambda right: lambda self, key, owner, **_void: right(self, key, owner),
    ),
    "nobody listens": (redis_links.Subscription, "listen", lambda _right: lambda _self: None),
    "the room is not told": (
        store.RedisStore,
        "acquire",
        lambda right: (
            lambda self, key, claim, *, room, **rest: right(self, key, claim, room=room + 1, **rest)
        ),
    ),
    "only the first heartbeat is sent": (
        wire.Wire,
        "run_all",
        lambda right: lambda self, calls: right(self, [*map(_with_one_pulse, calls)]),
    ),
    "the server's run is not told": (
        calls.Call,
        "command",
        lambda right: (
            lambda self, _run, recovery, where, **how: right(self, "run", recovery, where, **how)
        ),
    ),
    "recovery is not asked for": (
        ports.Recovery,
        "_set",
        lambda right: lambda self, _seconds: right(self, 0.0),
    ),
    "a script is never sent whole": (
        calls.Call,
        "command",
        lambda right: lambda self, *words, **_whole: right(self, *words),
    ),
    "a connection is not introduced again": (
        wire.Wire,
        "_introduced",
        _introduced_once,
    ),
    "who has subscribed does not ask": (
        redis_links.Switchboard,
        "notify_all",
        lambda _right: lambda _self, _message: None,
    ),
}

NOTICED = {"who has subscribed does not ask": 370}
"""The schedule that noticed one of them, where it is a late one."""


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each mistake that a store could make violates a property within some hundred schedules."""
    where, what, wrong = MISTAKES[name]
    monkeypatch.setattr(where, what, wrong(vars(where)[what]))
    for seed in (NOTICED.get(name, 0), *range(LIMIT)):
        try:
            store_schedule(seed).run()
        except (Violation, ValueError):
            return
    pytest.fail(f"it was not noticed in {LIMIT} schedules")
