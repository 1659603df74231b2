"""The states that a run must have met: a run that never met one of them proves nothing of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from weblock._core.ports import Pulse
from weblock._core.table import Busy, Gone, Grant, Held, Released, Waiting

from .engine import Acquire, Change, Release

if TYPE_CHECKING:
    from .attempts import Attempt
    from .truth import Truth

OF_LIMITS: Final = (
    "several held a key",
    "several were let in at once",
    "leases with different limits",
    "a smaller limit kept a waiter out",
    "holder was asked",
    "holder that was asked is followed",
)
"""Where callers name limits, and ask holders to release."""

SOMETIMES: Final = (
    "lease expired while its holder was stopped",
    "reply lost after a grant",
    "request applied after its sender gave up",
    "request applied twice",
    "reply came after its asker gave up",
    "late claim refused by its mark",
    "lease found by heartbeat after a lost notification",
    "waiter skipped",
    "waiter was handed a lease while stopped",
    "unconfirmed lease passed on",
    "expired lease passed on",
    "dead holder's lease passed on",
    "silent process lost its places",
    "renewal answered Gone",
    "repeated claim kept its lease",
    "repeated claim kept its place",
    "release found nothing",
    "cancelled while asking",
    "cancelled while waiting",
    "cancelled while handed a lease",
    "cancelled while holding",
    "cancelled while releasing",
    "queue was full",
    "lease extended",
    "nested acquire refused",
    "engine forgot leases",
    "holder killed",
    "closed while holding",
    "attempt got LockTimeout",
    "attempt got EngineUnavailable",
    "attempt got LeaseLost",
    "lease lost: expired",
    "lease lost: max_hold",
    "lease lost: taken",
    "lease lost: closed",
    "process stopped",
    "process killed",
    "engine stopped",
    "engine down",
    "message lost",
    "message late",
    *OF_LIMITS,
)


def of_change(truth: Truth, change: Change) -> None:
    """Counts what a transition shows of the engine's rare ways."""
    count, answer, had = truth.counts, change.step.answer, change.before.grants
    if isinstance(change.request, Acquire):
        if isinstance(answer, Gone):
            count["late claim refused by its mark"] += 1
        elif isinstance(answer, Held) and any(each.fence == answer.fence for each in had):
            count["repeated claim kept its lease"] += 1
        elif isinstance(answer, Waiting) and len(change.before.queue) == len(change.after.queue):
            count["repeated claim kept its place"] += 1
        elif isinstance(answer, Busy) and change.request.room > 0:
            count["queue was full"] += 1
    elif isinstance(change.request, Pulse):
        if isinstance(answer, Held) and change.owner in truth.rings_lost:
            count["lease found by heartbeat after a lost notification"] += truth.is_asking(
                change.owner
            )
    elif isinstance(change.request, Release) and not isinstance(answer, Released):
        count["release found nothing"] += 1
    _of_leases(truth, change)


def _of_leases(truth: Truth, change: Change) -> None:
    for granted in change.granted:
        _of_grant(truth, change, granted)
    if len(change.after.grants) > 1:
        _of_several(truth, change)


def _of_several(truth: Truth, change: Change) -> None:
    count, grants = truth.counts, change.after.grants
    count["several held a key"] += 1
    if len(change.granted) > 1:
        count["several were let in at once"] += 1
    if len({grant.claim.limit for grant in grants}) > 1:
        count["leases with different limits"] += 1
    if change.after.queue and change.after.queue[0].claim.limit > len(grants):
        count["a smaller limit kept a waiter out"] += 1


def _of_grant(truth: Truth, change: Change, granted: Grant) -> None:
    count, had = truth.counts, change.before.grant
    if had is not None and change.now >= had.until:
        count["expired lease passed on"] += 1
        if not had.confirmed:
            count["unconfirmed lease passed on"] += 1
            silent = had.claim.process
            if any(place.claim.process == silent for place in change.before.queue):
                count["silent process lost its places"] += 1
    elif had is not None and not truth.alive(had.claim.process):
        count["dead holder's lease passed on"] += 1
    queue = change.before.queue
    if queue and granted.claim.owner not in (queue[0].claim.owner, change.owner):
        count["waiter skipped"] += queue[0].claim.owner != change.owner
    attempt = truth.by_owner[granted.claim.owner]
    if granted.claim.owner != change.owner and not attempt.client.process.running:
        count["waiter was handed a lease while stopped"] += 1


def of_cancellation(truth: Truth, attempt: Attempt) -> None:
    what = attempt.phase.value
    if what == "asking" and attempt.owners:
        owner = attempt.owners[-1]
        for state in truth.engine.states.values():
            if any(place.claim.owner == owner for place in state.queue):
                what = "waiting"
            elif any(grant.claim.owner == owner for grant in state.grants):
                what = "handed a lease"
    truth.counts[f"cancelled while {what}"] += 1
