"""What is published to a waiter's process when its turn has come."""

from __future__ import annotations

import re
from typing import Final

from ..._core.ports import Ask, Grasp, Message, Switchboard
from ..._platform.logs import logger
from .calls import MICRO

AHEAD: Final = 1_000_000
"""By how many microseconds a fence may be ahead of its server's clock, as in ``head.lua``."""

_RING: Final = re.compile(rb"([!-~]{1,200}) ([0-9]{1,17}) ([0-9]{1,17})")


def ring_of(payload: bytes) -> tuple[str, Message] | None:
    """Return the owner and its message; ``None`` for anything but a notification of ours.

    If the server's clock does not explain a fence, the waiter is made to ask: the clock was set
    back, or the notification is forged.
    """
    parts = _RING.fullmatch(payload)
    if parts is None:
        return None
    owner, fence, until = parts[1].decode(), int(parts[2]), int(parts[3])
    plausible = fence <= until + AHEAD
    return owner, Grasp(fence, until / MICRO) if plausible else Ask()


def ring_waiter(switchboard: Switchboard, payload: object, *, trusted: bool) -> None:
    """Pass a notification on to its waiter; where a grant counts only with replicas, the waiter has to ask.

    Other messages are dropped: any client with the right to publish may send them.
    """
    ring = ring_of(payload) if isinstance(payload, bytes) else None
    if ring is None:
        logger.debug("dropped a published message that is no notification of ours")
        return
    owner, message = ring
    switchboard.ring(owner, message if trusted else Ask())
