"""Which keys a request holds, and how one is refused that cannot have them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.servers.single import free_port
from weblock import Locks

from .driver import Driver
from .promises import BAD_KEY, BUSY, DECLINED, DOWN, HELD_ALREADY, SEVERAL, SPELLINGS, TIMING, shows
from .test_requests import is_held

Serve = Callable[..., Driver]

SPELLED = [
    "/items/7",
    "/items/07",
    "/items/+7",
    "/items/ 7",
    "/items/7.0",
    "/items/0_7",
    "/items/\u0667",
    "/items/7/",
    "/items/7//",
    "/items//7",
    "//items/7",
    "/./items/7",
    "/x/../items/7",
    "/items/7\n",
    "/items/7%0a",
    "/items/%37",
    "/items/7;x",
    "/ITEMS/7",
]


@shows(SPELLINGS)
def test_no_spelling_reaches_a_locked_handler_without_its_lock(serve: Serve, probe: Locks) -> None:
    """While the key is held, no spelling of the path reaches the handler; the usual one does later."""
    ran: list[object] = []
    server = serve(handle=ran.append, wait=0)
    with probe.hold("item:7"):
        for path in SPELLED:
            assert server.send(path).response.status >= 300, path
    assert not ran
    assert server.send("/items/7").response.status == 200
    assert ran


@shows(BAD_KEY)
@pytest.mark.parametrize("name", ["x" * 600], ids=["too long"])
def test_a_key_that_cannot_be_made_is_refused(serve: Serve, name: str) -> None:
    """It is the client's error, and the handler does not run."""
    ran: list[object] = []
    server = serve(handle=ran.append)
    response = server.send(f"/names/{name}").response
    assert (response.status, response.code) == (400, "invalid_key")
    assert not ran
    assert server.send("/names/shop").response.status == 200
    assert ran


@shows(SEVERAL)
def test_several_keys_are_held_together(serve: Serve, probe: Locks) -> None:
    """Requests that name the same keys in different orders are all served, and hold both."""
    held: list[tuple[bool, bool]] = []

    def handle(*_: object) -> None:
        held.append((is_held(probe, "item:1"), is_held(probe, "item:2")))

    server = serve(handle=handle)
    calls = [server.send(path) for path in ("/pairs/1/2", "/pairs/2/1") * 4]
    assert [call.response.status for call in calls] == [200] * 8
    assert held == [(True, True)] * 8
    assert not is_held(probe, "item:1")
    assert not is_held(probe, "item:2")


@shows(HELD_ALREADY)
def test_a_key_that_the_request_holds_is_not_waited_for(serve: Serve, probe: Locks) -> None:
    """A service function that acquires it again gets a lease, and the key is free afterwards."""
    held: list[bool] = []
    server = serve(handle=lambda _: held.append(server.acquire("item:7").held))
    assert server.send("/again/7").response.status == 200
    assert held == [True]
    assert not is_held(probe)


@shows(DECLINED)
def test_a_key_function_can_decline(serve: Serve, probe: Locks) -> None:
    """While others have the key, one request is refused, and another runs without a lease."""
    given: list[Any] = []
    server = serve(handle=given.append, wait=0)
    with probe.hold("item:7"):
        assert server.send("/some/7").response.status == 409
        assert server.send("/some/0").response.status == 200
        assert [info.key for info in probe.list()] == ["item:7"]
    assert server.send("/some/7").response.status == 200
    assert [lease and lease.key for lease in given] == [None, "item:7"]


@shows(BUSY)
def test_a_busy_key_is_a_conflict(serve: Serve, probe: Locks) -> None:
    """The client is told when to try again; the handler does not run."""
    ran: list[object] = []
    server = serve(handle=ran.append, wait=0)
    with probe.hold("item:7"):
        response = server.send("/items/7").response
    assert (response.status, response.code) == (409, "lock_timeout")
    assert int(response.headers["retry-after"]) >= 1
    assert not ran


@shows(DOWN)
def test_an_engine_that_is_down_is_said(serve: Serve) -> None:
    """The handler does not run: nothing fails open."""
    ran: list[object] = []
    server = serve(handle=ran.append, wait=0, url=f"redis://127.0.0.1:{free_port()}")
    response = server.send("/items/7").response
    assert (response.status, response.code) == (503, "engine_unavailable")
    assert response.headers["retry-after"] == "5"
    assert not ran


@shows(TIMING)
def test_the_response_says_how_long_the_request_waited(serve: Serve, probe: Locks) -> None:
    """So does the refusal of a request that has waited in vain."""
    server = serve(wait=0.01)
    with probe.hold("item:7"):
        refused = server.send("/items/7").response
    served = server.send("/items/7").response
    assert (refused.status, served.status) == (409, 200)
    for response in (refused, served):
        assert response.headers["server-timing"].startswith("lock;dur=")
