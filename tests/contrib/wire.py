"""One request as a server runs it, for tests that look at single messages."""

from __future__ import annotations

import asyncio
import json
from typing import Any


class Exchange:
    """A request, its client, and what the client was sent.

    The client reads unless ``reading`` is cleared. ``receive`` is as strict as servers are: one
    call at a time, and one that is cancelled is counted in ``receives_cancelled``.
    """

    def __init__(
        self,
        method: str = "POST",
        path: str = "/items",
        *,
        kind: str = "http",
        body: bytes | None = b"",
        extensions: dict[str, Any] | None = None,
        events: list[str] | None = None,
    ) -> None:
        self.scope: dict[str, Any] = {
            "type": kind,
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "root_path": "",
            "headers": [(b"host", b"testserver"), (b"origin", b"http://shop.example")],
            "client": ("192.0.2.1", 40000),
            "server": ("testserver", 80),
            "extensions": extensions or {},
        }
        if kind == "websocket":
            del self.scope["method"]
            self.scope["subprotocols"] = []
        self.incoming: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        if body is not None and kind == "http":
            self.says({"type": "http.request", "body": body})
        self.reading = asyncio.Event()
        self.reading.set()
        self.sent: list[dict[str, Any]] = []
        self.receives_cancelled = 0
        self._receiving = False
        self._events = [] if events is None else events

    def says(self, message: dict[str, Any]) -> None:
        """The client sends something."""
        self.incoming.put_nowait(message)

    def leaves(self) -> None:
        """The client goes."""
        self.says({"type": "http.disconnect"})

    async def receive(self) -> dict[str, Any]:
        assert not self._receiving, "receive was called while another call was under way"
        self._receiving = True
        try:
            return await self.incoming.get()
        except asyncio.CancelledError:
            self.receives_cancelled += 1
            raise
        finally:
            self._receiving = False

    async def send(self, message: dict[str, Any]) -> None:
        if message["type"] == "http.response.body":
            await self.reading.wait()
            if not message.get("more_body"):
                self._events.append("last byte")
        self.sent.append(message)

    def served_by(self, app: Any) -> asyncio.Task[None]:
        """Starts the request."""
        return asyncio.ensure_future(app(self.scope, self.receive, self.send))

    @property
    def begun(self) -> bool:
        return bool(self.sent)

    @property
    def complete(self) -> bool:
        return bool(self.sent) and not self.sent[-1].get("more_body", "start" in self.last)

    @property
    def last(self) -> str:
        return str(self.sent[-1]["type"])

    @property
    def status(self) -> int:
        assert self.sent[0]["type"].endswith("http.response.start"), self.sent
        return int(self.sent[0]["status"])

    @property
    def headers(self) -> dict[str, str]:
        return {name.decode(): value.decode() for name, value in self.sent[0]["headers"]}

    @property
    def body(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.sent[1:])

    @property
    def problem(self) -> dict[str, Any]:
        assert self.headers["content-type"] == "application/problem+json"
        return dict(json.loads(self.body))
