"""Signals of what happens to locks: one for each event of ``weblock.events``.

``sender`` is ``Locks`` or ``AsyncLocks``. Every signal has the ``alias`` and the ``event``.
Receivers are called in a thread of their own, one after the other, so a slow one delays no lock;
one that raises is logged, and changes nothing.
"""

from __future__ import annotations

from typing import Final

from django.db import connections
from django.dispatch.dispatcher import Signal

from ..._api import BaseLocks
from ..._runtime.observing import Observer
from ...events import EVENTS, Answered, Event

waiting = Signal()
acquired = Signal()
released = Signal()
handed_over = Signal()
taken_over = Signal()
release_asked = Signal()
at_risk = Signal()
lost = Signal()
forgotten = Signal()
timed_out = Signal()
refused = Signal()
gave_up = Signal()
unavailable = Signal()
available = Signal()
recovering = Signal()
failed_open = Signal()
forced = Signal()
repeated = Signal()
not_renewed = Signal()

SIGNALS: Final[dict[type[Event], Signal]] = {
    kind: globals()[name] for name, kind in EVENTS.items() if kind is not Answered
}


def announcing(api: type[BaseLocks], alias: str) -> Observer:
    """Return what sends a signal for each event of the locks of an alias."""

    def send(event: Event) -> None:
        try:
            SIGNALS[type(event)].send_robust(api, alias=alias, event=event)
        finally:
            connections.close_all()

    return Observer(send, only=SIGNALS, when=_has_receivers)


def _has_receivers(event: Event) -> bool:
    return bool(SIGNALS[type(event)].receivers)
