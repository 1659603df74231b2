"""Sends to the client: what the output policy lets go."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any
from wsgiref.types import StartResponse

from ..kit import Output
from .request import RequestLocks

Headers = list[tuple[str, str]]


class Outbox(Output):
    """``start_response`` for the application, and the parts of the body that are held back.

    Nothing is held back for a request that holds nothing.
    """

    def __init__(self, start_response: StartResponse, request: RequestLocks) -> None:
        self.leases = request.leases
        self._start_response = start_response
        self._request = request
        self._head: tuple[str, Headers, Any] | None = None
        self._parts: list[bytes] = []
        self._began = 0.0
        self._write: Callable[[bytes], object] | None = None

    def lets_go(self) -> bool:
        """Return whether a part that comes now must not wait for the end of the response."""
        seconds = time.monotonic() - self._began if self._parts else 0.0
        return self.sent or self.streams(seconds)

    def start_response(
        self, status: str, headers: Headers, exc_info: Any = None, /
    ) -> Callable[[bytes], object]:
        """Take the status and the headers from the application, a second time after an error."""
        if self.sent:
            # The server knows what it has sent of the first, and raises the error if that is anything.
            return self._start_response(status, headers, exc_info)
        if self._head and not exc_info:
            raise AssertionError("start_response was called a second time without exc_info")
        self._parts = []  # They belong to a response that failed.
        self._head = status, headers, exc_info
        fields = {name.lower(): value for name, value in headers}
        self.begin(int(status[:3]), fields.get("content-type", ""))
        if self.is_open:
            self.open()
        return self.write

    def write(self, part: bytes) -> None:
        """Take a part of the body, from an application that calls ``write``."""
        if self.leases and not self.lets_go():
            self.keep(part)
            return
        if not self.sent:
            self.open()
        self.check()
        assert self._write is not None
        for each in (*self.take(), part):
            self._write(each)

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
            self.waited = self._request.waited
            if self.waited is not None:
                headers = [*headers, ("Server-Timing", f"lock;dur={1000 * self.waited:.1f}")]
            more = (exc_info,) if exc_info else ()
            self._write = self._start_response(status, headers, *more)
            self.sent = True

    def discard(self) -> None:
        """Forget what is held back: another response takes its place."""
        self._head, self._parts = None, []

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
