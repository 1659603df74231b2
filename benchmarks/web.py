"""What the adapters cost a web application that has nothing else to do: a trivial endpoint."""

from __future__ import annotations

import selectors
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Annotated, Any, Self

import uvicorn
from fastapi import Depends, FastAPI
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from weblock import AsyncLease
from weblock.contrib.asgi import LockMiddleware, Rule
from weblock.contrib.fastapi import install, lock

from . import machine
from .measuring import Case, Effort
from .report import Findings, at_least

ENGINE = "memory://"

CONNECTIONS = 8
"""So many requests are under way at once, each for an item of its own."""


@dataclass(frozen=True)
class WebApp:
    """An application that is measured; ``bare`` is the name of the one it is compared with."""

    name: str
    make: Callable[[], Any]
    bare: str | None = None
    goal: float = 0.0
    """The least share of the requests per second of the bare one."""
    sources: Path | None = None
    """Where its process imports weblock from, if not from this checkout."""


def _fastapi() -> FastAPI:
    app = FastAPI()

    @app.get("/items/{item_id}")
    async def read(item_id: str) -> dict[str, str]:
        return {"id": item_id}

    return app


def _fastapi_installed() -> FastAPI:
    app = _fastapi()
    install(app, ENGINE)
    return app


def _fastapi_locked() -> FastAPI:
    app = FastAPI()
    install(app, ENGINE)

    @app.get("/items/{item_id}")
    async def read(
        item_id: str,
        _lease: Annotated[AsyncLease, Depends(lock("item:{item_id}"))],
    ) -> dict[str, str]:
        return {"id": item_id}

    return app


async def _read(request: Request) -> JSONResponse:
    return JSONResponse({"id": request.path_params["item_id"]})


def _starlette(rule: Rule | None = None) -> Starlette:
    middleware = [] if rule is None else [Middleware(LockMiddleware, locks=ENGINE, rules=[rule])]
    return Starlette(routes=[Route("/items/{item_id}", _read)], middleware=middleware)


def _starlette_installed() -> Starlette:
    return _starlette(Rule("/orders/{order_id}", key="order:{order_id}"))


def _starlette_locked() -> Starlette:
    return _starlette(Rule("/items/{item_id}", key="item:{item_id}"))


APPS = (
    WebApp("FastAPI, bare", _fastapi),
    WebApp("install(app), no lock on the route", _fastapi_installed, "FastAPI, bare", 0.97),
    WebApp("Depends(lock(...)), uncontended", _fastapi_locked, "FastAPI, bare", 0.80),
    WebApp("Starlette, bare", _starlette),
    WebApp("LockMiddleware, no rule for the route", _starlette_installed, "Starlette, bare", 0.97),
    WebApp("LockMiddleware, uncontended", _starlette_locked, "Starlette, bare", 0.78),
)


def serve(app: WebApp, told: Connection) -> None:
    """Serves until it is killed; tells the port when it is ready."""
    machine.is_worker()

    # uvicorn turns off Nagle only where the socket says that it is TCP.
    with socket.socket(proto=socket.IPPROTO_TCP) as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(128)
        told.send(listener.getsockname()[1])
        config = uvicorn.Config(
            app.make(), log_level="error", access_log=False, ws="none", timeout_keep_alive=600
        )
        uvicorn.Server(config).run([listener])


def web(effort: Effort) -> Iterator[Findings]:
    """Requests of a trivial endpoint on uvicorn: bare, with the adapters, and with a lock."""
    with ExitStack() as stack:
        earlier = [
            replace(app, name=f"{app.name}, before", sources=effort.before)
            for app in APPS
            if app.bare and effort.before
        ]
        servers = {app.name: stack.enter_context(UvicornServer(app)) for app in (*APPS, *earlier)}
        for server in servers.values():
            server.measure(0.2)  # imports and opens everything
        for _ in range(effort.rounds):
            for server in servers.values():
                server.slices.append(server.measure(effort.slice))
        yield _findings(effort, servers)


CASES: dict[str, Case] = {"web": web}


@dataclass(frozen=True)
class _Slice:
    requests: int
    on_cpu: float
    """Seconds that the server spent on a CPU."""


@dataclass
class UvicornServer:
    """A process that serves one application, and connections to it that are kept busy."""

    app: WebApp
    slices: list[_Slice] = field(default_factory=list)

    def __enter__(self) -> Self:
        self._stack = ExitStack()
        ours, theirs = machine.processes.Pipe()
        process = machine.processes.Process(target=serve, args=(self.app, theirs))
        self._stack.enter_context(machine.ended([process]))
        with machine.importing_from(self.app.sources):
            process.start()
        address = ("127.0.0.1", ours.recv())
        assert process.pid
        self._pid = process.pid
        self._selector = self._stack.enter_context(selectors.DefaultSelector())
        for number in range(CONNECTIONS):
            connection = self._stack.enter_context(socket.create_connection(address))
            request = f"GET /items/{number} HTTP/1.1\r\nHost: shop\r\n\r\n".encode()
            self._selector.register(connection, selectors.EVENT_READ, request)
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stack.close()

    def measure(self, seconds: float) -> _Slice:
        """Keeps all connections busy, with one request each."""
        on_cpu, start = machine.cpu_seconds(self._pid), time.monotonic()
        for key in self._selector.get_map().values():
            self._send(key)
        requests, under_way = 0, CONNECTIONS
        while under_way:
            go_on = time.monotonic() < start + seconds
            for key, _ in self._selector.select():
                self._read(key)
                requests += 1
                if go_on:
                    self._send(key)
                else:
                    under_way -= 1
        return _Slice(requests, machine.cpu_seconds(self._pid) - on_cpu)

    def rates_on_cpu(self) -> list[float]:
        """Requests for each second that the server spent on a CPU, slice by slice."""
        return [each.requests / each.on_cpu for each in self.slices]

    def _send(self, key: selectors.SelectorKey) -> None:
        assert isinstance(key.fileobj, socket.socket)
        key.fileobj.sendall(key.data)

    def _read(self, key: selectors.SelectorKey) -> None:
        assert isinstance(key.fileobj, socket.socket)
        answer = b""
        while not answer.endswith(b"}"):
            part = key.fileobj.recv(4096)
            if not part:
                raise RuntimeError(f"{self.app.name} has closed a connection")
            answer += part
        if not answer.startswith(b"HTTP/1.1 200 "):
            raise RuntimeError(f"{self.app.name} has answered {answer[:200]!r}")


def _findings(effort: Effort, servers: dict[str, UvicornServer]) -> Findings:
    rows = []
    for server in servers.values():
        costs = [1e6 * each.on_cpu / each.requests for each in server.slices]
        row = [server.app.name, f"{min(costs) if effort.fastest else median(costs):.0f}", "", ""]
        if server.app.bare:
            bare = servers[server.app.bare]
            # On a machine that does other things too, seconds on a CPU are what can be compared.
            share = effort.ratio(server.rates_on_cpu(), bare.rates_on_cpu())
            row[2:] = [f"{share:.2f}", at_least(server.app.goal, share)]
        rows.append(row)
    heads = ["µs of CPU a request", "requests a CPU second ÷ bare", "goal"]
    return Findings("In web applications: a trivial endpoint, one uvicorn process", heads, rows)
