"""What the client is sent: held back, where a lock is held, until the work is known to be done."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final
from wsgiref.types import StartResponse

from .request import RequestLocks

LIMIT: Final = 1024 * 1024
"""Bytes of a response that are held back, at most, while there is more to come."""

STREAMS_AFTER: Final = 1.0
"""Seconds from its first part after which a response that goes on is taken for a stream."""

Headers = list[tuple[str, str]]


class Outbox:
    """``start_response`` for the application, and the parts of the body that are held back.

    Nothing is held back for a request that holds nothing.
    """

    __slots__ = (
        "_began",
        "_head",
        "_is_event_stream",
        "_parts",
        "_request",
        "_size",
        "_start_response",
        "_write",
        "is_open",
        "promises",
        "sent",
    )

    def __init__(self, start_response: StartResponse, request: RequestLocks) -> None:
        self._start_response = start_response
        self._request = request
        self._head: tuple[str, Headers, Any] | None = None
        self._parts: list[bytes] = []
        self._size = 0
        self._began = 0.0
        self._write: Callable[[bytes], object] | None = None
        self._is_event_stream = False
        self.sent = False
        """Whether the server has the status and the headers."""
        self.is_open = False
        """Whether the response goes to the server as it is made."""
        self.promises = True
        """Whether it says that work was done, or refused: an error of the server does not."""

    def streams(self) -> bool:
        """Return whether a part that comes now must not wait for the end of the response."""
        if self.sent or self._size > LIMIT:
            return True
        if self._parts and time.monotonic() - self._began > STREAMS_AFTER:
            return True
        return self._is_event_stream

    def start_response(
        self, status: str, headers: Headers, exc_info: Any = None, /
    ) -> Callable[[bytes], object]:
        """Take the status and the headers from the application, a second time after an error."""
        if self.sent:
            # The server knows what it has sent of the first, and raises the error if that is anything.
            return self._start_response(status, headers, exc_info)
        if self._head and not exc_info:
            raise AssertionError("start_response was called a second time without exc_info")
        if self._parts:
            self.discard()  # They belong to the response that failed.
        self._head = status, headers, exc_info
        self._is_event_stream = _is_event_stream(headers)
        self.promises = not status.startswith("5")
        if self.is_open:
            self.open()
        return self.write

    def write(self, part: bytes) -> None:
        """Take a part of the body, from an application that calls ``write``."""
        if self.streams() or not self._request.leases:
            if not self.sent:
                self.open()
            self._flush()
            self._check()
            assert self._write is not None
            self._write(part)
        else:
            self.keep(part)

    def keep(self, part: bytes) -> None:
        """Hold back a part of the body."""
        if not self._parts:
            self._began = time.monotonic()
        self._parts.append(part)
        self._size += len(part)

    def open(self) -> None:
        """Give the server the status and the headers, as soon as the application gives them."""
        self.is_open = True
        if self._head:
            (status, headers, exc_info), self._head = self._head, None
            if self._request.waited is not None:
                timing = f"lock;dur={1000 * self._request.waited:.1f}"
                headers = [*headers, ("Server-Timing", timing)]
            more = (exc_info,) if exc_info else ()
            self._write = self._start_response(status, headers, *more)
            self.sent = True

    def discard(self) -> None:
        """Forget what is held back: another response takes its place."""
        self._head, self._parts, self._size = None, [], 0

    def take(self) -> list[bytes]:
        """Return the parts that were held back, once."""
        parts, self._parts = self._parts, []
        return parts

    def finish(self) -> list[bytes]:
        """Return the whole body, which is complete; the server gets its status and headers."""
        if not self.sent:
            self.open()
        # In one part, since a server that gets one can say how long it is.
        return [b"".join(self._parts)] if self._parts else []

    def _flush(self) -> None:
        for part in self.take():
            assert self._write is not None
            self._write(part)

    def _check(self) -> None:
        if self.promises:
            self._request.check_done()


def _is_event_stream(headers: Headers) -> bool:
    for name, value in headers:
        if name.lower() == "content-type":
            return value.startswith("text/event-stream")
    return False
