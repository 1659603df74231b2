"""A stream of RESP, cut into its values."""

from __future__ import annotations

import re

_KINDS = b"+-:$*_,#!=(%~>|"
_PUBSUB = re.compile(rb"\*\d+\r\n\$\d+\r\n[ps]?((un)?subscribe|message)\r\n", re.IGNORECASE)


class Frames:
    """What has been heard and not yet been handed on.

    What is not RESP, such as TLS, is handed on as it comes.
    """

    def __init__(self) -> None:
        self._held = bytearray()
        self._other = False

    def feed(self, data: bytes) -> list[bytes]:
        self._held += data
        frames = []
        while self._held and not self._other:
            if self._held[0] not in _KINDS:
                self._other = True
            elif (end := _end(self._held, 0)) < 0:
                break
            else:
                frames.append(bytes(self._held[:end]))
                del self._held[:end]
        return [*frames, *self.rest()] if self._other else frames

    def rest(self) -> list[bytes]:
        """What is left of a value that was never completed."""
        rest = bytes(self._held)
        self._held.clear()
        return [rest] if rest else []


def is_pubsub(frame: bytes) -> bool:
    """Whether it is not one of a request and its one reply, but of a subscription."""
    return frame[:1] == b">" or bool(_PUBSUB.match(frame))


def _end(data: bytearray, at: int) -> int:
    """Where the value ends that begins ``at``; -1 if it is not complete."""
    line = data.find(b"\r\n", at)
    if line < 0:
        return -1
    kind, end = data[at : at + 1], line + 2
    if kind in b"$!=":
        size = int(data[at + 1 : line])
        end += max(size + 2, 0) if size >= 0 else 0
        return end if end <= len(data) else -1
    for _ in range(_parts(kind, data[at + 1 : line])):
        end = _end(data, end)
        if end < 0:
            return -1
    return end


def _parts(kind: bytearray, count: bytearray) -> int:
    """How many values belong to one that begins like this."""
    if kind in b"*~>":
        return int(count)
    if kind == b"%":
        return 2 * int(count)
    if kind == b"|":  # Attributes, and what they are attributes of.
        return 2 * int(count) + 1
    return 0
