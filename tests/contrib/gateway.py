"""One request as a WSGI server runs it, strictly by PEP 3333: the middleware is checked from both sides."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from wsgiref.util import setup_testing_defaults
from wsgiref.validate import validator

from weblock import Locks


def environ_of(
    path: str = "/items", method: str = "POST", *, query: str = "", **more: Any
) -> dict[str, Any]:
    """The environment of a request; ``path`` is text, which is put into the disguise of WSGI."""
    environ = {
        "REQUEST_METHOD": method,
        "SCRIPT_NAME": "",
        "PATH_INFO": path.encode().decode("latin-1"),
        "QUERY_STRING": query,
        "SERVER_PROTOCOL": "HTTP/1.1",
        "wsgi.input": io.BytesIO(),
        **more,
    }
    setup_testing_defaults(environ)
    return environ


class Gateway:
    """A server with one request: what it has been given, and what it has sent."""

    def __init__(self, app: Any, **request: Any) -> None:
        self._app = validator(app)
        self.environ = environ_of(**request)
        self.status = 0
        self.headers: dict[str, str] = {}
        self.sent: list[bytes] = []
        self.body: Any = None
        self.starts = 0

    def start_response(
        self, status: str, headers: list[tuple[str, str]], exc_info: Any = None
    ) -> Callable[[bytes], None]:
        if exc_info and self.sent:
            raise exc_info[1]
        assert exc_info or not self.starts
        self.starts += 1
        self.status = int(status[:3])
        self.headers = {name.lower(): value for name, value in headers}
        return self.sent.append

    def begin(self) -> Gateway:
        """Calls the application, and takes nothing of its response yet."""
        self.body = self._app(self.environ, self.start_response)
        return self

    def parts(self) -> Iterator[bytes]:
        """Sends the response, part by part."""
        for part in self.body:
            self.sent.append(part)
            yield part

    def close(self) -> None:
        self.body.close()

    def serve(self) -> Gateway:
        """Does the whole of it."""
        self.begin()
        try:
            for _ in self.parts():
                pass
        finally:
            self.close()
        return self

    @property
    def text(self) -> bytes:
        return b"".join(self.sent)

    @property
    def problem(self) -> dict[str, Any]:
        assert self.headers["content-type"] == "application/problem+json"
        return dict(json.loads(self.text))


def is_free(locks: Locks, key: str = "items") -> bool:
    """Whether a key can be had at once, by somebody else."""
    with ThreadPoolExecutor(1) as stranger:
        lease = stranger.submit(locks.try_acquire, key).result()
        if lease:
            stranger.submit(lease.release).result()
    return lease is not None


def plain(environ: Any, start_response: Any) -> list[bytes]:
    """The smallest application."""
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [b"done"]
