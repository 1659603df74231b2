"""What happens to locks is told to whoever listens."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.dispatch import Signal
from django.http import HttpRequest, HttpResponse
from django.test import Client

from tests.support.waiting import eventually
from weblock import AsyncLocks, Locks
from weblock.contrib.django import async_locks, lock, locks, signals
from weblock.contrib.django.signals import SIGNALS
from weblock.errors import ConfigurationError
from weblock.events import Acquired, Event, Released

Told = list[tuple[Any, str, Event]]


@pytest.fixture(autouse=True)
def own_engine(serve: Any) -> None:
    """An engine of the test's own."""


@pytest.fixture
def told() -> Iterator[Told]:
    told: Told = []

    def listen(signal: Signal, sender: Any, alias: str, event: Event, **_more: Any) -> None:
        told.append((sender, alias, event))

    for signal in SIGNALS.values():
        signal.connect(listen)
    yield told
    for signal in SIGNALS.values():
        signal.disconnect(listen)


def kinds(told: Told) -> list[type[Event]]:
    return [type(event) for _, _, event in told]


def until_told(told: Told, *expected: type[Event]) -> list[Any]:
    eventually(lambda: kinds(told) == list(expected))
    return [event for _, _, event in told]


def test_a_hold_is_told(told: Told) -> None:
    """A lease is told of when it is acquired and when it is released, with how long that took."""
    with locks["default"].hold("item:1") as lease:
        until_told(told, Acquired)
    acquired, released = until_told(told, Acquired, Released)
    assert acquired.key == released.key == "item:1"
    assert acquired.fence == released.fence == lease.fence
    assert acquired.waited >= 0
    assert released.held_for >= 0
    assert {(sender, alias) for sender, alias, _ in told} == {(Locks, "default")}


def test_a_hold_of_tasks_is_told(told: Told) -> None:
    """What tasks hold is told of each key, with the API for tasks as the sender."""

    async def hold() -> None:
        async with async_locks["default"].hold("item:1", "item:2"):
            pass

    async_to_sync(hold)()
    events = until_told(told, Acquired, Acquired, Released, Released)
    assert [event.key for event in events] == ["item:1", "item:2", "item:2", "item:1"]
    assert {sender for sender, _, _ in told} == {AsyncLocks}


def test_a_request_is_told(told: Told, serve: Any) -> None:
    """What the middleware does for a view is told as well, with the template of its key."""

    @lock("item:{pk}")
    def item(request: HttpRequest, pk: str) -> HttpResponse:
        return HttpResponse()

    serve(item__pk=item)
    Client().get("/item/7")
    events = until_told(told, Acquired, Released)
    assert {(event.key, event.template) for event in events} == {("item:7", "item:{pk}")}


def test_a_receiver_that_fails_changes_nothing(
    told: Told, caplog: pytest.LogCaptureFixture
) -> None:
    """A receiver that raises is logged; the lock is acquired and released all the same."""
    with failing(signals.acquired), failing(signals.released):
        with locks["default"].hold("item:1") as lease:
            assert lease.held
        assert locks["default"].inspect("item:1") is None
        until_told(told, Acquired, Released)
        eventually(lambda: caplog.text.count("(the printer is on fire)") == 2)


def note(event: Event) -> None:
    noted.append(event)


noted: list[Event] = []


def test_settings_name_observers(settings: Any) -> None:
    """OBSERVERS in WEBLOCK names functions by their paths, or is refused with the reason."""
    settings.WEBLOCK = {"default": {"URL": "memory://named", "OBSERVERS": [f"{__name__}.note"]}}
    locks["default"].acquire("item:1").release()
    eventually(lambda: [type(event) for event in noted] == [Acquired, Released])
    for wrong, why in (("a.b.c", "a list"), (["no.such"], "no"), ([7], "7 cannot be called")):
        settings.WEBLOCK = {"default": {"URL": "memory://named", "OBSERVERS": wrong}}
        with pytest.raises(ConfigurationError, match=why):
            locks["default"].acquire("item:1")


@contextmanager
def failing(signal: Signal) -> Iterator[None]:
    def fail(**_facts: Any) -> None:
        raise OSError("the printer is on fire")

    signal.connect(fail)
    try:
        yield
    finally:
        signal.disconnect(fail)
