"""A Redis server that is spoken to in commands, as bytes, over connections that end with its run.

What the other Redis engine is asked by the schedule itself, this one is asked by the store that is
shipped: a request is what that store has packed, and the truth learns what it means from the bytes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import hiredis
from redis import exceptions

from weblock._core.ports import Pulse, Reply
from weblock._core.table import Claim, KeyState, Step
from weblock.stores.redis import scripts
from weblock.stores.redis.calls import MICRO, micros, reply_of
from weblock.stores.redis.scripts import Script
from weblock.stores.transport.listener import from_notification

from .engine import Acquire, Change, Changing, Refresh, Release
from .redis_engine import LAYOUT, RedisEngine
from .redis_model import _call, _lua, unpacked

_lua.globals().redis["pcall"] = _call  # Nothing that a probe tries is refused here.

OF_A_LEASE = (scripts.ACQUIRE, scripts.BEAT, scripts.RENEW, scripts.RELEASE)

SCRIPTS = {
    each.sha: each
    for each in (
        *(*OF_A_LEASE, scripts.LOOK, scripts.BEGIN),
        *(scripts.WAIT_BEHIND, scripts.RAISE_FENCE, scripts.TRANSFER),
    )
}

MORE = 2.0
"""Seconds for which a server that has taken another's place may recover beyond the longest ttl."""


@dataclass(frozen=True)
class Parcel:
    """Commands on one connection, sent in one go. ``life`` is the server's run that it leads to."""

    commands: tuple[bytes, ...]
    life: int

    def __repr__(self) -> str:
        return f"{type(self).__name__}({[_words(each)[0] for each in self.commands]})"


@dataclass(frozen=True, repr=False)
class AcquireParcel(Parcel, Acquire):
    """One that acquires."""


@dataclass(frozen=True, repr=False)
class RefreshParcel(Parcel, Refresh):
    """One with heartbeats, of any number of keys."""


@dataclass(frozen=True, repr=False)
class ReleaseParcel(Parcel, Release):
    """One that releases."""


class Replies(list[Any]):
    """Answers as the truth understands them, and as they go over the wire.

    Of a parcel that the server did not run, the truth hears nothing.
    """

    raw: list[Any]
    refused = False


def parcel(commands: Sequence[bytes], life: int) -> Parcel:
    packed = tuple(commands)
    asked = [_asked(command) for command in packed]
    first = asked[0]
    if isinstance(first, Acquire):
        return AcquireParcel(first.key, first.claim, first.room, packed, life)
    if isinstance(first, Release):
        return ReleaseParcel(first.key, first.owner, first.void, packed, life)
    if isinstance(first, Refresh):
        pulses = tuple(
            pulse for each in asked if isinstance(each, Refresh) for pulse in each.pulses
        )
        return RefreshParcel(pulses, packed, life)
    return Parcel(packed, life)


class RedisServer(RedisEngine):
    """Answers commands. A connection is to one of its lives, and ends with that."""

    def __init__(self, *args: Any, **options: Any) -> None:
        self.life = 0
        self.loaded: set[str] = set()
        self.listening: dict[str, int] = {}
        """The processes that have subscribed, and in which life."""
        self.deaf: set[str] = set()
        """Those whose subscription is dead, though nobody has noticed."""
        self._silent = False
        super().__init__(*args, **options)

    def crash(self, *, forget: bool) -> None:
        self.life += 1
        self.loaded.clear()
        self.listening.clear()
        super().crash(forget=forget)

    def serve(self, request: Any) -> Replies:
        """Runs all commands of a parcel, one after the other."""
        replies = Replies()
        if request.life != self.life:
            replies.raw = [exceptions.ConnectionError("reset by peer")] * len(request.commands)
            replies.refused = True
            return replies
        replies.raw = []
        for command in request.commands:
            raw, meant = self._execute(_words(command))
            replies.raw.append(raw)
            replies += meant
            replies.refused |= isinstance(raw, Exception) or _is_unknown(raw)
        return replies

    def _execute(self, words: Sequence[str]) -> tuple[Any, list[Reply]]:
        if words[0] == "INFO":
            return self._introduction(), []
        if words[0] == "TIME":
            seconds, rest = divmod(round(self.now() * MICRO), MICRO)
            return [b"%d" % seconds, b"%d" % rest], []
        assert words[0] in {"EVAL", "EVALSHA"}, words
        sha = words[1] if words[0] == "EVALSHA" else _sha(words[1])
        if words[0] == "EVAL":
            self.loaded.add(sha)
        elif sha not in self.loaded:
            self._sometimes("script was not known")
            return exceptions.NoScriptError("No matching script"), []
        keys, args = _keys_and_args(words)
        known = SCRIPTS.get(sha)
        if known in (None, scripts.LOOK, scripts.BEGIN, scripts.TRANSFER):
            text = words[1] if known is None else known.text
            return self._model.evaluate(Script("", text, sha), keys, args), []
        return self._change(known, keys, args)

    def _change(
        self, script: Script, keys: Sequence[str], args: Sequence[str]
    ) -> tuple[Any, list[Reply]]:
        """Runs a script, and shows the truth each transition that it made."""
        # What the model itself runs here tells of the recovery, too, and would hide that nobody else does.
        if args[1] != micros(self.recovery):
            raise ValueError(f"{script.name} was given the recovery {args[1]}")
        asked = _meaning(script, keys, args)
        pulses: list[Changing] = [*asked.pulses] if isinstance(asked, Refresh) else [asked]
        key, now = pulses[0].key, self.now()
        self._write_anew(key)
        states = [self.state(key), *self._between(script, keys, args, len(pulses), key)]
        raw = self._model.evaluate(self._scripted(script), keys, args)
        states.append(self.state(key))
        self.states[key] = states[-1]
        answers = raw if isinstance(asked, Refresh) else [raw]
        if _is_unknown(answers):  # Nothing has changed, and the store is told to ask again.
            return raw, []
        replies = [reply_of(each) for each in answers]
        self._in_quarantine(asked, replies)
        for number, (pulse, reply) in enumerate(zip(pulses, replies, strict=True)):
            owner = pulse.claim.owner if isinstance(pulse, Acquire) else pulse.owner
            step = Step(states[number + 1], reply.answer)
            assert self.observer is not None
            self.observer.applied(Change(pulse, owner, states[number], step, now))
        return raw, replies

    def _between(
        self, script: Script, keys: Sequence[str], args: Sequence[str], pulses: int, key: str
    ) -> Iterator[KeyState]:
        """The states between the heartbeats of one script, which nobody sees from outside."""
        for count in range(1, pulses):
            before = self._model.snapshot()
            self._silent = True
            self._model.evaluate(self._scripted(script), keys, args[: 3 + 2 * count])
            self._silent = False
            yield self.state(key)
            self._model.roll_back(before)

    def _introduction(self) -> str:
        said = {
            "redis_version": "7.4.0",
            "role": "master",
            "cluster_enabled": "0",
            "maxmemory": "0",
            "uptime_in_seconds": "0",
            "second_repl_offset": "-1",
            "maxmemory_policy": "noeviction",
            "run_id": self._model.run_id,
            "master_replid": self._model.master_replid,
        }
        return "".join(f"{name}:{value}\r\n" for name, value in said.items()).encode()

    def _published(self, channel: str, payload: str) -> None:
        notification = from_notification(payload)
        if self._silent or notification is None:  # A probe publishes nothing that is one.
            return
        if self.listening.get(channel) != self.life:
            self._sometimes("notification while nobody listened")
        elif channel in self.deaf:
            self._sometimes("notification on a dead subscription")
            self.observer.notification_lost(notification[0])  # type: ignore[union-attr]
        else:
            self._notify(channel, *notification)

    def _in_quarantine(self, asked: Changing | Refresh, replies: list[Reply]) -> None:
        """A server that recovers says until when: that excuses a delay, within reason."""
        epoch = self._model.values.get(f"{LAYOUT.tag(0)}:epoch")
        recovered = 0
        if isinstance(epoch, dict):
            recovered = unpacked(str(epoch["server"]))[4] + int(epoch["recovery"])
        left = recovered / MICRO - self.now()
        if self._recovers:  # From the first who asks on.
            self._recovers = False
            lasting = min(left, self.recovery + MORE)
            self.observer.disturb("engine recovers", lasting)  # type: ignore[union-attr]
        if left > 0:
            what = type(asked).__name__.lower()
            for reply in replies:
                self._sometimes(f"{what} in quarantine: {type(reply.answer).__name__}")

    def _sometimes(self, what: str) -> None:
        self.observer.sometimes(what)  # type: ignore[union-attr]


def _is_unknown(raw: Any) -> bool:
    """Whether the heartbeats of holders came before the server can know what it has lost."""
    return isinstance(raw, list) and any(
        isinstance(each, list) and each[:1] == [b"unknown"] for each in raw
    )


@lru_cache(1024)
def _words(command: bytes) -> tuple[str, ...]:
    """What a command says. It is asked when it is sent, when it arrives, and when it is told of."""
    reader = hiredis.Reader()
    reader.feed(command)
    return tuple(word.decode() for word in reader.gets())


def _sha(text: str) -> str:
    return hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()


def _keys_and_args(words: Sequence[str]) -> tuple[Sequence[str], Sequence[str]]:
    count = int(words[2])
    return words[3 : 3 + count], words[3 + count :]


def _asked(command: bytes) -> Acquire | Release | Refresh | None:
    words = _words(command)
    if words[0] not in {"EVAL", "EVALSHA"}:
        return None
    script = SCRIPTS.get(words[1] if words[0] == "EVALSHA" else _sha(words[1]))
    return _meaning(script, *_keys_and_args(words)) if script in OF_A_LEASE else None


def _meaning(
    script: Script, keys: Sequence[str], args: Sequence[str]
) -> Acquire | Release | Refresh:
    key = LAYOUT.key_in(keys[0])
    assert key is not None, keys
    if script is scripts.ACQUIRE:
        owner, process, label, ttl, room, _ticket, *limit = args[3:]
        claim = Claim(owner, process, int(ttl) / MICRO, label, *map(int, limit))
        return Acquire(key, claim, int(room))
    if script is scripts.RELEASE:
        return Release(key, args[3], int(args[4]) / MICRO)
    beats, waits = zip(args[3::2], args[4::2], strict=True), script is scripts.BEAT
    return Refresh(tuple(Pulse(key, owner, int(ttl) / MICRO, waits) for owner, ttl in beats))
