"""The protocol with one mistake each, to see that the simulator would find it.

A mutant replaces a piece of a function's source. If the piece is not there any more, the function
has changed, and the mutant must follow.
"""

from __future__ import annotations

import inspect
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from weblock._core import table
from weblock._core.acquiring import Acquisition, Locker
from weblock._core.holding import Anchor, Holding
from weblock._core.keeping import Keeper


class Patch(NamedTuple):
    """In the source of ``owner.name``, ``new`` instead of ``old``."""

    owner: Any
    name: str
    old: str
    new: str


class Mutant(NamedTuple):
    """A mistake, and the properties that may find it."""

    name: str
    patches: tuple[Patch, ...]
    found_by: tuple[str, ...]


@contextmanager
def mutated(mutant: Mutant) -> Iterator[None]:
    """Has the protocol make the mistake for a while."""
    undo: list[tuple[Any, str, Any]] = []
    try:
        for patch in mutant.patches:
            undo.append((patch.owner, patch.name, patch.owner.__dict__[patch.name]))
            setattr(patch.owner, patch.name, _replaced(patch))
        yield
    finally:
        for owner, name, original in reversed(undo):
            setattr(owner, name, original)


def _replaced(patch: Patch) -> Any:
    original = patch.owner.__dict__[patch.name]
    is_property = isinstance(original, property)
    function: Callable[..., Any] = original.fget if is_property else original  # type: ignore[assignment]
    source = getattr(function, "source", None) or textwrap.dedent(inspect.getsource(function))
    if source.count(patch.old) != 1:
        raise LookupError(f"{patch.old!r} is not in {patch.name} once; let the mutant follow")
    source = source.replace(patch.old, patch.new)
    code = compile(f"from __future__ import annotations\n{source}", f"<{patch.name}>", "exec")
    names: dict[str, Any] = {}
    exec(code, sys.modules[function.__module__].__dict__, names)
    names[patch.name].source = source  # For the next patch of the same function.
    return names[patch.name]


def _mutant(name: str, *patches: tuple[Any, str, str, str], by: str) -> Mutant:
    return Mutant(name, tuple(Patch(*patch) for patch in patches), tuple(by.split()))


MUTANTS = [
    _mutant(
        "deadline counted from the reply",
        (Acquisition, "_ask", "Anchor(reply.now, sent)", "Anchor(reply.now, self._runtime.now())"),
        (Holding, "heard", "Anchor(reply.now, sent)", "Anchor(reply.now, now)"),
        by="P7",
    ),
    _mutant("no allowance for drift", (Anchor, "deadline", "(1 - DRIFT)", "1"), by="P7"),
    _mutant(
        "deadline ignored",
        (Holding, "held", "and now < self.deadline", ""),
        (Holding, "check", "and now >= self.deadline", "and False"),
        by="P1 P7 P8",
    ),
    _mutant(
        "release asks for no owner",
        (table, "release", "if _holds(state, owner):", "if state.grant:"),
        by="P3",
    ),
    _mutant(
        "refresh asks for no owner",
        (table, "_refreshed", "_holds(state, owner) and ", ""),
        by="P3",
    ),
    _mutant(
        "refresh revives an ended lease",
        (table, "refresh", "settle(state, moment)", "state, None"),
        by="P8",
    ),
    _mutant(
        "a fence is given twice",
        (table, "_granted", "state.fence + 1", "state.fence + (state.fence < 1)"),
        by="P2",
    ),
    _mutant(
        "a lease is given away early",
        (table, "settle", "moment.now < grant.until", "moment.now < grant.until - 0.1"),
        by="P3",
    ),
    _mutant(
        "who gave up is not refused",
        (table, "acquire", "voided.owner == claim.owner", "False"),
        by="P6",
    ),
    _mutant(
        "the last in the queue is first",
        (
            table,
            "acquire",
            "(*queue, Place(claim, moment.now + PLACE))",
            "(Place(claim, moment.now + PLACE), *queue)",
        ),
        by="P5",
    ),
    _mutant(
        "the queue is passed by at a free key",
        (
            table,
            "acquire",
            "state, woken = settle(state, moment)",
            "woken = None; g = state.grant; state = state._replace(grant=g and (g if moment.now < g.until else None))",
        ),
        by="P5",
    ),
    _mutant(
        "places are not kept",
        (Acquisition, "_keep_place", "self._locker.keeper.keep(self)", "pass"),
        by="P4 P10",
    ),
    _mutant(
        "places are not kept alive by the engine",
        (table, "_refreshed", "place._replace(until=moment.now + PLACE)", "place"),
        by="P4 P5",
    ),
    _mutant(
        "dead waiters are not skipped",
        (
            table,
            "_from_first_live",
            "moment.now < place.until and moment.alive(place.claim.process)",
            "True",
        ),
        by="P3",
    ),
    _mutant(
        "a lease is passed on for good",
        (table, "settle", "length, confirmed=False", "claim.ttl, confirmed=True"),
        by="P4",
    ),
    _mutant(
        "a late grant is accepted",
        (Acquisition, "_until_held", "if self._runtime.now() < deadline:", "if True:"),
        by="P11",
    ),
    _mutant(
        "what was lost while waiting is returned",
        (Locker, "acquire", "holding.check(self.runtime.now())", "pass"),
        (Acquisition, "_until_held", "if self._runtime.now() < deadline:", "if True:"),
        by="P11",
    ),
    _mutant(
        "who is cancelled owes nothing",
        (Acquisition, "run", "self._locker.owe(*self._what_to_give_back())", "pass"),
        by="P6",
    ),
    _mutant(
        "who is out of time leaves its place",
        (Acquisition, "run", "await self._locker.give_back(*self._what_to_give_back())", "pass"),
        by="P6",
    ),
    _mutant(
        "a lease that the engine forgot is kept",
        (Holding, "heard", 'self.lose("taken")', "self.due = now + self.terms.ttl / 3"),
        by="P8",
    ),
    _mutant(
        "an unanswered renewal counts as done",
        (Holding, "heard", "self.at_risk = True", "self.extended(now + self.terms.ttl)"),
        by="P7",
    ),
    _mutant(
        "max_hold is ignored",
        (Holding, "_within_max_hold", "min(deadline, self.hold_until)", "deadline"),
        by="P7",
    ),
    _mutant(
        "a late release is not reported",
        (Locker, "_release", "return ours\n", "return True\n"),
        by="P8",
    ),
    _mutant(
        "debts are not paid",
        (Keeper, "_pay_debts", "await debt.pay(store, self._runtime)", "debt.over = True"),
        by="P6",
    ),
    _mutant(
        "a waiter never looks whether the lease has ended",
        (Acquisition, "_plan_heartbeat", "pause = BEAT *", "pause = 60 * BEAT *"),
        (Acquisition, "_plan_heartbeat", "if waiting.position == 0:", "if False:"),
        by="P4",
    ),
    _mutant(
        "an ended wait stays on the switchboard",
        (Acquisition, "run", "self._locker.switchboard.disconnect(self.owner)", "pass"),
        by="P9 P4",
    ),
    _mutant(
        "an ended wait goes on with its heartbeats",
        (Acquisition, "run", "self._locker.keeper.drop(self)", "pass"),
        by="P6",
    ),
    _mutant(
        "patience is without end",
        (Acquisition, "_turn", "patience == INFINITE", "True"),
        by="P10",
    ),
    _mutant(
        "nobody is woken, and nobody asks",
        (Acquisition, "heard", "self._bell.ring(Grasp(fence, until))", "pass"),
        by="P4 P10",
    ),
    _mutant(
        "a lease that is passed on is not confirmed",
        (Holding, "__init__", "now + CONFIRM_AFTER", "now + 60"),
        by="P7 P8 P4",
    ),
    _mutant(
        "a lease is shortened by its renewal",
        (table, "_refreshed", "max(state.grant.until, moment.now + ttl)", "moment.now + ttl"),
        by="P7",
    ),
    _mutant(
        "the keeper spins until max_hold",
        (Holding, "pulse", "self.due = self.deadline", "pass"),
        by="P10",
    ),
]
