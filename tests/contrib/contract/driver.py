"""What a driver is: an application of one framework, and a server with clients for it.

Each application has the same routes, all of them for POST: those of ``ROUTES``, and two with a database.

- ``/items/7`` calls ``handle`` with its lease, and makes its response: what ``parts`` yields, if there is any. Then
  it calls ``commit``, where applications of the framework commit. It knows integers only.
- ``/threads/7`` does the same, in a thread of a pool where the framework has one.
- ``/again/7`` does the same, where ``Driver.acquire`` can acquire: outside a transaction.
- ``/names/NAME``, ``/pairs/1/2`` and ``/some/7`` call ``handle``. No lease is held at ``/some/0``.
- ``/orders/7`` reads the orders, calls ``handle``, and adds one to the database, which is the referee. It
  locks with ``renew=False``: its holder does not learn that its lease was taken away.
- ``/rows/7`` reads the number of the row 7, acquires the lock, and responds with the number that it has then.
"""

from __future__ import annotations

import asyncio
import json
import re
import sqlite3
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import closing
from contextvars import Context
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Self

from tests.contrib.gateway import Gateway
from tests.contrib.wire import Exchange
from tests.support.waiting import PATIENCE
from weblock import AsyncLocks, Locks
from weblock.contrib import asgi, wsgi


def nothing(*_: object) -> None:
    """Does nothing."""


def some(item_id: int) -> str | None:
    """Make the key of ``/some/7``."""
    return f"item:{item_id}" if item_id else None


ROUTES: dict[str, list[Any]] = {
    "/items/{item_id:int}": ["item:{item_id}"],
    "/threads/{item_id:int}": ["item:{item_id}"],
    "/again/{item_id:int}": ["item:{item_id}"],
    "/names/{name:str}": ["name:{name}"],
    "/pairs/{a:int}/{b:int}": ["item:{a}", "item:{b}"],
    "/some/{item_id:int}": [some],
}
"""The routes, as Starlette and Litestar write them, and the keys of each."""

RULES = [{"path": path, "methods": ["POST"], "key": keys} for path, keys in ROUTES.items()]


def in_angles(route: str) -> str:
    """Return a route as Flask and Django write it."""
    return re.sub(r"\{(\w+):(\w+)\}", r"<\2:\1>", route).replace("<str:", "<")


@dataclass
class Site:
    """What a test's application does. Each function may block: it is called in a thread."""

    url: str
    folder: Path
    wait: float = PATIENCE
    handle: Callable[[Any], object] = nothing
    """The body of the handler, which is given its lease."""
    commit: Callable[[], object] = nothing
    parts: Callable[[], Iterator[bytes]] | None = None
    """The parts of a response that is a stream."""

    @property
    def database(self) -> Path:
        """A database of SQLite, with tables ``orders`` and ``row``."""
        return self.folder / "shop.sqlite"

    def sql(self, statement: str) -> int:
        """Run a statement on the database, and return the number that it finds."""
        with closing(sqlite3.connect(self.database, timeout=PATIENCE)) as connection, connection:
            found = connection.execute(statement).fetchone()
        return found[0] if found else 0


@dataclass
class Response:
    """What a client was sent; 500 if it was nothing, because the application raised an error."""

    status: int
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    whole: bool = True

    @property
    def code(self) -> str:
        """The code of a problem."""
        return str(json.loads(self.body)["code"])


class Call(ABC):
    """A request, and its client, which reads when it is told to."""

    def leave(self) -> None:
        """Have the client disconnect; returns when the application could have noticed."""
        raise NotImplementedError

    def cancel(self) -> None:  # noqa: B027 - most servers have threads
        """Have the server cancel the request, if its kind of server can."""

    def read(self) -> None:
        """Have the client read its response from now on."""
        raise NotImplementedError

    @property
    def body(self) -> bytes:
        """What the client has received so far."""
        raise NotImplementedError

    @property
    @abstractmethod
    def response(self) -> Response:
        """The response, when the request has ended."""


class Driver(ABC):
    """An application of a framework, which ``with`` serves."""

    name: ClassVar[str]
    """As the table of docs/guarantees.md has it."""
    folder: ClassVar[str]
    """Of ``weblock.contrib``."""
    exempt: ClassVar[dict[str, str]] = {}
    """The promises that do not apply, and why."""

    def __init__(self, site: Site) -> None:
        self.site = site

    def __enter__(self) -> Self:
        return self

    @abstractmethod
    def __exit__(self, *error: object) -> None:
        """Stop serving."""

    @abstractmethod
    def send(self, path: str, *, reading: bool = True) -> Call:
        """Begin a request."""

    def acquire(self, key: str) -> Any:
        """Acquire a key for the request whose ``handle`` runs, and return its lease."""
        raise NotImplementedError


class OverAsgi(Driver):
    """Serves an ASGI application on an event loop in a thread."""

    app: Any
    locks: AsyncLocks
    """For an application that is given its locks."""

    @abstractmethod
    def application(self) -> Any:
        """Return the application."""

    def __enter__(self) -> Self:
        self.locks = AsyncLocks.from_url(self.site.url, wait=self.site.wait)
        self.app = self.application()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._live()))
        self._thread.start()
        assert self._ready.wait(PATIENCE)
        return self

    async def _live(self) -> None:
        self._loop, self._end = asyncio.get_running_loop(), asyncio.Event()
        self._ready.set()
        await self._end.wait()
        await self.locks.close()

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join()

    def on_loop(self, work: Any) -> Any:
        """Begin work on the loop, which is no part of what called it, and return its future."""
        return Context().run(asyncio.run_coroutine_threadsafe, work, self._loop)

    def acquire(self, key: str) -> Any:
        return asgi.request_locks().acquire(key, wait=0)

    def send(self, path: str, *, reading: bool = True) -> Call:
        return AsgiCall(self, Exchange(path=path), reading=reading)


class AsgiCall(Call):
    """A request on the loop."""

    def __init__(self, server: OverAsgi, exchange: Exchange, *, reading: bool) -> None:
        self._server = server
        self._exchange = exchange
        if not reading:
            exchange.reading.clear()
        self._ended = server.on_loop(self._serve())

    async def _serve(self) -> None:
        self._task = self._exchange.served_by(self._server.app)
        await asyncio.wait({self._task})
        self._exchange.leaves()  # As servers say it to an application that still asks.

    def leave(self) -> None:
        self._do(self._exchange.leaves)

    def cancel(self) -> None:
        self._do(self._task.cancel)

    def read(self) -> None:
        self._do(self._exchange.reading.set)

    def _do(self, what: Callable[[], object]) -> None:
        async def do() -> None:
            what()
            for _ in range(20):  # Who reads the message has read it then, and told others.
                await asyncio.sleep(0)

        self._server.on_loop(do()).result(PATIENCE)

    @property
    def body(self) -> bytes:
        return self._exchange.body

    @property
    def response(self) -> Response:
        self._ended.result(PATIENCE)
        failed = self._task.cancelled() or self._task.exception()
        if not self._exchange.sent:
            return Response(500)
        whole = self._exchange.complete and not (failed and self._exchange.status < 500)
        headers = {name.lower(): value for name, value in self._exchange.headers.items()}
        return Response(self._exchange.status, self.body, headers, whole)


class OverWsgi(Driver):
    """Serves a WSGI application, each request in a thread."""

    app: Any
    locks: Locks
    """For an application that is given its locks."""

    @abstractmethod
    def application(self) -> Any:
        """Return the application."""

    def __enter__(self) -> Self:
        self.locks = Locks.from_url(self.site.url, wait=self.site.wait)
        self.app = self.application()
        return self

    def __exit__(self, *_: object) -> None:
        self.locks.close()

    def acquire(self, key: str) -> Any:
        return wsgi.request_locks().acquire(key, wait=0)

    def send(self, path: str, *, reading: bool = True) -> Call:
        return WsgiCall(self, path, reading=reading)

    def end(self) -> None:
        """Free what the thread of a request has."""


class WsgiCall(Call):
    """A request in a thread."""

    def __init__(self, server: OverWsgi, path: str, *, reading: bool) -> None:
        self._server = server
        self._left = threading.Event()
        self._reading = threading.Event()
        if reading:
            self._reading.set()
        gone = {"waitress.client_disconnected": self._left.is_set}
        self._gateway = Gateway(server.app, path=path, **gone)
        self._failed = False
        self._thread = threading.Thread(target=Context().run, args=(self._serve,))
        self._thread.start()

    def _serve(self) -> None:
        try:
            self._gateway.begin()
            self._reading.wait(PATIENCE)
            for _ in self._gateway.parts():
                pass
        except Exception:  # noqa: BLE001 - the server logs it
            self._failed = True
        finally:
            if self._gateway.body:
                self._gateway.close()
            self._server.end()

    def leave(self) -> None:
        self._left.set()

    def read(self) -> None:
        self._reading.set()

    @property
    def body(self) -> bytes:
        return self._gateway.text

    @property
    def response(self) -> Response:
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive()
        gateway = self._gateway
        if self._failed and not gateway.sent:
            return Response(500)
        return Response(gateway.status, gateway.text, gateway.headers, not self._failed)
