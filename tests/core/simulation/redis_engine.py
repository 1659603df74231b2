"""The engine of a schedule that runs the Lua which is shipped, in a model of a Redis server.

It loses its data in the ways that Redis does, and recovers by itself: no two may hold a key however
much it forgets, so that the properties make no allowance for it but time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from weblock._core.ports import Granted, Pulse
from weblock._core.table import KeyState, Step
from weblock.errors import EngineUnavailable
from weblock.stores.redis import scripts
from weblock.stores.redis.calls import Layout, Unknown, _state, micros, reply_of
from weblock.stores.redis.scripts import Script

from .engine import Acquire, AskRelease, Change, Changing, EngineServer, Release
from .redis_model import RedisModel
from .world import World

SWITCH = 2.0
"""Seconds more that a server waits which has taken another's place."""

KEPT = 1.0
"""Seconds of writes that a server loses at most, which writes to its disk once a second."""

LAYOUT = Layout("weblock", 1)


class RedisEngine(EngineServer):
    """A server that is Redis, and the replicas and disks behind it."""

    remembers = True

    def __init__(
        self,
        world: World,
        *,
        granularity: float,
        alive: Callable[[str], bool],
        notify: Callable[[str, str, Granted], None],
        recovery: float,
        scripted: Callable[[Script], Script] = lambda script: script,
    ) -> None:
        super().__init__(world, granularity=granularity, alive=alive, notify=notify)
        self.recovery = recovery
        self._scripted = scripted
        self._model = RedisModel(lambda: round(self.now() * 1e6), self._published)
        self._recovers = False
        self._looks: dict[str, tuple[tuple[Any, ...], KeyState]] = {}
        self._save()

    def crash(self, *, forget: bool) -> None:
        """Goes down, and comes back empty, or with another server's data, or without a second's."""
        self.up = False
        self._backlog = []
        dice = self._world.random.random()
        if forget:
            self._model.restart(forget=True)
        elif dice < 0.2:
            self._model.roll_back(self._saved)
            self._model.promote()
        elif dice < 0.3:
            self._model.roll_back(self._saved)
            self._model.fail_back()
        elif dice < 0.6:
            self._model.roll_back(self._saved)
            self._model.restart(forget=False)
        else:
            self._model.restart(forget=False)
        self._saved = self._model.snapshot()
        self._lost()

    def flush(self) -> None:
        self._model.flush()
        self._saved = self._model.snapshot()
        self._lost()

    def state(self, key: str) -> KeyState:
        _bucket, keys = LAYOUT.of_key(key)
        has = self._model.copy_of(*keys[:2])
        seen, state = self._looks.get(key, (None, None))
        if (
            state is None or has != seen
        ):  # A look tells the time, too, but nothing else depends on it.
            _now, *found = self._evaluate(scripts.LOOK, keys)
            state = _state(*found)
            self._looks[key] = has, state
        return state

    def _lost(self) -> None:
        """Whatever the schedule knew of the states is no longer so."""
        self.states = {key: self.state(key) for key in self.states}
        assert self.observer is not None
        self.observer.forgot()
        self._recovers = True

    def _save(self) -> None:
        self._saved = self._model.snapshot()
        self._world.after(KEPT * self._world.random.random(), self._save)

    def _serve(self, request: Changing, now: float) -> Any:
        if self._recovers and self.observer is not None:  # From the first who asks on.
            self.observer.disturb("engine recovers", self.recovery + SWITCH)
            self._recovers = False
        self._write_anew(request.key)
        before = self.state(request.key)
        try:
            reply = reply_of(self._run(request))
        except Unknown as reason:
            return EngineUnavailable("simulated://", str(reason))
        after = self.states[request.key] = self.state(request.key)
        if self.observer is not None:
            owner = _owner_of(request)
            change = Change(request, owner, before, Step(after, reply.answer), now)
            self.observer.applied(change)
        return reply

    def _write_anew(self, key: str) -> None:
        """Has a heartbeat of nobody do to leases of another run what each script does to them first."""
        _bucket, keys = LAYOUT.of_key(key)
        lock = self._model.in_common(keys[0])
        if lock and lock["count"] and lock["run"] != self._model.run_id:
            self._evaluate(scripts.RENEW, keys)

    def _run(self, request: Changing) -> Any:
        _bucket, keys = LAYOUT.of_key(request.key)
        if isinstance(request, Acquire):
            claim = request.claim
            limit = (str(claim.limit),) if claim.limit != 1 else ()
            words = (claim.process, claim.label, micros(claim.ttl), str(request.room), "0", *limit)
            return self._evaluate(scripts.ACQUIRE, keys, claim.owner, *words)
        if isinstance(request, Pulse):
            script = scripts.BEAT if request.waits else scripts.RENEW
            return self._evaluate(script, keys, request.owner, micros(request.ttl))[0]
        if isinstance(request, AskRelease):
            return self._evaluate(scripts.ASK_RELEASE, keys)
        assert isinstance(request, Release)
        return self._evaluate(scripts.RELEASE, keys, request.owner, micros(request.void))

    def _evaluate(self, script: Script, keys: tuple[str, ...], *words: str) -> Any:
        args = (self._model.incarnation, micros(self.recovery), "single", *words)
        return self._model.evaluate(self._scripted(script), keys, args)

    def _published(self, channel: str, payload: str) -> None:
        owner, fence, until = payload.split()
        self._notify(channel, owner, Granted(int(fence), int(until) / 1e6))


def _owner_of(request: Changing) -> str:
    """Who asks for it; nobody, if it concerns all holders."""
    if isinstance(request, Acquire):
        return request.claim.owner
    return "" if isinstance(request, AskRelease) else request.owner
