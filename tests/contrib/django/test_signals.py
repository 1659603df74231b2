"""What happens to locks is told to whoever listens."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.dispatch import Signal
from django.http import HttpRequest, HttpResponse
from django.test import Client

from tests.support.busy import busy
from tests.support.waiting import eventually
from weblock import LeaseLost, LockTimeout
from weblock.contrib.django import async_locks, lock, locks, signals

SIGNALS = {
    "acquired": signals.acquired,
    "timed_out": signals.timed_out,
    "lost": signals.lost,
    "released": signals.released,
}

Told = list[tuple[str, dict[str, Any]]]


@pytest.fixture(autouse=True)
def own_engine(serve: Any) -> None:
    """An engine of the test's own."""


@pytest.fixture
def told() -> Iterator[Told]:
    """What was told so far, in order."""
    told: Told = []

    def listener(name: str) -> Callable[..., None]:
        def listen(signal: Signal, **facts: Any) -> None:
            told.append((name, facts))

        return listen

    listeners = {name: listener(name) for name in SIGNALS}
    for name, signal in SIGNALS.items():
        signal.connect(listeners[name])
    yield told
    for name, signal in SIGNALS.items():
        signal.disconnect(listeners[name])


def names(told: Told) -> list[str]:
    """The names of the signals."""
    return [name for name, _ in told]


def test_a_hold_is_told(told: Told) -> None:
    """A lease is told of when it is acquired and when it is released, with how long that took."""
    with locks["default"].hold("item:1") as lease:
        assert names(told) == ["acquired"]
    (_, acquired), (last, released) = told
    assert last == "released"
    assert acquired["alias"] == released["alias"] == "default"
    assert acquired["lease"].fence == released["lease"].fence == lease.fence
    assert acquired["waited"] >= 0
    assert released["held_for"] >= 0


def test_a_hold_of_tasks_is_told(told: Told) -> None:
    """The same for async code."""

    async def hold() -> None:
        async with async_locks["default"].hold("item:1", "item:2"):
            assert names(told) == ["acquired"]

    async_to_sync(hold)()
    assert names(told) == ["acquired", "released"]
    assert told[0][1]["lease"].keys == ("item:1", "item:2")


def test_a_request_is_told(told: Told, serve: Any) -> None:
    """What the middleware does for a view is told as well."""

    @lock("item:{pk}")
    def item(request: HttpRequest, pk: str) -> HttpResponse:
        assert names(told) == ["acquired"]
        return HttpResponse()

    serve(item__pk=item)
    Client().get("/item/7")
    assert [facts["lease"].key for _, facts in told] == ["item:7", "item:7"]
    assert names(told) == ["acquired", "released"]


def test_a_timeout_is_told(told: Told) -> None:
    """Who waited in vain is told of, with the error."""
    with busy(locks["default"], "item:1", "web-1"):
        told.clear()
        with pytest.raises(LockTimeout) as caught:
            locks["default"].acquire("item:1", wait=0)
        ((name, facts),) = told
    assert name == "timed_out"
    assert facts["keys"] == ("item:1",)
    assert facts["error"] is caught.value


def test_a_loss_is_told_once(told: Told) -> None:
    """A lease that was taken away is told of as lost, and not as released."""
    lease = locks["default"].acquire("item:1", ttl=0.3)
    locks["default"].force_release("item:1")
    eventually(lambda: "lost" in names(told))
    with pytest.raises(LeaseLost):
        lease.release()
    assert names(told) == ["acquired", "lost"]
    assert told[1][1]["lease"].fence == lease.fence


def test_a_receiver_that_fails_changes_nothing(
    told: Told, caplog: pytest.LogCaptureFixture
) -> None:
    """A receiver that raises is logged; the lock is acquired and released all the same."""
    with failing(signals.acquired), failing(signals.released):
        with locks["default"].hold("item:1") as lease:
            assert lease.held
        assert locks["default"].inspect("item:1") is None
    assert "the printer is on fire" in caplog.text


@contextmanager
def failing(signal: Signal) -> Iterator[None]:
    """A receiver of the signal that always fails."""

    def fail(**_facts: Any) -> None:
        raise OSError("the printer is on fire")

    signal.connect(fail)
    try:
        yield
    finally:
        signal.disconnect(fail)
