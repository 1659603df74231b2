"""Rows as the cells that ``CellStore`` works on, replaced by compare-and-swap.

The columns of a row hold the lease of a key that has one exclusive lease, because the statements compare and
renew that one. Everything else of a state is in ``rest``, as ``codec`` writes it: leases that are not
exclusive, the queue, and the owners that gave up. In most rows, ``rest`` is empty.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import psycopg

from ..._core.ports import Found, Granted, Reply, Runtime, Texts
from ..._core.table import Claim, Grant, Held, KeyState, Moment, Place, Step, Voided
from ...errors import ConfigurationError, EngineRecovering, EngineUnavailable
from .. import codec
from ..cells import (
    TOO_MANY,
    Acquire,
    CellStore,
    Done,
    Heartbeats,
    RacingCells,
    Release,
    Transition,
)
from ..transport.failures import Unfit
from ..transport.listener import to_notification
from .failures import LOST_RACE, Missing, as_setting, unavailable
from .links import OfLoops, OfThreads, Row
from .statements import AFTER_TEXT, DONE, TEXT, Statements

if TYPE_CHECKING:
    from .engine import PostgreSQLEngine
    from .links import Parameter


class Reading(NamedTuple):
    """The state of a key as a statement read it, and what was known of the server then."""

    key: str
    state: KeyState
    version: int | None
    """``None`` where there is no row."""
    now: float
    known: bool
    """Whether the server is the one that the table knows, and has lost nothing."""
    quiet: float
    """Until when it grants nothing."""
    floor: int
    """No fence of a row that was removed was above this."""
    news: int
    """Which news of the server this is: another number whenever it was found to have lost leases."""


READ: Final = 17
"""The number of columns that a reading is made from."""

KEY: Final = 5
"""Which of them is the key."""


def reading_of(row: Row, table: str) -> Reading:
    """Return what the first columns of a row say, as ``statements`` selects them.

    Raises ``ConfigurationError`` for a row whose state has another format.
    """
    now, known, quiet, floor, news, key, version, *lease = row[:READ]
    state = KeyState() if version is None else _state(lease, f"the row {key!r:.80} of {table}")
    return Reading(key, state, version, now, known, quiet, floor, news or 0)


def written(reading: Reading, state: KeyState) -> dict[str, Any]:
    """Return the row that replaces a reading, for a new state."""
    if not state.grants or state.grants[0].fence > state.asked:
        state = state._replace(asked=0)  # It is of no use any more, and would fill ``rest``.
    claim, since, until, confirmed, rest = Claim("", "", 0.0, ""), 0.0, reading.now, True, state
    match state.grants:
        case (grant,) if grant.claim.limit == 1 and grant.fence == state.fence:
            claim, _, since, until, confirmed = grant
            rest = state._replace(grants=())
    lasting: list[Grant | Place | Voided] = [*state.grants, *state.queue, *state.voided]
    return {
        "key": reading.key,
        "seen": reading.version,
        "version": new_version(),
        "fence": state.fence,
        "owner": claim.owner,
        "process": claim.process,
        "label": label_of(claim),
        "ttl": claim.ttl,
        "since": since,
        "until": until,
        "confirmed": confirmed,
        "rest": "" if rest == KeyState(rest.fence) else codec.to_bytes(rest).decode(),
        "ends": max((each.until for each in lasting), default=0.0),
    }


def new_version() -> int:
    """Return a number that no version of any row had before."""
    return secrets.randbits(63)


def label_of(claim: Claim) -> str:
    """Return a claim's label without the characters that PostgreSQL's texts cannot contain."""
    return claim.label.replace("\0", "").encode(errors="replace").decode()


def _state(lease: list[Any], where: str) -> KeyState:
    fence, owner, process, label, ttl, since, until, confirmed, rest, _ends = lease
    state = codec.from_bytes(rest.encode(), where) if rest else KeyState()
    grants = state.grants
    if owner:
        grants = (Grant(Claim(owner, process, ttl, label), fence, since, until, confirmed),)
    return state._replace(fence=fence, grants=grants)


TIDIED_EVERY: Final = 60.0
"""Seconds between two looks for rows that nobody uses, by one process."""


@dataclass(eq=False)
class Caller:
    """One that acquires a key, and what came of it if another caller has acquired for both."""

    key: str
    transition: Acquire
    done: Done | None = None


class Together:
    """The transition by which the callers of one process acquire a key, in their order.

    A thousand of them so cost two statements, and not as many each.
    """

    def __init__(self, callers: Sequence[Caller]) -> None:
        self.callers = callers
        self.steps: list[Step] = []

    def __call__(self, state: KeyState, moment: Moment) -> Step:
        self.steps = []
        woken: tuple[Grant, ...] = ()
        for caller in self.callers:
            step = caller.transition(state, moment)
            self.steps.append(step)
            state, woken = step.state, woken + step.woken
        for step in self.steps:
            step.state = state  # The queue before each is the same in all, and one is enough.
        return Step(state, step.answer, woken)


class RowCells(RacingCells):
    """The rows of a table, for one runtime."""

    _cleaned_to = ""
    """The last key of the portion of the table that was cleaned last."""

    def __init__(self, engine: PostgreSQLEngine, runtime: Runtime) -> None:
        super().__init__(runtime, engine.renewing)
        self._settings = engine.settings
        self._receiver = engine.receiver
        self._statements = engine.statements
        self._links = (
            OfLoops(engine) if runtime.suspends else OfThreads(engine, renews=runtime.renews)
        )

    async def update(self, key: str, transition: Transition, *, patience: float) -> Done:
        try:
            if isinstance(transition, Release):
                # All others wait for it: it must not wait until they have joined the queue.
                return await self._update_now(key, transition, patience)
            # Those of one process would only make each other begin again.
            if isinstance(transition, Acquire):
                return await self._acquire(Caller(key, transition), patience)
            update = partial(self._update_now, key, transition, patience)
            return await self._links.in_turn(key, update)
        except Unfit as error:
            raise unavailable(self._settings, error) from error
        except Missing as error:
            if isinstance(transition, Release | Heartbeats):  # Nothing is there, then.
                raise
            raise as_setting(self._settings, error) from error.__cause__

    async def names(self, prefix: str, *, patience: float) -> list[str]:
        return [key for (key,) in await self.ask(self._statements.names, prefix)]

    async def mark(self, key: str, keep: float | None) -> None:
        if keep == 0:
            await self.ask(self._statements.unmark, DONE + key)
        else:
            await self.ask(self._statements.mark, DONE + key, keep)

    async def marked(self, key: str) -> bool:
        return bool(await self.ask(self._statements.marked, DONE + key))

    async def _acquire(self, caller: Caller, patience: float) -> Done:
        async def acquire() -> Done:
            if caller.done:
                return caller.done
            alike = [each for each in callers.copy() if each.key == caller.key and not each.done]
            if len(alike) > 1:
                together = Together(alike)
                with suppress(EngineRecovering):  # Perhaps only another one would get a lease.
                    now = (await self._update_now(caller.key, together, patience)).now
                    for each, step in zip(alike, together.steps, strict=True):
                        each.done = Done(step, now)
            if caller.done is None:
                # Also noted where it is alone: until it has left ``callers``, others see it there.
                caller.done = await self._update_now(caller.key, caller.transition, patience)
            return caller.done

        callers = self._links.callers
        callers.append(caller)
        try:
            return await self._links.in_turn(caller.key, acquire)
        finally:
            callers.remove(caller)

    async def _update_now(self, key: str, transition: Transition, patience: float) -> Done:
        give_up_at = self.runtime.now() + patience
        if key in self._renewing:
            await self._let_pass(key, transition, patience)
        outcome = await self._at_once(key, transition)
        while True:
            if isinstance(outcome, Done):
                return outcome
            if outcome:
                if not outcome.known:
                    await self._try(self._statements.admit, new_version())
                elif done := await self._replace(outcome, transition):
                    return done
            if self.runtime.now() >= give_up_at:
                raise EngineUnavailable(self._settings.name, TOO_MANY)
            await self._let_pass(key, transition, give_up_at - self.runtime.now())
            outcome = (await self._look([key])).get(key)

    async def _at_once(self, key: str, transition: Transition) -> Done | Reading | None:
        """Do the most common cases in one statement; return what it has read if this is none of them."""
        match transition:
            case Acquire(claim=claim) if claim.limit == 1:
                rows = await self._try(
                    self._statements.acquire,
                    key,
                    new_version(),
                    claim.owner,
                    claim.process,
                    label_of(claim),
                    claim.ttl,
                )
            case Release(owner=owner, void=0):
                rows = await self._try(self._statements.release, key, new_version(), owner)
            case _:
                return (await self._look([key])).get(key)
        if not rows:  # Another was quicker.
            return None
        reading, (fence, *until) = self._reading(rows[0]), rows[0][READ:]
        if fence is None:
            return reading
        state = KeyState(fence)
        if until:
            return Done(Step(state, Held(fence, *until)), reading.now)
        # A lease that had ended by then was no longer there to be released.
        answer = transition(reading.state, _moment(reading)).answer
        return Done(Step(state, answer), reading.now)

    async def _look(self, keys: Sequence[str]) -> dict[str, Reading]:
        rows = await self._try(self._statements.look, json.dumps(keys))
        return {reading.key: reading for reading in map(self._reading, rows)}

    def _reading(self, row: Row) -> Reading:
        return reading_of(row, f"{self._settings.table} on {self._settings.name}")

    async def _update_at_once(
        self, changes: Mapping[str, Transition]
    ) -> dict[str, Done | EngineUnavailable]:
        readings, outcomes = await self._renew(changes)
        if any(not reading.known for reading in readings.values()):
            return {}
        changed: dict[str, Done] = {}
        rows, news = [], 0
        for key, reading in readings.items():
            step = changes[key](reading.state, _moment(reading))
            done = Done(step, reading.now)
            if step.state == reading.state:
                outcomes[key] = done
            elif reading.version is not None and not _grants(reading, step):
                changed[key] = done
                rows.append(self._row(reading, step))
                news = reading.news  # One statement has read them all.
        if rows:
            for name, *_ in await self._try(self._statements.write_some, json.dumps(rows), news):
                outcomes[name] = changed[name]
        return outcomes

    async def _renew(
        self, changes: Mapping[str, Transition]
    ) -> tuple[dict[str, Reading], dict[str, Done | EngineUnavailable]]:
        """Renew the leases of heartbeats. Return the other heartbeats, and the results of these."""
        readings: dict[str, Reading] = {}
        outcomes: dict[str, Done | EngineUnavailable] = {}
        beats = json.dumps([_beat(*change) for change in changes.items()])
        for row in await self._try(self._statements.renew, beats):
            try:
                reading, (fence, until) = self._reading(row), row[READ:]
            except ConfigurationError as error:
                outcomes[row[KEY]] = EngineUnavailable(self._settings.name, error.message)
                continue
            heartbeats = changes[reading.key]
            if fence is None or not isinstance(heartbeats, Heartbeats):
                readings[reading.key] = reading
            else:
                held = Held(fence, until, asked=fence <= reading.state.asked)
                heartbeats.answers[heartbeats.pulses[0].owner] = held
                outcomes[reading.key] = Done(Step(reading.state, held), reading.now)
        return readings, outcomes

    async def _replace(self, reading: Reading, transition: Transition) -> Done | None:
        """Write the result of a transition; return ``None`` if another caller was quicker."""
        step = transition(reading.state, _moment(reading))
        if step.state == reading.state:
            return Done(step, reading.now)
        if _grants(reading, step) and reading.now < reading.quiet:
            raise EngineRecovering(
                self._settings.name,
                "it was promoted, restored or emptied just now",
                retry_after=reading.quiet - reading.now,
            )
        before, after = reading.state, step.state
        must_last = (
            after.voided != before.voided
            or after.asked != before.asked
            or any(grant not in before.grants for grant in after.grants)
            or (len(after.grants) < len(before.grants) and not isinstance(transition, Release))
        )
        what = json.dumps([self._row(reading, step)]), reading.news, must_last
        written = await self._try(self._statements.write, *what)
        return Done(step, reading.now) if written else None

    def _row(self, reading: Reading, step: Step) -> dict[str, object]:
        row = written(reading, step.state)
        notifications = [
            (
                woken.claim.process,
                to_notification(woken.claim.owner, Granted(woken.fence, woken.until)),
            )
            for woken in step.woken
            if woken.claim.process != self._receiver.process
        ]
        if notifications:
            row["notifications"] = notifications
        return row

    async def _try(self, statement: bytes, *parameters: Parameter) -> list[Row]:
        """Return the rows of a transition; none if another caller was quicker."""
        try:
            return await self._links.ask(statement, *parameters)
        except LOST_RACE:
            return []
        except (psycopg.Error, Unfit, OSError) as error:
            raise unavailable(self._settings, error) from error

    async def ask(self, statement: bytes, *parameters: Parameter) -> list[Row]:
        """Return the rows that a statement results in."""
        try:
            return await self._links.ask(statement, *parameters)
        except (psycopg.Error, Unfit, OSError) as error:
            failure = unavailable(self._settings, error)
            if isinstance(failure, Missing):
                raise as_setting(self._settings, failure) from error
            raise failure from error

    async def clean(self) -> bool:
        """Remove rows that nobody uses from the next portion of the table, and return whether there were any."""
        found = await self._try(self._statements.clean, self._cleaned_to)
        if not found:
            return False
        ((last, removed),) = found
        self._cleaned_to = last or ""
        return bool(removed)


class RowStore(CellStore):
    """The lock protocol on rows. Releases also remove rows that nobody uses, now and then."""

    def __init__(self, engine: PostgreSQLEngine, runtime: Runtime) -> None:
        self._rows = RowCells(engine, runtime)
        self._engine = engine
        self._runtime = runtime
        engine.tidy_at = runtime.now() + TIDIED_EVERY * runtime.jitter()
        texts = RowTexts(self._rows, engine.statements)
        super().__init__(self._rows, engine.receiver, texts=texts)

    async def release(self, key: str, owner: str, *, void: float = 0) -> Reply:
        reply = await super().release(key, owner, void=void)
        # The next holder has been notified by now, and does not wait for this.
        if (now := self._runtime.now()) >= self._engine.tidy_at:
            self._engine.tidy_at = now + TIDIED_EVERY
            with suppress(EngineUnavailable):  # Another call tries again.
                if await self._rows.clean():
                    self._engine.tidy_at = now
        return reply


class RowTexts(Texts):
    """The texts of the table. Like all rows that nobody uses, they are removed when they have ended."""

    def __init__(self, rows: RowCells, statements: Statements) -> None:
        self._rows = rows
        self._statements = statements

    async def find(self, key: str, group: str) -> Found:
        ((text, count, rest),) = await self._rows.ask(
            self._statements.find_text,
            _name(group, key),
            _name(group, ""),
            f"{TEXT}{group}{AFTER_TEXT}",
        )
        return Found(text, count, rest)

    async def keep(self, key: str, group: str, text: str, *, owner: str, seconds: float) -> bool:
        return bool(
            await self._rows.ask(
                self._statements.keep_text, key, owner, _name(group, key), text, seconds
            )
        )

    async def forget(self, key: str, group: str) -> bool:
        return bool(await self._rows.ask(self._statements.forget_text, _name(group, key)))

    async def all(self, prefix: str, limit: int) -> list[tuple[str, str]]:
        rows = await self._rows.ask(self._statements.all_texts, TEXT, AFTER_TEXT, prefix, limit)
        return [(name.split(TEXT, 2)[2], text) for name, text in rows]


def _name(group: str, key: str) -> str:
    return f"{TEXT}{group}{TEXT}{key}"


def _beat(key: str, transition: Transition) -> dict[str, object]:
    """Return what the statement ``renew`` takes: nothing but the key, unless one lease is to be renewed."""
    match transition:
        case Heartbeats(pulses=[pulse]):
            return {
                "key": key,
                "owner": pulse.owner,
                "ttl": pulse.ttl,
                "version": new_version(),
            }
    return {"key": key}


def _moment(reading: Reading) -> Moment:
    return Moment(
        reading.now,
        max(round(reading.now * 1_000_000), reading.floor + 1),
        grants=reading.now >= reading.quiet,
    )


def _grants(reading: Reading, step: Step) -> bool:
    """Return whether a transition grants a lease: each has a fence of its own."""
    return step.state.fence != reading.state.fence
