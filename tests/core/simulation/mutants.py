"""The protocol with one mistake at a time, and the properties that may find it.

A mutant edits the source of one function of the core. Where the source has changed and the edit
does not fit any more, it says so: a mutant that changes nothing would prove nothing.
"""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FunctionType
from typing import Any, Final

from weblock._core import table
from weblock._core.acquiring import Acquisition, Locker
from weblock._core.holding import Anchor, Holding
from weblock._core.keeping import Keeper, Waiter


@dataclass(frozen=True, slots=True)
class Mutant:
    """``new`` for ``old`` in the function ``where`` of ``owner``; ``killers`` may notice.

    ``seed`` is of a schedule in which one of them did: hunts begin with it.
    """

    name: str
    owner: Any
    where: str
    old: str
    new: str
    killers: tuple[str, ...]
    seed: int = 0

    def seeds(self, limit: int) -> Iterator[int]:
        """The seeds of the first ``limit`` schedules, beginning with the one that killed it before."""
        yield self.seed
        yield from (seed for seed in range(limit) if seed != self.seed)

    @contextmanager
    def alive(self) -> Iterator[None]:
        original = vars(self.owner)[self.where]
        setattr(self.owner, self.where, self._edited(original))
        try:
            yield
        finally:
            setattr(self.owner, self.where, original)

    def _edited(self, original: Any) -> Any:
        function: FunctionType = original.fget if isinstance(original, property) else original
        source = textwrap.dedent(inspect.getsource(function))
        if source.count(self.old) != 1:
            raise LookupError(
                f"mutant {self.name!r}: {self.where} has {self.old!r} {source.count(self.old)}"
                " times, not once; fit the mutant to the core as it is now"
            )
        code = "from __future__ import annotations\n" + source.replace(self.old, self.new)
        names: dict[str, Any] = {}
        exec(code, function.__globals__, names)
        return names[self.where]


MUTANTS: Final = (
    # Deadlines.
    Mutant(
        "a deadline counts from the reply",
        Acquisition,
        "run",
        "Anchor(reply.now, sent)",
        "Anchor(reply.now, runtime.now())",
        ("P7", "P1"),
        seed=1,
    ),
    Mutant(
        "a renewed deadline counts from the reply",
        Holding,
        "heard",
        "Anchor(reply.now, sent)",
        "Anchor(reply.now, now)",
        ("P7", "P1"),
        seed=2,
    ),
    Mutant(
        "clocks are taken to run alike",
        Anchor,
        "deadline",
        " * (1 - drift) - MARGIN",
        "",
        ("P7", "P1"),
        seed=8,
    ),
    Mutant(
        "a holder never looks at its deadline",
        Holding,
        "check",
        "now >= self.deadline",
        "False",
        ("P8",),
        seed=19,
    ),
    Mutant(
        "the keeper never looks at a deadline",
        Holding,
        "pulse",
        "now >= self.deadline",
        "False",
        ("P8", "P10"),
        seed=11,
    ),
    Mutant(
        "a grant that comes too late is taken",
        Acquisition,
        "_hold",
        "if now >= deadline - least:",
        "if False:",
        ("P11", "P7", "P8"),
        seed=19,
    ),
    Mutant(
        "an unanswered renewal counts as renewed",
        Holding,
        "heard",
        "self.at_risk = self.deadline != self.hold_until",
        "deadline = now + self.terms.ttl * 0.95\n"
        "        self.deadline = self._within_max_hold(deadline)\n"
        "        self.due = self._next_renewal(now)\n"
        "        return",
        ("P7", "P1"),
        seed=3,
    ),
    Mutant(
        "a late answer brings back a lease whose deadline has passed",
        Holding,
        "heard",
        "elif now >= self.deadline:",
        "elif False:",
        ("P7", "P11"),
        seed=843,
    ),
    Mutant(
        "max_hold is ignored",
        Holding,
        "_within_max_hold",
        "return deadline if self.hold_until is None else",
        "return deadline if True else",
        ("P8",),
        seed=41,
    ),
    Mutant(
        "a lease is not renewed",
        Holding,
        "pulse",
        "if self.over or not self.terms.renew:",
        "if True:",
        ("P10",),
        seed=2,
    ),
    Mutant(
        "a lease that was extended by far is not looked after",
        Holding,
        "_next_renewal",
        "since + min(self.terms.ttl, self.deadline - since) / 3",
        "self.deadline - self.terms.ttl * 2 / 3",
        ("P12",),
        seed=5,
    ),
    # Owners.
    Mutant(
        "anybody releases",
        table,
        "release",
        "if mine.claim.owner == owner:",
        "if True:",
        ("P3", "P7"),
        seed=2,
    ),
    Mutant(
        "anybody renews",
        table,
        "_refreshed",
        "if mine := _grant_of(state, owner):",
        "if mine := state.grant:",
        ("P3", "P11"),
    ),
    Mutant(
        "a renewal brings an expired lease back",
        table,
        "refresh",
        "state, woken = settle(state, moment)",
        "woken = ()",
        ("P7",),
        seed=15,
    ),
    Mutant(
        "a renewal may shorten a lease",
        table,
        "_refreshed",
        "max(mine.until, moment.now + ttl)",
        "moment.now + ttl",
        ("P7",),
        seed=6,
    ),
    Mutant(
        "a lease passes on before it has ended",
        table,
        "_lives",
        "moment.now < grant.until and",
        "moment.now < grant.until - 0.05 and",
        ("P3", "P7"),
        seed=13,
    ),
    Mutant(
        "a lease that expired is never passed on",
        table,
        "_lives",
        "moment.now < grant.until and",
        "",
        ("P4", "P10", "P7"),
        seed=12,
    ),
    # Fences.
    Mutant(
        "a fence is given twice",
        table,
        "_granted",
        "max(state.fence + 1, moment.fence_floor)",
        "max(state.fence, 1)",
        ("P2", "P11"),
    ),
    Mutant(
        "fences start anew when the state is lost",
        table,
        "_granted",
        "max(state.fence + 1, moment.fence_floor)",
        "state.fence + 1",
        ("P2", "P11"),
        seed=33,
    ),
    Mutant(
        "a repeated claim gets another fence",
        table,
        "acquire",
        "grants = state.grants\n",
        "if mine := _grant_of(state, claim.owner):\n"
        "        grants = tuple(grant for grant in state.grants if grant is not mine)\n"
        "        state = state._replace(grants=grants)\n"
        "    grants = state.grants\n",
        ("P2",),
        seed=2,
    ),
    # The queue.
    Mutant(
        "a repeated claim goes to the end of the queue",
        table,
        "acquire",
        "if claim.owner in places or",
        "places = {each: places[each] for each in places if each != claim.owner}\n    if",
        ("P5", "P3"),
    ),
    Mutant(
        "the last to come is the first served",
        table,
        "acquire",
        "places[claim.owner] = Place(claim, moment.now + PLACE)",
        "places = {claim.owner: Place(claim, moment.now + PLACE), **places}",
        ("P5",),
    ),
    Mutant(
        "a free key is taken past those who wait",
        table,
        "release",
        "state, woken = settle(state, moment)",
        "woken = ()",
        ("P4", "P5", "P7"),
        seed=6,
    ),
    Mutant(
        "absent waiters are not skipped",
        table,
        "_let_in",
        "if moment.now < until and moment.alive(claim.process):",
        "if True:",
        ("P3",),
        seed=288,
    ),
    Mutant(
        "a lease is handed over for its whole ttl",
        table,
        "_let_in",
        "min(claim.ttl, HANDOFF)",
        "claim.ttl",
        ("P4",),
        seed=278,
    ),
    Mutant(
        "nobody is woken",
        table,
        "release",
        "return Step(state, answer, woken, following)",
        "return Step(state, answer)",
        ("P4",),
        seed=7,
    ),
    Mutant(
        "the wrong waiter is woken",
        table,
        "_let_in",
        "return state._replace(places=places), state.grants[len(grants) :]",
        "queue, woken = state.queue, state.grants[len(grants) :]\n"
        "    woken = tuple(grant._replace(claim=queue[-1].claim) for grant in woken)\n"
        "    return state._replace(places=places), woken",
        ("P11", "P4"),
    ),
    Mutant(
        "waiters send no heartbeats",
        Waiter,
        "pulse",
        "return Pulse(self.key, self.owner, self.terms.first_ttl, waits=True)",
        "self.due = now + 1.0",
        ("P4", "P9", "P10"),
        seed=10,
    ),
    # Giving up.
    Mutant(
        "a late claim of one that gave up is granted",
        table,
        "release",
        "if void > 0:",
        "if False:",
        ("P6",),
        seed=22,
    ),
    Mutant(
        "one that gives up in doubt does not say so",
        Acquisition,
        "_void",
        "if self._in_doubt",
        "if False",
        ("P6",),
        seed=22,
    ),
    Mutant(
        "a cancelled waiter leaves its place",
        Acquisition,
        "_give_up",
        "locker.keeper.release_later(self.key, self.owner, ttl, self._void())",
        "pass",
        ("P6",),
        seed=7,
    ),
    Mutant(
        "a waiter whose time is up leaves its place",
        Acquisition,
        "_give_up",
        "await locker.give_back(self.key, self.owner, ttl, self._void())",
        "pass",
        ("P6",),
        seed=11,
    ),
    Mutant(
        "a cancelled release does not release",
        Locker,
        "release_later",
        "if not holding.released_elsewhere:",
        # Without its watch, for else the keeper gives back what nobody refers to any more.
        "if self.keeper.watches.pop(holding.owner, None) and False:",
        ("P6",),
        seed=944,
    ),
    Mutant(
        "what was not given back is forgotten",
        Keeper,
        "_release_some",
        "failure and now < release.until",
        "False",
        ("P6",),
        seed=234,
    ),
    Mutant(
        "one that failed to get all keys keeps the first",
        Locker,
        "undo",
        "await self.release(got)",
        "pass",
        ("P6", "P9"),
        seed=314,
    ),
    Mutant(
        "one that gave up is still kept alive",
        Acquisition,
        "_give_up",
        "locker.keeper.drop(self._place)",
        "pass",
        ("P6", "P9"),
        seed=11,
    ),
    Mutant(
        "one that gave up can still be notified",
        Acquisition,
        "run",
        "locker.switchboard.mailboxes.pop(self.owner, None)",
        "pass",
        ("P9",),
    ),
    # Telling.
    Mutant(
        "a renewal that is refused is not told",
        Holding,
        "heard",
        'self.lose("taken")',
        "self.due = now + 0.5",
        ("P8",),
        seed=439,
    ),
    Mutant(
        "releasing what had expired is not told",
        Holding,
        "let_go",
        "if self.status is Status.HELD and now < self.deadline:",
        "if self.status is Status.HELD:",
        ("P11", "P8"),
        seed=468,
    ),
    Mutant(
        "releasing what the engine had lost is not told",
        Locker,
        "release",
        "and isinstance(answer, Gone)",
        "and False",
        ("P11",),
        seed=426,
    ),
    # Limits.
    Mutant(
        "a holder's limit does not count for those who come",
        table,
        "fits",
        "min(claim.limit, _least_limit(grants))",
        "claim.limit",
        ("P1",),
    ),
    Mutant(
        "a claim's own limit does not count",
        table,
        "fits",
        "min(claim.limit, _least_limit(grants))",
        "_least_limit(grants)",
        ("P1",),
        seed=29,
    ),
    Mutant(
        "the newest holder's limit counts, not the smallest",
        table,
        "_least_limit",
        "min([grant.claim.limit for grant in grants], default=SHARED)",
        "grants[-1].claim.limit if grants else SHARED",
        ("P1",),
        seed=25,
    ),
    Mutant(
        "all who wait are let in, whatever the holders' limits",
        table,
        "_let_in",
        "if number >= room:",
        "if False:",
        ("P1",),
        seed=12,
    ),
    Mutant(
        "waiters are let in beyond their own limit",
        table,
        "_let_in",
        "if number >= claim.limit:",
        "if False:",
        ("P1",),
    ),
    Mutant(
        "a waiter that is let in does not limit those behind it",
        table,
        "_let_in",
        "min(room, claim.limit)",
        "room",
        ("P1",),
        seed=12,
    ),
    Mutant(
        "a release lets in one waiter, though more fit",
        table,
        "_let_in",
        "if number >= room:",
        "if number >= room or number > len(grants):",
        ("P4",),
    ),
    Mutant(
        "one that fits overtakes those who wait",
        table,
        "acquire",
        "claim.limit > 1 and not places and",
        "claim.limit > 1 and",
        ("P5",),
        seed=15,
    ),
    Mutant(
        "the first in line is passed by those who fit",
        table,
        "_let_in",
        "                break\n            length",
        "                del places[claim.owner]\n                continue\n            length",
        ("P5", "P3"),
    ),
    Mutant(
        "a release of one of several takes the oldest lease",
        table,
        "release",
        "in enumerate(grants)",
        "in [(0, each) for each in grants]",
        ("P3",),
        seed=13,
    ),
    Mutant(
        "a renewal of one of several puts it in the place of the oldest",
        table,
        "_exchanged",
        "each is old",
        "each is state.grants[0]",
        ("P3",),
        seed=13,
    ),
    Mutant(
        "when one lease ends, all of the key do",
        table,
        "_lasting",
        "lasting = tuple(grant for grant in state.grants if _lives(grant, moment))",
        "lasting = state.grants if all(_lives(each, moment) for each in state.grants) else ()",
        ("P3",),
        seed=21,
    ),
    # Asking.
    Mutant(
        "later holders are asked, too",
        table,
        "ask_release",
        "asked=state.fence",
        "asked=state.fence + 10**9",
        ("P13",),
        seed=13,
    ),
    Mutant(
        "of several holders, only the oldest is asked",
        table,
        "ask_release",
        "asked=state.fence",
        "asked=state.grants[0].fence",
        ("P13",),
        seed=21,
    ),
    Mutant(
        "the first release ends the asking of all",
        table,
        "release",
        "KeyState(state.fence, left, places, state.voided, state.asked)",
        "KeyState(state.fence, left, places, state.voided)",
        ("P13",),
        seed=66,
    ),
    Mutant(
        "an asker is told that there is no holder",
        table,
        "ask_release",
        "ASKED_ALL",
        "GONE",
        ("P13",),
        seed=6,
    ),
    Mutant(
        "a renewal does not tell that the holder was asked",
        table,
        "_held",
        "grant.fence <= state.asked",
        "False",
        ("P13",),
        seed=6,
    ),
    Mutant(
        "a holder does not listen to what it is asked",
        Holding,
        "renewed",
        "if answer.asked:",
        "if False:",
        ("P13",),
        seed=6,
    ),
    Mutant(
        "a holder that was asked does not call back",
        Holding,
        "ask_to_release",
        "call_once(self._when_asked)",
        "pass",
        ("P13",),
        seed=6,
    ),
)
