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
from .scripts import Script

MICRO: Final = 1_000_000


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

    def mark(self, key: str) -> tuple[int, tuple[str]]:
        """Return the bucket and the key of the record that something is done."""
        bucket = self.bucket(key)
        return bucket, (f"{self.tag(bucket)}:done:{key}",)

    def text(self, key: str, group: str) -> tuple[int, tuple[str, str]]:
        """Return the bucket of a text, and the keys of the text and of its lease."""
        bucket, (lock, *_) = self.of_key(key)
        return bucket, (f"{self.tag(bucket)}:text:{group}:{key}", lock)

    def group(self, name: str) -> tuple[int, tuple[str]]:
        """Return the bucket and the key of a group of texts, which may have other buckets."""
        bucket = self.bucket(name)
        return bucket, (f"{self.tag(bucket)}:texts:{name}",)

    def pattern(self, start: str, kind: str = "lock") -> str:
        """Return a pattern for the names of locks, or texts, that begin with ``start``, and few others."""
        literally = re.sub(r"([*?\[\]\\])", r"\\\1", start)
        return f"{self.prefix}:{{*}}:{kind}:{literally}*"

    def key_in(self, name: str, kind: str = "lock") -> str | None:
        """Return the lock's key of a key on the server, if that is a lease, or a text."""
        head, mark, key = name.partition(f"}}:{kind}:")
        return key if mark and head.startswith(f"{self.prefix}:{{") else None

    def _of_key(self, key: str) -> tuple[int, tuple[str, str, str]]:
        bucket = self.bucket(key)
        tag = self.tag(bucket)
        return bucket, (f"{tag}:lock:{key}", f"{tag}:queue:{key}", f"{tag}:epoch")


@dataclass(slots=True)
class Call:
    """A script to run, where its bucket lives. Frozen ones would take three times as long to make."""

    script: Script
    bucket: int
    keys: tuple[str, ...]
    args: tuple[str, ...] = ()
    may_repeat: Callable[[], bool] | None = None
    """Asked before it is sent once more, because a connection was lost."""

    def command(self, run: str, recovery: str, where: str, *, whole: bool = False) -> bytes:
        """Return the command that runs the script by its name, or by its text where it is not known."""
        facts = run, recovery, where
        if whole:
            how = "EVAL", self.script.text, f"{len(self.keys)}"
            return _pack((*how, *self.keys, *facts, *self.args))
        # Most of a command is in its start, and to pack that takes longest.
        head = _head(self.script.sha, self.keys, facts, len(self.args))
        return head + _pack(self.args).partition(b"\r\n")[2]


def packed(*parts: str | int) -> bytes:
    """Return a command in the wire format."""
    return _pack(parts)


_pack = cast("Callable[[tuple[str | int, ...]], bytes]", hiredis.pack_command)


@lru_cache(1024)
def _head(sha: str, keys: tuple[str, ...], facts: tuple[str, str, str], more: int) -> bytes:
    """Return the start of a command, which the commands of a key share, without its ``more`` last parts."""
    parts = ("EVALSHA", sha, f"{len(keys)}", *keys, *facts)
    return b"*%d\r\n%b" % (len(parts) + more, _pack(parts).partition(b"\r\n")[2])


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
        case [b"waiting", now, position, until, why, label, others]:
            answer = Waiting(position, until / MICRO, _text(why), _text(label), others)
        case [b"held", now, fence, until, confirmed, *asked]:
            answer = Held(int(fence), until / MICRO, bool(confirmed), bool(asked))
        case [b"busy", now, waiters, until, why, label, others]:
            answer = Busy(until / MICRO, waiters, False, _text(why), _text(label), others)  # noqa: FBT003
        case [b"asked", now]:
            answer = ASKED_ALL
        case [b"gone", now]:
            answer = GONE
        case [b"unknown", now, reason]:
            raise Unknown(_text(reason))
        case _:
            raise ValueError(f"the server returned an unknown reply: {raw!r:.200}")
    return Reply(answer, now / MICRO)


def look_of(raw: Sequence[Any]) -> Look:
    """Return the state that the script ``look`` found, as of now."""
    now = raw[0] / MICRO
    return Look(current(_state(*raw[1:]), Moment(now, 0)), now)


def _state(
    fence: int,
    leases: Sequence[Sequence[Any]],
    places: Sequence[Sequence[Any]],
    asked: int,
    gave_up: Sequence[Sequence[Any]],
) -> KeyState:
    grants: list[Grant] = []
    for owner, process, label, limit, its_fence, since, until, confirmed in leases:
        claim = Claim(_text(owner), _text(process), 0.0, _text(label), limit)
        grants.append(Grant(claim, its_fence, since / MICRO, until / MICRO, bool(confirmed)))
    queue: dict[str, Place] = {}
    for owner, process, label, limit, ttl, until in places:
        claim = Claim(_text(owner), _text(process), ttl / MICRO, _text(label), limit)
        queue[claim.owner] = Place(claim, until / MICRO)
    voided = tuple(Voided(_text(owner), until / MICRO) for owner, until in gave_up)
    return KeyState(fence, tuple(grants), queue, voided, asked)


def _text(raw: bytes) -> str:
    return raw.decode(errors="replace")
