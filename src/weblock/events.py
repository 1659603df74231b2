"""What happens to keys, leases and engines, as small frozen values.

Each event is passed once, by the process in which it happens, to the observers of its ``Locks``:
``Locks(..., observers=[...])``. Logs, metrics, traces, the status page and Django's signals are
such observers. No event contains an owner's secret or a password.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import ClassVar, Final


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """The fields of every event."""

    name: ClassVar[str]
    """What logs, metrics and programs call it: ``timed_out`` for ``TimedOut``."""

    engine: str
    """The engine's URL, without secrets."""

    def __init_subclass__(cls) -> None:
        cls.name = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", cls.__name__).lower()

    def facts(self) -> Mapping[str, object]:
        """Return the fields by name, ready for JSON."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyEvent(Event):
    """Something that happens to one key."""

    namespace: str
    key: str
    template: str | None
    """What the key was filled in from, ``"item:{item_id}"``; ``None`` for a key that was given whole.

    Metrics need it, since they cannot tell millions of keys apart.
    """
    label: str
    """What others see of the caller that this happens to: by default, host and process id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BusyEvent(KeyEvent):
    """Something that happens because another caller holds the key."""

    holder: str | None
    """The holder's label, where the engine tells it; of several holders, that of the first."""
    others: int = 0
    """How many hold the key besides (``limit=``, ``shared=``)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseEvent(KeyEvent):
    """Something that happens to one lease, which its engine, key and fence identify."""

    fence: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting(BusyEvent):
    """A caller has found the key held, and has joined its queue.

    It leaves the queue with exactly one of ``Acquired``, ``TimedOut``, ``GaveUp`` or ``Unavailable``.
    """

    place: int
    """How many callers wait in front of it; the holder is not among them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Acquired(LeaseEvent):
    """A caller has the key.

    It ends with exactly one of ``Released``, ``HandedOver``, ``Lost`` or ``Forgotten``.
    """

    waited: float
    """Seconds since it was asked for."""
    handed_over: bool
    """Whether the caller waited in the queue; otherwise, the key was free."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Released(LeaseEvent):
    """The holder has given its lease back in time."""

    held_for: float
    """Seconds since it was acquired."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AtRisk(LeaseEvent):
    """A renewal was not answered: unless a later one is, the lease will be lost."""

    cause: str
    remaining: float
    """Seconds until then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost(LeaseEvent):
    """A lease has ended before its holder released it."""

    reason: str
    """As of ``LeaseLost``: ``expired``, ``taken``, ``max_hold`` or ``closed``."""
    held_for: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseAsked(LeaseEvent):
    """Another caller has asked the holder to release the key. The holder decides, and may go on."""

    held_for: float
    """Seconds since it was acquired."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Forgotten(LeaseEvent):
    """A lease that nobody refers to any more was given back, although nobody released it."""

    held_for: float


@dataclass(frozen=True, slots=True, kw_only=True)
class HandedOver(LeaseEvent):
    """A holder has ended its part of a lease, which lasts until its token is taken over, or for its ttl."""

    held_for: float
    ttl: float
    """Seconds that the token is good for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TakenOver(LeaseEvent):
    """A caller continues a lease that another has handed over, with the same fence.

    It ends as one that was ``Acquired`` does.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedOut(BusyEvent):
    """A caller did not get the key within the time that it was ready to wait: ``LockTimeout``."""

    wait: float
    """The seconds it was ready to wait in the queue: 0 for a caller that does not queue."""
    waited: float
    """Seconds since it was asked for."""
    place: int | None
    """How many callers waited in front of it, if it was in the queue."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused(BusyEvent):
    """A caller was refused at once, since ``max_waiters`` callers were waiting: ``LockTimeout``."""

    waiters: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GaveUp(KeyEvent):
    """A caller stopped asking for a key: it was cancelled, its client left, or a signal came."""

    waited: float
    place: int | None
    """How many callers waited in front of it, if it was in the queue."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unavailable(Event):
    """The engine did not answer a caller, or could not serve it: ``EngineUnavailable``."""

    operation: str
    """What was asked: ``acquire``, ``extend``, ``inspect``, ``list``, ``ask_release``, ``ping`` ..."""
    cause: str
    recovering: bool
    """Whether it did answer, and grants nothing until it has recovered (``EngineRecovering``)."""
    namespace: str
    key: str | None
    """The key in question, if it was one."""
    template: str | None
    label: str
    waited: float
    """Seconds since the caller asked."""
    place: int | None
    """How many callers waited in front of it, if it was in the queue."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Available(Event):
    """The engine answers again, after at least one ``Unavailable`` that was no recovery."""

    lasted: float
    """Seconds since the first request that failed."""
    requests: int
    """How many callers got ``EngineUnavailable`` meanwhile, from this ``Locks``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovering(Event):
    """The engine may have lost leases, and grants none for a while. Told once each time."""

    cause: str
    retry_after: float
    """Seconds until it grants again, as far as that is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedOpen(KeyEvent):
    """A section runs **without** the lock, as ``on_unavailable="open"`` allows."""

    cause: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Forced(KeyEvent):
    """A lease was taken away by force. ``label`` is that of the ``Locks`` by which it was done."""

    by: str
    """The user or program that took it, from ``force_release(key, by=...)``; by default the label."""
    holder: str | None
    """The label of the holder that lost it, as seen just before; of several, that of the first."""
    fence: int | None
    held_for: float
    waiters: int
    others: int = 0
    """How many lost it besides (``limit=``, ``shared=``)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeated(KeyEvent):
    """A request with a known idempotency key was not executed."""

    outcome: str
    """``replayed``: it got the stored answer. ``running``: the first one is running (409). ``reused``: the key
    was used for another request (422)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NotRenewed(Event):
    """Leases of this ``Locks`` are renewed only while handlers let other greenlets run.

    Observers get it when the ``Locks`` is created. A handler that computes for longer than its ttl
    loses its lease.
    """

    cause: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered(Event):
    """The engine has answered one request of a caller, or has failed to. Heartbeats are not told."""

    operation: str
    """``acquire`` or ``release``."""
    duration: float
    """Seconds from the request to its answer."""
    failed: bool


EVENTS: Final[Mapping[str, type[Event]]] = {
    kind.name: kind
    for kind in (
        *(
            Waiting,
            Acquired,
            Released,
            HandedOver,
            TakenOver,
            ReleaseAsked,
            AtRisk,
            Lost,
            Forgotten,
        ),
        *(TimedOut, Refused, GaveUp),
        *(Unavailable, Available, Recovering, FailedOpen, Forced, Repeated, NotRenewed, Answered),
    )
}
"""Every kind of event, by its name."""
