"""Requests to the server, and what its answers mean."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from typing import Any, Final, cast

import hiredis

from ..._core.ports import Look, Reply
from ..._core.table import (
    ASKED_ALL,
    GONE,
    RELEASED,
    Answer,
    Busy,
    Claim,
    Grant,
    Held,
    KeyState,
    Moment,
    Place,
    Voided,
    Waiting,
    current,
)
from .scripts import ACQUIRE, RELEASE, Script

MICRO: Final = 1_000_000

_SPECIAL: Final = re.compile(r"[*?\[\]\\]")
_QUOTED: Final = r"\\\g<0>"


class Layout:
    """The names of our keys on the server.

    What stands between the first braces decides where a key lives in a cluster. There the keys
    are divided into buckets, each with an epoch of its own that moves along with it; whatever a
    lock's name contains comes after.
    """

    def __init__(self, prefix: str, buckets: int) -> None:
        self.prefix = prefix
        self.buckets = buckets
        self.of_key = lru_cache(1024)(self._of_key)

    def bucket(self, key: str) -> int:
        # A checksum would do it, but for keys that are alike it is as uneven as the cluster's own.
        return int.from_bytes(blake2b(key.encode(), digest_size=4).digest()) % self.buckets

    def tag(self, bucket: int) -> str:
        return f"{self.prefix}:{{{bucket}}}"

    def of_bucket(self, bucket: int) -> tuple[str, str, str]:
        """Return the keys of a script that is about no lock."""
        return self.probe(bucket), self.probe(bucket), f"{self.tag(bucket)}:epoch"

    def probe(self, bucket: int) -> str:
        """Return a key for trying what the server allows."""
        return f"{self.tag(bucket)}:probe"

    def channel(self, name: str) -> str:
        """Return the channel on which the waiters of a process are notified."""
        return f"{self.prefix}:process:{name}"

    def mark(self, bucket: int, key: str) -> str:
        """Return the key that records that something is done."""
        return f"{self.tag(bucket)}:done:{key}"

    def pattern(self, start: str) -> str:
        """Return a pattern for the names of locks that begin with ``start``, and few others."""
        return f"{self.prefix}:{{*}}:lock:{_SPECIAL.sub(_QUOTED, start)}*"

    def lock_of(self, name: str) -> str | None:
        """Return the lock's key of a key on the server, if that is a lease."""
        head, mark, key = name.partition("}:lock:")
        return key if mark and head.startswith(f"{self.prefix}:{{") else None

    def _of_key(self, key: str) -> tuple[int, tuple[str, str, str]]:
        bucket = self.bucket(key)
        tag = self.tag(bucket)
        return bucket, (f"{tag}:lock:{key}", f"{tag}:queue:{key}", f"{tag}:epoch")


@dataclass(slots=True)
class Call:
    """A script to run, where its bucket lives.

    Each request creates two of them, and frozen ones would take three times as long to create.
    """

    script: Script
    bucket: int
    keys: tuple[str, ...]
    args: tuple[str, ...] = ()

    def alone(self) -> Call:
        """Return the call for the lock's own key, while a server has just some of its keys."""
        return Call(self.script, self.bucket, self.keys[:1], self.args)

    def by_name(self, run: str, recovery: str, where: str) -> bytes:
        """Return the command that runs the script by its name."""
        script, keys, args, facts = self.script, self.keys, self.args, (run, recovery, where)
        if script is not RELEASE and (script is not ACQUIRE or args[5] != "0"):
            return _pack(("EVALSHA", script.sha, len(keys), *keys, *facts, *args))
        # Each section runs these two, and only the owner is new in them, unless there is a ticket: the
        # rest is packed once.
        owner = args[0].encode()
        before, after = _around_owner(script.sha, keys, facts, args[1:], len(owner))
        return before + owner + after

    def whole(self, run: str, recovery: str, where: str) -> bytes:
        """Return the call with the script's text, for a server that does not know it."""
        return packed(
            "EVAL", self.script.text, len(self.keys), *self.keys, run, recovery, where, *self.args
        )


def packed(*parts: str | int) -> bytes:
    """Return a command in the wire format."""
    return _pack(parts)


_pack = cast("Callable[[tuple[str | int, ...]], bytes]", hiredis.pack_command)


@lru_cache(1024)
def _around_owner(
    sha: str,
    keys: tuple[str, ...],
    facts: tuple[str, ...],
    args: tuple[str, ...],
    size: int,
) -> tuple[bytes, bytes]:
    """Return what stands before and after the owner in a command.

    Only its size in bytes is given, because owners are secrets, and what is returned here is remembered.
    """
    beginning = ("EVALSHA", sha, str(len(keys)), *keys, *facts)
    count = len(beginning) + 1 + len(args)
    before = b"*%d\r\n" % count + _parts(beginning) + b"$%d\r\n" % size
    return before, b"\r\n" + _parts(args)


def _parts(parts: Sequence[str]) -> bytes:
    """Return parts of a command in the wire format."""
    return b"".join(b"$%d\r\n%b\r\n" % (len(raw), raw) for raw in map(str.encode, parts))


@lru_cache(256)
def micros(seconds: float) -> str:
    """Return seconds in the scripts' unit, microseconds."""
    return f"{seconds * MICRO:.0f}"


class Unknown(ValueError):
    """A server does not know yet whether it has lost a lease that it has."""


def reply_of(raw: Sequence[Any]) -> Reply:
    """Return a script's answer. Raises ``ValueError`` if it is not one."""
    answer: Answer
    match raw:  # The usual ones first.
        case [b"held", now, fence, until, 1]:
            answer = Held(int(fence), until / MICRO)
        case [b"released", now]:
            answer = RELEASED
        case [b"waiting", now, position, until, recovering, *holders]:
            holder, others = _holders(*holders)
            answer = Waiting(position, until / MICRO, (), _text(recovering), holder, others)
        case [b"held", now, fence, until, confirmed, *asked]:
            answer = Held(int(fence), until / MICRO, bool(confirmed), bool(asked))
        case [b"busy", now, until, waiters, recovering, *holders]:
            holder, others = _holders(*holders)
            answer = Busy(
                until / MICRO,
                waiters,
                recovering=_text(recovering),
                holder=holder,
                others=others,
            )
        case [b"asked", now]:
            answer = ASKED_ALL
        case [b"gone", now]:
            answer = GONE
        case [b"unknown", now, reason]:
            raise Unknown(_text(reason))
        case _:
            raise ValueError(f"the server gave an answer that is none of ours: {raw!r:.200}")
    return Reply(answer, now / MICRO)


def _holders(label: bytes, others: int = 0) -> tuple[str, int]:
    """Return the oldest holder's label, and how many others hold the key."""
    return _text(label), others


def look_of(raw: Sequence[Any]) -> Look:
    """Return the state that the script ``look`` found, as of now."""
    now = raw[0] / MICRO
    return Look(current(_state(*raw[1:]), Moment(now, 0)), now)


def _state(
    fence: bytes,
    leases: Sequence[Sequence[Any]],
    places: Sequence[Sequence[bytes]],
    asked: bytes,
    voided: bytes,
) -> KeyState:
    queue = tuple(_place(*each) for each in places if all(each))
    gave_up = (each.split() for each in _text(voided).split(";") if each)
    return KeyState(
        int(fence),
        tuple(_lease(*each) for each in leases),
        queue,
        tuple(Voided(owner, int(until) / MICRO) for owner, until in gave_up),
        int(asked),
    )


def _lease(  # noqa: PLR0917 - as the script returns it
    owner: bytes,
    process: bytes,
    label: bytes,
    limit: bytes,
    fence: bytes,
    since: bytes,
    until: bytes,
    confirmed: int,
) -> Grant:
    claim = Claim(_text(owner), _text(process), 0.0, _text(label), int(limit))
    return Grant(claim, int(fence), _time(since), _time(until), bool(confirmed))


def _place(owner: bytes, packed: bytes) -> Place:
    until, ttl, _ticket, limit, process, label = _text(packed).split(" ", 5)
    claim = Claim(_text(owner), process, int(ttl) / MICRO, label, int(limit))
    return Place(claim, int(until) / MICRO)


def _time(raw: bytes) -> float:
    return int(raw) / MICRO


def _text(raw: bytes) -> str:
    return raw.decode(errors="replace")
