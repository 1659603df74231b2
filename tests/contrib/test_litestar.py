"""``weblock.contrib.litestar``: what the contract suite does not ask of each adapter."""

from collections.abc import AsyncIterator
from typing import Any, ClassVar

import httpx
import pytest
from litestar import (
    Controller,
    Litestar,
    Request,
    Response,
    Router,
    WebSocket,
    get,
    post,
    websocket,
)
from litestar.connection import ASGIConnection
from litestar.exceptions import NotAuthorizedException
from litestar.response import Stream

from tests.support.aio import eventually
from tests.support.http import client_of
from weblock import ConfigurationError, LockTimeout, WeblockError
from weblock.contrib.kit import Asked
from weblock.contrib.litestar import LockedLitestar, lease_of, lock
from weblock.contrib.litestar.app import locked_in

from .wire import Exchange

Connection = ASGIConnection[Any, Any, Any, Any]
QUIET: dict[str, Any] = {"logging_config": None, "openapi_config": None}


@post("/{shop:int}/items", guards=[lock("shop:{shop}", wait=0)])
async def create(request: Request[Any, Any, Any]) -> str:
    return lease_of(request).key


@get("/")
async def look(request: Request[Any, Any, Any]) -> str:
    """Ask for a lease that it does not have."""
    return lease_of(request).key


def application(locks, *handlers, **given):
    return LockedLitestar(handlers or [create], locks=locks, **QUIET, **given)


async def ask(app: Any, path: str = "/7/items", **more: Any) -> httpx.Response:
    async with client_of(app) as client:
        return await client.post(path, **more)


async def test_guards_before_a_lock_run_before_it(locks):
    """A client that may not do what it asks for waits for nothing, whatever layer each guard is of."""

    def nobody(_connection: Connection, _handler: Any) -> None:
        raise NotAuthorizedException

    @post("/items", guards=[nobody, lock("inner")])
    async def handler() -> None:
        raise AssertionError

    app = application(locks, handler, guards=[lock("outer", wait=0)])
    async with locks.hold("outer"):
        assert (await ask(app, "/items")).status_code == 401


async def test_one_lock_on_two_layers_runs_after_the_guards_between(locks):
    """It is the last of them that acquires."""

    def nobody(_connection: Connection, _handler: Any) -> None:
        raise NotAuthorizedException

    both = lock("x", wait=0)

    @post("/items", guards=[nobody, both])
    async def handler() -> None:
        raise AssertionError

    async with locks.hold("x"):
        assert (await ask(application(locks, handler, guards=[both]), "/items")).status_code == 401


async def test_routers_and_controllers_have_locked_handlers(locks):
    """Litestar copies what it is given, and so the locks."""

    class Items(Controller):
        path = "/items"
        guards: ClassVar[list[Any]] = [lock("items")]

        @post("/")
        async def create(self) -> list[str]:
            return [info.key for info in await locks.list()]

    app = application(locks, Router("/shop", route_handlers=[Items], guards=[lock("shop")]))
    assert (await ask(app, "/shop/items")).json() == ["items", "shop"]


async def test_a_lease_that_is_lost_in_a_stream_is_a_problem(locks):
    """While it is held back it becomes the response, also if it is raised in a task group."""

    @post("/", guards=[lock("x", ttl=0.3, max_hold=0.3)])
    async def handler(request: Request[Any, Any, Any]) -> Stream:
        async def parts() -> AsyncIterator[bytes]:
            yield b"first"
            lease = lease_of(request)
            await eventually(lambda: not lease.held)
            yield b"second"

        return Stream(parts())

    found = await ask(application(locks, handler), "/")
    assert (found.status_code, found.json()["code"]) == (503, "lease_lost")


@pytest.mark.parametrize("kind", [LockTimeout, WeblockError])
async def test_handlers_of_the_application_go_first(locks, kind):
    """For the error itself, or for all of weblock's."""

    def busy(_request: Any, error: Any) -> Response[str]:
        return Response(f"busy: {error.key}", status_code=423)

    async with locks.hold("shop:7"):
        found = await ask(application(locks, exception_handlers={kind: busy}))
    assert (found.status_code, found.text) == (423, "busy: shop:7")


async def test_a_websocket_is_closed_with_the_code_of_its_problem(locks):
    """Its client is told to try again later."""

    @websocket("/", guards=[lock("x", wait=0)])
    async def handler(socket: WebSocket[Any, Any, Any]) -> None:
        raise AssertionError

    exchange = Exchange(path="/", kind="websocket")
    async with locks.hold("x"):
        await exchange.served_by(application(locks, handler))
    (closed,) = exchange.sent
    assert (closed["type"], closed["code"]) == ("websocket.close", 1013)
    assert closed["reason"] == "lock_timeout"


async def test_a_key_that_a_route_cannot_fill_in(locks):
    """The application does not start, and says which parameters there are."""

    @post("/{shop:int}/items", guards=[lock("item:{item}")])
    async def handler() -> None:
        raise AssertionError

    with pytest.raises(
        ConfigurationError, match=r"needs the path parameter 'item'; available: 'shop'"
    ):
        await Exchange(path="/7/items").served_by(application(locks, handler))


async def test_without_a_lock_or_without_locks(locks):
    """A handler without a lock has no lease, and an application without locks runs no locked handler."""
    assert (await ask(application(locks, look), "/")).status_code == 405
    async with client_of(application(locks, look)) as client:
        assert (await client.get("/")).status_code == 500
    assert (await ask(Litestar([create], **QUIET))).status_code == 500


async def test_what_it_locks_is_listed(locks):
    """For ``weblock check``, for all requests or for one."""
    app = application(locks, create, look)
    (found,) = locked_in(app, None)
    assert str(found).startswith("POST /{shop}/items\n  keys:    shop:{shop}\n  options: wait=0")
    assert next(locked_in(app, Asked("POST", "/7/items"))).keys == found.keys
    assert [each.keys for each in locked_in(app, Asked("GET", "/"))] == [()]
    assert not list(locked_in(app, Asked("GET", "/nowhere")))
    wrong, _ = locked_in(Litestar([create], **QUIET), None)
    assert "LockedLitestar" in str(wrong)
