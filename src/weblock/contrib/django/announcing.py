"""Django's signals: what happens to the locks of an alias, told as events are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from django.db import connections
from django.dispatch.dispatcher import Signal

from ... import events
from ..._face import Face
from ..._platform.logs import logger
from ..._runtime.observing import Observer
from ...events import Acquired, Event
from ...sync import Locks
from . import signals
from .transactions import open_transaction

SIGNALS: Final[dict[type[Event], Signal]] = {
    kind: getattr(signals, name)
    for name, kind in events.EVENTS.items()
    if kind is not events.Answered
}


class Announcer:
    """Sends a signal for each event."""

    def __init__(self, face: type[Face], alias: str) -> None:
        self._face = face
        self._alias = alias

    def __call__(self, event: Event) -> None:
        """Sends the signal of an event."""
        try:
            SIGNALS[type(event)].send_robust(self._face, alias=self._alias, event=event)
        finally:
            connections.close_all()


def observers_of(face: type[Face], alias: str) -> Sequence[Observer]:
    """What observes the locks of an alias, whose calls are made by threads or by tasks."""
    announcer = Observer(Announcer(face, alias), only=SIGNALS, when=_has_receivers)
    if not issubclass(face, Locks):
        return (announcer,)
    return announcer, Observer(_warn_of_transaction, only=[Acquired], immediate=True)


def _has_receivers(event: Event) -> bool:
    return bool(SIGNALS[type(event)].receivers)


def _warn_of_transaction(event: Event) -> None:
    assert isinstance(event, Acquired)
    if alias := open_transaction():
        logger.warning(
            "the lock of %.200r is acquired inside a transaction on the database %r, and will"
            " be released before its COMMIT: put atomic() inside the lock",
            event.key,
            alias,
        )
