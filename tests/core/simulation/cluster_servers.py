"""Three masters of a cluster, which run the Lua that is shipped, and between which slots move.

They answer as Redis 7 does: a slot that is being moved has some of its keys here and some there, and
a script is run where its keys are, or sent on (``ASK``), or refused (``TRYAGAIN``).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Final

from redis import exceptions

from weblock._core.ports import Reply
from weblock._core.table import KeyState, Step
from weblock.stores.redis import scripts
from weblock.stores.redis.calls import MICRO, Layout, _state, reply_of
from weblock.stores.redis.scripts import Script
from weblock.stores.redis.settings import Address
from weblock.stores.transport.listener import from_notification

from .engine import EPOCH, Acquire, Change, Changing, EngineServer, Refresh
from .redis_campaign import Scripted
from .redis_model import RedisModel
from .redis_server import Parcel, Replies, _keys_and_args, _meaning, _sha, _words
from .world import Action

LAYOUT: Final = Layout("weblock", 2)
ADDRESSES: Final = tuple(Address("cluster", number) for number in (1, 2, 3))
OF_ONE_LOCK: Final = (scripts.ACQUIRE, scripts.BEAT, scripts.RENEW, scripts.RELEASE)
KNOWN: Final = {each.sha: each for each in (*OF_ONE_LOCK, scripts.BEGIN)}


class Master:
    """One of them: its keys, its clock, and the connections to its present run."""

    def __init__(self, number: int, ahead: float, engine: ClusterServers) -> None:
        self.number = number
        self.address = ADDRESSES[number]
        self.ahead = ahead
        self.life = 0
        self.hung = False
        self.loaded: set[str] = set()
        self._engine = engine
        self.model = RedisModel(self.micros, engine.published)
        self.model.run = self.model.replid = 1000 * (number + 1)
        self._backlog: list[Action] = []

    def now(self) -> float:
        return self._engine.now() + self.ahead

    def micros(self) -> int:
        return round(self.now() * MICRO)

    def has(self, key: str) -> bool:
        return bool(self.model.call("EXISTS", key))

    def receive(self, serve: Action) -> None:
        if self.hung:
            self._backlog.append(serve)
        else:
            serve()

    def hang(self) -> None:
        self.hung = True

    def go_on(self) -> None:
        self.hung = False
        backlog, self._backlog = self._backlog, []
        for serve in backlog:
            serve()

    def restart(self) -> None:
        """Comes back at once, with all its data."""
        self.life += 1
        self.loaded.clear()
        self._backlog = []
        self.model.restart(forget=False)

    def hand_over(self, key: str, to: Master) -> None:
        """``MIGRATE``: moves one key, with the time that it has left."""
        if not self.has(key):
            return
        left = self.model._expires.get(key)
        to.model.values[key] = self.model.values[key]
        to.model._expires.pop(key, None)
        if left is not None:
            to.model._expires[key] = left - self.micros() + to.micros()
        self.model._del(key)


class ClusterServers(EngineServer):
    """All of them, as one engine: who serves a bucket, and to whom it is being moved."""

    remembers = True

    def __init__(
        self,
        *args: Any,
        ahead: Sequence[float],
        recovery: float,
        scripted: Scripted,
        **options: Any,
    ) -> None:
        super().__init__(*args, **options)
        self.recovery = recovery
        self.masters = tuple(Master(number, each, self) for number, each in enumerate(ahead))
        self.apart = max(ahead) - min(ahead)
        """Seconds by which their clocks differ."""
        self.home = dict.fromkeys(range(LAYOUT.buckets), 0) | {1: 1}
        self.moving: dict[int, int] = {}
        """The buckets that are being moved, and where to."""
        self.life = 0
        self.listening: dict[str, int] = {}
        self.deaf: set[str] = set()
        self._scripted = scripted
        self.excused: dict[int, float] = {}
        """Until when leases of a bucket may be lost, since its master hangs."""

    def now(self) -> float:
        return EPOCH + self._world.now

    def receive(self, serve: Action) -> None:
        """Takes a request. The network has bound it, and to whom it goes stands in it."""
        assert isinstance(serve, partial)
        number, _life = serve.args[0].request.life
        self.masters[number].receive(serve)

    def serve(self, request: Any) -> Replies:
        number, life = request.life
        master, replies = self.masters[number], Replies()
        if life != master.life:
            replies.raw = [exceptions.ConnectionError("reset by peer")] * len(request.commands)
            replies.refused = True
            return replies
        replies.raw = []
        asking = False
        for command in request.commands:
            words = _words(command)
            raw, meant = self._execute(master, words, asking=asking)
            asking = words[0] == "ASKING"
            replies.raw.append(raw)
            replies += meant
            replies.refused |= isinstance(raw, Exception)
        # Of a lock by itself, the truth has heard what became of it.
        replies.refused |= type(request) is Parcel
        return replies

    def keys_of(self, bucket: int) -> set[str]:
        tag = LAYOUT.tag(bucket)
        return {key for each in self.masters for key in each.model.values if key.startswith(tag)}

    def _execute(
        self, master: Master, words: list[str], *, asking: bool
    ) -> tuple[Any, list[Reply]]:
        if words[0] in {"INFO", "ASKING", "TIME"}:
            return self._said(master, words[0]), []
        sha = words[1] if words[0] == "EVALSHA" else _sha(words[1])
        keys, args = _keys_and_args(words)
        if refusal := self._refusal(master, keys, asking=asking):
            return refusal, []
        if words[0] == "EVAL":
            master.loaded.add(sha)
        elif sha not in master.loaded:
            return exceptions.NoScriptError("No matching script"), []
        script = KNOWN.get(sha)
        if script is None or script is scripts.BEGIN:
            text = words[1] if script is None else script.text
            return self._evaluate(master, Script("", text, sha), keys, args), []
        return self._change(master, script, keys, args)

    def _evaluate(self, master: Master, script: Script, keys: list[str], args: list[str]) -> Any:
        return master.model.evaluate(self._scripted(script), keys, args)

    def _refusal(self, master: Master, keys: list[str], *, asking: bool) -> Exception | None:
        """Why a cluster does not run a script on these keys here."""
        bucket = next(b for b in range(LAYOUT.buckets) if keys[0].startswith(LAYOUT.tag(b)))
        home, target = self.home[bucket], self.moving.get(bucket)
        missing = [key for key in keys if not master.has(key)]
        if master.number == home:
            if target is None or not missing:
                return None
            if len(missing) < len(keys):
                self._sometimes("keys on both sides: TRYAGAIN")
                return exceptions.TryAgainError("Multiple keys request during rehashing of slot")
            self._sometimes("sent on: ASK")
            return exceptions.AskError(f"{bucket} {ADDRESSES[target]}")
        if master.number == target and asking:
            if missing and len(keys) > 1:
                return exceptions.TryAgainError("Multiple keys request during rehashing of slot")
            return None
        return exceptions.MovedError(f"{bucket} {ADDRESSES[home]}")

    def _change(
        self, master: Master, script: Script, keys: list[str], args: list[str]
    ) -> tuple[Any, list[Reply]]:
        """Runs a script on a lock, and shows the truth what became of it."""
        if len(keys) == 1:
            self._sometimes(f"{script.name} of a lock by itself")
        asked = _meaning(script, keys, args)
        pulses: list[Changing] = [*asked.pulses] if isinstance(asked, Refresh) else [asked]
        key, now = pulses[0].key, master.now()
        before = self.state(key)
        raw = self._evaluate(master, script, keys, args)
        after = self.states[key] = self.state(key)
        replies = [reply_of(each) for each in (raw if isinstance(asked, Refresh) else [raw])]
        for pulse, reply in zip(pulses, replies, strict=True):
            owner = pulse.claim.owner if isinstance(pulse, Acquire) else pulse.owner
            assert self.observer is not None
            self.observer.applied(Change(pulse, owner, before, Step(after, reply.answer), now))
            before = after
        return raw, replies

    def state(self, key: str) -> KeyState:
        """The leases, in the time of the master where they are; nobody looks at queues here."""
        _bucket, names = LAYOUT.of_key(key)
        for master in self.masters:
            if master.model.in_common(names[0]).get("count"):
                args = (master.model.incarnation, "0", "asking")
                _now, *said = master.model.evaluate(scripts.LOOK, names[:1], args)
                return _state(*said)._replace(places={}, voided=())
        return KeyState()

    def published(self, channel: str, payload: str) -> None:
        notification = from_notification(payload)
        if notification is not None and self.listening.get(channel) == self.life:
            self._notify(channel, *notification)

    def _said(self, master: Master, command: str) -> Any:
        """The answer to a command that is no script."""
        if command == "ASKING":
            return b"OK"
        if command == "TIME":
            seconds, micros = divmod(master.micros(), MICRO)
            return [str(seconds).encode(), str(micros).encode()]
        said = {
            "redis_version": "7.4.0",
            "role": "master",
            "cluster_enabled": "1",
            "maxmemory": "0",
            "uptime_in_seconds": "0",
            "second_repl_offset": "-1",
            "maxmemory_policy": "noeviction",
            "run_id": master.model.run_id,
            "master_replid": master.model.master_replid,
            "server_time_usec": str(master.micros()),
        }
        return "".join(f"{name}:{value}\r\n" for name, value in said.items()).encode()

    def _sometimes(self, what: str) -> None:
        self.observer.sometimes(what)  # type: ignore[union-attr]
