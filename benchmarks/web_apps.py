"""A trivial endpoint under uvicorn, bare and with the adapters, each in a process of its own."""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Annotated, Any

import uvicorn
from fastapi import BackgroundTasks, Depends, FastAPI
from fastapi.requests import HTTPConnection
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from weblock import AsyncLease
from weblock.contrib.asgi import LockMiddleware, Rule
from weblock.contrib.fastapi import install, lock

from . import machine

ENGINE = "memory://"


@dataclass(frozen=True)
class WebApp:
    """An application that is measured; ``bare`` is the name of the one it is compared with."""

    name: str
    make: Callable[[], Any]
    bare: str | None = None
    goal: float | None = None
    """The least share of the requests per second of the bare one."""


def _fastapi() -> FastAPI:
    app = FastAPI()

    @app.get("/items/{item_id}")
    async def read(item_id: str) -> dict[str, str]:
        return {"id": item_id}

    return app


def _fastapi_depending() -> FastAPI:
    app = FastAPI()

    @app.get("/items/{item_id}", dependencies=[Depends(_nothing)])
    async def read(item_id: str) -> dict[str, str]:
        return {"id": item_id}

    return app


async def _nothing(connection: HTTPConnection, background: BackgroundTasks) -> None:
    """What a lock asks FastAPI for."""


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
    WebApp("a dependency that does nothing", _fastapi_depending, "FastAPI, bare"),
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
