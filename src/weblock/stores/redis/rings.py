"""What is published to a waiter's process when its turn has come."""

from __future__ import annotations

from ..._core.ports import Ask, Grasp, Switchboard
from .calls import MICRO


def ring_of(payload: bytes) -> tuple[str, Grasp] | None:
    """The owner, and what it has been given; ``None`` for what a stranger published."""
    try:
        owner, fence, until = payload.decode().split(" ")
        return owner, Grasp(int(fence), int(until) / MICRO)
    except ValueError:
        return None


def ring_waiter(switchboard: Switchboard, ring: tuple[str, Grasp] | None, *, trusted: bool) -> None:
    """Rings; where a grant counts only when replicas have it, the waiter is to ask."""
    if ring:
        owner, grasp = ring
        switchboard.ring(owner, grasp if trusted else Ask())
