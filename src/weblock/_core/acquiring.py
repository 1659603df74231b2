"""How a key is acquired, handed over, and released.

An acquisition asks the engine once. If the key is held, that same request has put the claim into
the queue; from then on the caller waits for its bell. The release before it hands the lease over
and rings the bell. Because a notification may be lost, the keeper regularly asks the engine for all
waiters, and rings the bells of those whose state has changed. However an acquisition ends, it
leaves nothing behind: what it cannot give back itself (it was cancelled, the engine did not
answer) becomes a debt, which the keeper pays.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeVar

from ..errors import AlreadyHeld, EngineRecovering, EngineUnavailable, LeaseLost, LockTimeout
from ..keys import unqualified
from .attempts import Attempts
from .holding import Anchor, Hands, Holding, Status, Terms, Unprotected
from .keeping import LATEST, Debt, Keeper
from .observers import Observers
from .outage import DOWN
from .outage import LONGEST as OUTAGE
from .pace import Pace
from .ports import Ask, Grasp, Pulse, Reply, Runtime, Store, Switchboard, Unfinished
from .table import HANDOFF, PLACE, Answer, Busy, Claim, Gone, Held, Waiting
from .telling import (
    Health,
    tell_acquired,
    tell_answer,
    tell_busy,
    tell_gave_up,
    tell_waiting,
)

T = TypeVar("T")

BEAT: Final = 1.0
"""Seconds between a waiter's heartbeats, at most."""

GRACE: Final = 0.01
"""Seconds after a lease's end at which the first waiter asks whether it has ended."""

LATE: Final = 0.1
"""Seconds after the end of its wait at which a waiter can still take its turn.

An event loop that was blocked, or a thread that got no processor, may find a turn that came in time.
"""

LOOK: Final = 0.5
"""Seconds between two calls of ``Caller.while_waiting``."""

FIRST_PAUSE: Final = 0.05
LONGEST_PAUSE: Final = 1.0
"""Seconds between attempts to reach an engine that does not answer."""

LEAVING: Final = 8
"""Turns of an event loop in which a generator that was left by ``break`` begins to release its lease.

asyncio ends it in a task, which it creates when no code refers to the generator any more. A generator
within another one takes two turns more.
"""

UNKNOWN_WAIT: Final = 10.0
"""Seconds after which to ask again, at most, where nothing is known of how long a renewed lease lasts."""

MOST_WAITS: Final = 1000
"""Keys of which a process remembers how long a caller has waited."""

LONGEST_LABEL: Final = 200
"""The longest label of a caller in characters: an engine keeps it for each waiter."""

INFINITE: Final = float("inf")


@dataclass(slots=True)
class Caller:
    """The caller that acquires, if that is not just the task or thread that runs.

    Each request makes one, and to make a frozen one would take three times as long.
    """

    about: str
    """What others see of the caller after the label of its terms."""
    control: object
    """The flow of control that the lease belongs to."""
    before_waiting: Callable[[], Awaitable[object]] | None = None
    """Called once if a key is not free, before the caller waits for it."""
    while_waiting: Callable[[], object] | None = None
    """Called every ``LOOK`` seconds while the caller waits. An exception that it raises ends the wait.

    It is for callers in threads, which cannot be cancelled from outside.
    """

    async def prepare_to_wait(self) -> None:
        """Call ``before_waiting``, unless that was done."""
        before, self.before_waiting = self.before_waiting, None
        if before:
            await before()


class Attempt(NamedTuple):
    """One of several attempts of a caller to acquire keys."""

    since: float
    """The time of the first attempt, or when the caller got the key before this one."""
    last: bool


class Locker:
    """Acquires, extends and releases keys in one engine, for one runtime."""

    def __init__(
        self,
        *,
        store: Store,
        runtime: Runtime,
        keeper: Keeper,
        switchboard: Switchboard,
        engine: str,
        observers: Observers | None = None,
        fails_as_one: bool = True,
    ) -> None:
        self.fails_as_one = fails_as_one
        """Whether the engine does: see ``Engine``."""
        self.engine = engine
        """What returns the table that the leases are in, if they are in a database."""
        self.observers = observers or Observers(engine, runtime.now)
        self.store = store
        self.runtime = runtime
        self.keeper = keeper
        self.switchboard = switchboard
        self.health = Health(self.observers)
        self.waits: dict[str, float] = {}
        """For how many seconds the last caller has waited that has acquired a key, by keys."""
        self.is_closed = False

    @property
    def over(self) -> bool:
        """Whether it was closed, or all of its engine was."""
        return self.is_closed or self.keeper.over

    def closed(self) -> EngineUnavailable:
        """Return what a caller gets who comes to wait, or to hold, when this is over."""
        return EngineUnavailable(self.engine, "it was closed")

    def refuse_unless_kept(self, terms: Terms) -> None:
        """Raise ``EngineUnavailable`` if nobody would renew a lease: it could end within its section."""
        if self.over:
            raise self.closed()
        if terms.renew:
            reason = "no thread can be started to renew the lease"
            raise EngineUnavailable(self.engine, reason)

    def close(self) -> None:
        """End the waits of its callers. Those of others on the same engine go on."""
        self.is_closed = True  # First: a caller that begins to wait now looks at it afterwards.
        self.keeper.wake(self)

    async def acquire(
        self,
        keys: Sequence[str],
        terms: Terms,
        wait: float | None,
        caller: Caller | None = None,
        attempt: Attempt | None = None,
    ) -> Hands[Holding]:
        """Acquire all keys, one after the other, or none.

        Every caller passes keys in the same order, so that no two can wait for each other. Raises
        ``LockTimeout``, ``EngineUnavailable`` or ``AlreadyHeld``.
        """
        if wait != 0 or attempt:
            turns = LEAVING if self.runtime.suspends else 0
            while refusal := self._waits_for_itself(keys, terms.limit):
                if not turns:
                    raise refusal
                await self.runtime.sleep(0)
                turns -= 1
        asked = self.runtime.now()
        give_up_at = None if wait is None else asked + wait
        got: Hands[Holding] = Hands()
        try:
            for key in keys:  # Those got so far are given back if the next one fails.
                if got:
                    asked = got[-1].since
                    attempt = attempt and attempt._replace(since=asked)
                one = Acquisition(self, key, terms, wait, give_up_at, caller, asked, attempt)
                got.append(await one.run(got))
            if len(got) > 1:  # The first may have been lost while we waited for the last.
                for holding in got:
                    holding.check(self.runtime.now())
        except Exception:
            with suppress(LeaseLost):  # Why not all were acquired says more.
                await self.release(got)
            raise
        except BaseException:
            self.abandon(got)
            raise
        return got

    async def attempt(
        self, keys: Sequence[str], terms: Terms, attempts: Attempts, caller: Caller | None = None
    ) -> Hands[Holding]:
        """Acquire all keys, or none, without waiting for any. Raises as ``acquire`` does."""
        since = self.runtime.now()
        for pause in attempts.pauses():
            with suppress(LockTimeout, EngineRecovering):
                return await self.acquire(keys, terms, 0, caller, Attempt(since, last=False))
            if caller:
                await caller.prepare_to_wait()
            seconds = pause * (0.5 + self.runtime.jitter() / 2)
            await self.pause(seconds, self.runtime.sleep, caller)
        try:
            return await self.acquire(keys, terms, 0, caller, Attempt(since, last=True))
        except LockTimeout as busy:
            raise LockTimeout(
                busy.key,
                wait=0,
                retry_after=busy.retry_after,
                attempts=attempts.count,
                holder=busy.holder,
            ) from None

    async def pause(
        self,
        seconds: float,
        wait: Callable[[float], Awaitable[object]],
        caller: Caller | None = None,
    ) -> None:
        """Wait before the engine is asked again: until ``wait`` returns something, or this is closed.

        It is done in parts, for a caller whose client may leave meanwhile.
        """
        while seconds > 0 and not self.over:
            part = min(LOOK, seconds)
            seconds -= part
            heard = await wait(part)
            if caller and caller.while_waiting:
                caller.while_waiting()
            if heard:
                return

    async def extend(self, holding: Holding, seconds: float) -> None:
        """Move the deadline out. Raises ``LeaseLost`` or ``EngineUnavailable``."""
        sent = self.runtime.now()
        holding.check(sent)
        ttl = holding.ttl_to_extend(seconds, sent)
        pulse = Pulse(holding.key, holding.owner, ttl)
        (reply,) = await self.store.refresh([pulse])
        if isinstance(reply, EngineUnavailable):
            raise reply
        holding.check(self.runtime.now())
        if isinstance(reply.answer, Held) and reply.answer.fence == holding.fence:
            holding.renewed(reply.answer, Anchor(reply.now, sent), pulse.ttl)
        elif holding.status is Status.HELD:
            holding.lose("taken")
        holding.check(self.runtime.now())

    async def insist(self, question: Callable[[], Awaitable[T]]) -> T:
        """Repeat a request that is harmless to repeat, until the engine answers.

        Raises ``EngineUnavailable`` if it has not answered for as long as an outage may last, or
        does not answer and this is closed.
        """
        pause, give_up_at = FIRST_PAUSE, self.runtime.now() + OUTAGE
        while True:
            try:
                return await question()
            except EngineUnavailable:
                if self.runtime.now() + pause >= give_up_at:
                    raise
            seconds = pause * (0.5 + self.runtime.jitter() / 2)
            await self.pause(seconds, self.runtime.sleep)
            if self.over:
                raise self.closed()
            pause = min(LONGEST_PAUSE, 2 * pause)

    async def release(self, holdings: Sequence[Holding | Unprotected]) -> None:
        """Release all leases, the last one first.

        Raises ``LeaseLost`` in the end if one of them had ended before. An engine that does not
        answer is not an error here, because the lease was valid until now: the keeper keeps trying,
        and the lease ends at its ttl.
        """
        pending = list(holdings)
        lost: Holding | None = None
        try:
            while pending:
                holding = pending[-1]
                if isinstance(holding, Holding) and holding.status is not Status.RELEASED:
                    self.keeper.drop_holding(holding)
                    ours = holding.let_go(self.runtime.now())
                    if ours or not holding.left_to_others:
                        ttl, void = holding.terms.ttl, holding.void
                        answer = await self.give_back(holding.key, holding.owner, ttl, void)
                        # A lease whose release took long may have ended meanwhile: it was valid
                        # until it was let go of.
                        in_time = self.runtime.now() < holding.deadline and not self.keeper.over
                        if ours and isinstance(answer, Gone) and in_time:
                            holding.refute_release()
                            ours = False
                        elif ours and self.observers.wants_leases:
                            holding.tell_release()
                    if not ours:
                        lost = lost or holding
                pending.pop()
        except BaseException:
            self.abandon(pending)
            raise
        if lost:
            raise lost.loss()

    def abandon(self, holdings: Sequence[Holding | Unprotected]) -> None:
        """Release all leases in the background, for a caller that cannot wait."""
        for holding in holdings:
            if isinstance(holding, Unprotected):
                continue
            self.keeper.drop_holding(holding)
            ours = holding.let_go(self.runtime.now())
            if not holding.left_to_others:
                self.owe(holding.key, holding.owner, holding.terms.ttl, holding.void)
            if ours:
                holding.tell_release()

    def leave(self, holding: Holding) -> None:
        """End a lease for its holder, while it lasts in the engine to its end, without renewal.

        One that is lost stays lost.
        """
        ours = holding.status is Status.HELD
        if ours:  # First: a keeper that is closed meanwhile gives back all that has a stake.
            self.keeper.stakes.pop(holding.owner, None)
        self.keeper.drop_holding(holding)
        if ours and holding.let_go(self.runtime.now()) and self.observers.wants_leases:
            holding.tell_release()

    async def give_back(self, key: str, owner: str, ttl: float, void: float) -> Answer | None:
        """Release whatever ``owner`` has; what cannot be released now becomes a debt."""
        if self.keeper.over:  # Asking the engine would open again what was closed.
            self.owe(key, owner, ttl, void)
            return None
        sent = self.runtime.now() if self.observers.wants_answers else None
        try:
            answer = (await self.store.release(key, owner, void=void)).answer
        except EngineUnavailable as failure:
            self.owe(key, owner, ttl, void)
            if sent is not None:
                tell_answer(self.observers, "release", sent, failed=True)
            return failure.answer if isinstance(failure, Unfinished) else None
        except BaseException:
            self.owe(key, owner, ttl, void)
            raise
        self.keeper.stakes.pop(owner, None)
        if sent is not None:
            tell_answer(self.observers, "release", sent, failed=False)
        return answer

    def owe(self, key: str, owner: str, ttl: float, void: float) -> None:
        now = self.runtime.now()
        self.keeper.owe(Debt(key, owner, void, now=now, until=now + max(ttl, PLACE)))

    def _waits_for_itself(self, keys: Sequence[str], limit: int) -> AlreadyHeld | None:
        """Return the error for a caller that would wait for its own release, or ``None``."""
        keeper = self.keeper
        for key in keys:
            mine = keeper.holdings.get(key)
            if mine and self._is_own(mine):
                inherited = mine.control is not self.runtime.control()
                return AlreadyHeld(unqualified(key), inherited=inherited)
            if keeper.together:
                limits = [
                    each.terms.limit for each in keeper.together_on(key) if self._is_own(each)
                ]
                if limits and len(limits) >= min(limit, *limits):
                    return AlreadyHeld(unqualified(key), upgrade=limit < min(limits))
        return None

    def _is_own(self, holding: Holding) -> bool:
        runtime = self.runtime
        return runtime.is_part_of(holding.control) and holding.held(runtime.now())

    def refuse_to_hold_up_others(self, key: str, owner: str, limit: int) -> None:
        """Raise ``AlreadyHeld`` if the caller, while it waits, would hold up what it waits for.

        That is a holder of the key, which could not release it, or a caller in front, which could not
        take its turn, or release it afterwards.
        """
        runtime, keeper = self.runtime, self.keeper
        # Also one of several slots: a caller that has another may wait for this one.
        for each in (keeper.holdings.get(key), *keeper.together_on(key)):
            stopped = each and runtime.holds_up(each.control) and each.held(runtime.now())
            if stopped or (each and self._is_own(each)):
                raise AlreadyHeld(unqualified(key))
        if not runtime.holds_up(runtime.control()):
            return  # Nor does it hold up anything else: most callers need not look.
        waits = [
            each.terms.limit
            for each in keeper.waiting_for(key)
            if each.owner != owner and runtime.holds_up(each.control)
        ]
        # Those that may hold the key together with the caller do not need each other's turn.
        if waits and len(waits) >= min(limit, *waits):
            raise AlreadyHeld(unqualified(key), waits=True)


class Acquisition:
    """One acquisition of one key, from the first request until it holds or has left no trace.

    While it waits, the keeper sends heartbeats for its place in the queue.
    """

    _anchor = Anchor(0.0, 0.0)
    _retry_after = 0.0
    _recovering = ""
    _pace: Pace | None = None
    _holder: str | None = None
    _others = 0
    _leaves_traces = False
    _in_doubt = False
    control: object = None
    """The flow of control that waits; ``None`` until it has a place in the queue."""

    def __init__(  # noqa: PLR0917 - each request calls it, and by position takes half the time
        self,
        locker: Locker,
        key: str,
        terms: Terms,
        wait: float | None,
        give_up_at: float | None,
        caller: Caller | None,
        asked: float,
        attempt: Attempt | None,
    ) -> None:
        self._runtime = runtime = locker.runtime
        self.owner = owner = runtime.new_owner()
        self._locker = locker
        self._observers = locker.observers
        self.key = key
        self._terms = terms
        self._wait = wait
        self._room = 0 if wait == 0 else terms.max_waiters
        self._give_up_at = give_up_at
        self._caller = caller
        self._asked = asked
        self._attempt = attempt
        label = f"{terms.label}{caller.about}"[:LONGEST_LABEL] if caller else terms.label
        ttl = terms.ttl if terms.max_hold is None else terms.first_ttl
        self._claim = Claim(owner, locker.store.process, ttl, label, terms.limit)
        self._bell = runtime.bell()

    @property
    def terms(self) -> Terms:
        """What the caller asked for."""
        return self._terms

    async def run(self, hands: Hands[Holding]) -> Holding:
        keeper = self._locker.keeper
        try:
            if not keeper.stake(hands, self.key, self.owner, self._terms.ttl):
                self._locker.refuse_unless_kept(self._terms)
            if self._observers.heeds_answers and self._locker.fails_as_one:
                self._refuse_if_it_is_down()
            self._locker.switchboard.bells[self.owner] = self._bell
            return await self._until_held()
        except (LockTimeout, EngineRecovering, AlreadyHeld) as failure:
            try:
                if self._leaves_traces:
                    await self._locker.give_back(*self._what_to_give_back())
                keeper.stakes.pop(self.owner, None)
            finally:
                self._tell_end(failure)
            raise
        except BaseException as failure:  # It was cancelled, or the engine would not answer at all.
            if self._leaves_traces:
                self._locker.owe(*self._what_to_give_back())
            keeper.stakes.pop(self.owner, None)
            self._tell_end(failure)
            raise
        finally:
            self._locker.switchboard.bells.pop(self.owner, None)
            if self._pace:  # Else it has never waited.
                keeper.drop(self)

    async def _until_held(self) -> Holding:
        locker = self._locker
        while True:
            if locker.is_closed or locker.keeper.over:
                raise locker.closed()
            answer, now = await self._ask()
            anchor = self._anchor
            # One after the other, which costs less than ``match``, and the first the most often.
            if isinstance(answer, Held):
                fence, until, confirmed = answer.fence, answer.until, True
                at_most = self._claim.ttl
            elif isinstance(answer, Waiting):
                message = await self._queue(answer, now)
                if isinstance(message, Ask) or not self._terms.renew:
                    continue
                fence, until, confirmed = message.fence, message.until, False
                anchor = self._anchor if message.since is None else Anchor.at(message.since)
                # However old the anchor is, no hand-over lasts for longer from now on.
                at_most = self._runtime.now() - anchor.local + min(self._claim.ttl, HANDOFF)
                if anchor.is_implausible(until, at_most=at_most, drift=self._terms.drift):
                    continue
            elif isinstance(answer, Busy):
                raise self._busy(answer, now)
            else:
                raise self._refused()
            holding = self._hold(fence, anchor, until, at_most, confirmed=confirmed)
            if holding:
                return holding
            # A blocked loop learns of its turn too late, but the keeper may have kept the lease.
            if confirmed and self._patience() <= 0:
                raise self._unavailable("it answered after the ttl had passed")

    async def _ask(self) -> Reply:
        """Ask for the key; repeat while the engine does not answer and there is time."""
        pause, failing_since = FIRST_PAUSE, None
        while True:
            self._leaves_traces = True
            sent = self._runtime.now()
            try:
                reply = await self._locker.store.acquire(self.key, self._claim, room=self._room)
            except EngineRecovering as failure:
                self._locker.health.recovers(failure)
                self._in_doubt, failing_since = True, None
                if pause >= self._patience():
                    raise
            except EngineUnavailable:
                self._in_doubt = True
                tell_answer(self._observers, "acquire", sent, failed=True)
                failing_since = sent if failing_since is None else failing_since
                new = self._pace is None and pause == FIRST_PAUSE
                if pause >= self._time_for_an_answer(sent, failing_since, new=new):
                    raise
            except BaseException:
                self._in_doubt = True
                raise
            else:
                self._anchor = Anchor(reply.now, sent)
                if self._observers.heeds_answers:
                    self._locker.health.answered("acquire", sent)
                return reply
            await self._prepare_to_wait()
            # Whatever the bell has to say, the engine says it again to the next question.
            seconds = pause * (0.5 + self._runtime.jitter() / 2)
            await self._locker.pause(seconds, self._bell.heard, self._caller)
            if self._locker.over:
                raise self._locker.closed()
            pause = min(LONGEST_PAUSE, 2 * pause)

    def _refuse_if_it_is_down(self) -> None:
        down_for = self._locker.health.spares(self._runtime.now())
        if down_for:
            raise self._unavailable(f"it has answered nobody for {down_for:.1f} s")

    def _busy(self, answer: Busy, now: float) -> LockTimeout | EngineRecovering:
        self._leaves_traces = self._in_doubt or answer.elsewhere
        self._retry_after, self._recovering = answer.until - now, answer.recovering
        self._holder, self._others = answer.holder or None, answer.others
        if self._is_repeated:
            self._refuse_to_hold_up_others()
        return self._timeout(answer.waiters if self._wait != 0 else None)

    def _time_for_an_answer(self, sent: float, failing_since: float, *, new: bool) -> float:
        """Return for how much longer to ask an engine that has not answered what was ``sent``."""
        known_for, now = self._locker.health.failed(sent), self._runtime.now()
        if new and known_for - (now - sent) >= DOWN:
            return 0.0
        # A section that runs in any case does not wait for an engine that others have found to be down.
        failing_for = max(now - failing_since, known_for if self._terms.fail_open else 0.0)
        # How long a lease lasts that is not renewed says how long the work takes, not an outage.
        longest = max(self._terms.ttl, OUTAGE) if self._terms.renew else OUTAGE
        return min(self._patience(), longest - failing_for)

    async def _queue(self, answer: Waiting, now: float) -> Grasp | Ask:
        """Wait in the queue until there is something to do."""
        turns = LEAVING if self._runtime.suspends else 0
        while True:
            try:
                self._refuse_to_hold_up_others()
            except AlreadyHeld:
                if not turns:
                    raise
            else:
                break
            await self._runtime.sleep(0)
            turns -= 1
        self._keep_place(answer, now)
        if self._locker.over:
            raise self._locker.closed()
        if answer.recovering:
            self._refuse_if_it_recovers_for_longer()
        await self._prepare_to_wait()
        return await self._turn()

    async def _turn(self) -> Grasp | Ask:
        while_waiting = self._caller.while_waiting if self._caller else None
        message = None
        while message is None:
            patience = self._patience()
            timeout = patience if while_waiting is None else min(LOOK, patience)
            message = await self._bell.heard(None if timeout == INFINITE else max(0.0, timeout))
            if message is None and timeout == patience:
                raise self._timeout()
            if message is None and while_waiting:
                while_waiting()
        while isinstance(message, Ask) and message.after:
            pause = max(0.0, min(message.after, self._patience()))
            message = await self._bell.heard(pause) or Ask()
        return message

    async def _prepare_to_wait(self) -> None:
        if self._caller:
            await self._caller.prepare_to_wait()

    def _refused(self) -> EngineUnavailable:
        if self._locker.over:  # To close gives back what is waited for.
            return self._locker.closed()
        return self._unavailable("it refused the claim")

    def _unavailable(self, reason: str) -> EngineUnavailable:
        return EngineUnavailable(self._locker.engine, reason)

    def _hold(
        self, fence: int, anchor: Anchor, until: float, at_most: float, *, confirmed: bool
    ) -> Holding | None:
        """Return the lease for its holder; ``None`` if the engine has to be asked whether it has it.

        A lease may have ended meanwhile. Of one that was handed over, half of that time may be gone:
        a process that notices so late might get no processor in time to confirm it in the background.
        """
        deadline = anchor.deadline(until, at_most=at_most, drift=self._terms.drift)
        now = self._runtime.now()
        least = 0.0 if confirmed else min(self._claim.ttl, HANDOFF) / 2
        if self._pace and self._patience() < -LATE:
            raise self._timeout()
        if now >= deadline - least:
            return None
        locker, caller = self._locker, self._caller
        if locker.is_closed or locker.keeper.over:
            raise locker.closed()
        holding = Holding(
            self.key,
            self.owner,
            fence,
            self._terms,
            deadline,
            confirmed,
            now,
            self._runtime.control() if caller is None else caller.control,
            self._void() if self._in_doubt else 0.0,
            self._claim,
            self._observers,
        )
        self._locker.keeper.keep_holding(holding)
        if self._locker.keeper.over:  # Since just before: then nobody keeps it.
            raise self._locker.closed()
        if self._pace:
            if len(locker.waits) >= MOST_WAITS:
                locker.waits.clear()
            locker.waits[self.key] = now - self._since()
        if self._observers.wants_leases:
            tell_acquired(holding, self._since(), handed_over=self._pace is not None)
        return holding

    @property
    def _is_repeated(self) -> bool:
        """Whether the caller pauses and asks again if the key is busy."""
        return self._attempt is not None and not self._attempt.last

    def _since(self) -> float:
        """Return when the caller first asked for the key, or got the one before it."""
        return self._attempt.since if self._attempt else self._asked

    def _tell_end(self, failure: BaseException) -> None:
        """Report that the caller did not get the key, and why."""
        if self._is_repeated and isinstance(failure, LockTimeout | EngineRecovering):
            return
        if isinstance(failure, AlreadyHeld):  # It has not waited: its code is to be mended.
            return
        observers, key, label, since = self._observers, self.key, self._claim.label, self._since()
        place = self._pace.place if self._pace else None
        if isinstance(failure, EngineUnavailable) and not self._locker.over:
            health = self._locker.health
            health.refused(failure, "acquire", key, label, since=since, place=place)
        elif isinstance(failure, LockTimeout):
            found = (self._holder, self._others)
            tell_busy(observers, failure, key, label, since=since, found=found)
        else:
            tell_gave_up(observers, key, label, since=since, place=place)

    def _patience(self) -> float:
        return INFINITE if self._give_up_at is None else self._give_up_at - self._runtime.now()

    def _refuse_if_it_recovers_for_longer(self) -> None:
        """Raise ``EngineRecovering`` if the recovery will outlast the wait."""
        failure = self._recovery()
        self._locker.health.recovers(failure)
        if failure.retry_after > self._patience():
            raise failure

    def _recovery(self) -> EngineRecovering:
        rest = max(0.0, self._retry_after)
        return EngineRecovering(self._locker.engine, self._recovering, retry_after=rest)

    def _timeout(self, waiters: int | None = None) -> LockTimeout | EngineRecovering:
        if self._recovering:
            failure = self._recovery()
            self._locker.health.recovers(failure)
            return failure
        rest, pace = self._retry_after, self._pace
        if self._terms.renew:  # The holder's lease, too, lasts for as long as its work does.
            rest = self._locker.waits.get(self.key, min(rest, UNKNOWN_WAIT))
        return LockTimeout(
            unqualified(self.key),
            wait=self._wait,
            retry_after=max(0.0, pace.until_its_turn(rest) if pace else rest),
            waiters=waiters,
            place=pace.place if pace else None,
            holder=self._holder,
        )

    def _void(self) -> float:
        return 2 * self._terms.ttl + LATEST if self._in_doubt else 0.0

    def _what_to_give_back(self) -> tuple[str, str, float, float]:
        return self.key, self.owner, self._terms.ttl, self._void()

    # What the keeper asks of everything that it keeps.

    due = 0.0
    slack = 0.25
    over = False

    def wake(self, locker: object) -> None:
        if self._locker is locker:
            self._bell.ring(Ask())

    def close(self) -> float:
        self._leaves_traces, self._in_doubt = False, True  # A request may be under way.
        self._bell.ring(Ask())
        return self._void()

    def pulse(self, now: float) -> Pulse | None:
        """Return the heartbeat of a caller that can still take its turn.

        A caller whose event loop is closed gives back what it has. The keeper does not do that for one
        whose wait is over, because its task or thread may be blocked and then continue at this very
        moment: without heartbeats, its place or its unconfirmed lease ends by itself.
        """
        if self._bell.deaf:
            self.over = self._in_doubt = True  # A request may be under way.
            self._locker.switchboard.bells.pop(self.owner, None)
            self._locker.owe(*self._what_to_give_back())
        elif self._give_up_at is not None and now > self._give_up_at + LATE:
            self.over = True
        return None if self.over else Pulse(self.key, self.owner, self._terms.first_ttl, waits=True)

    def heard(self, reply: Reply | EngineUnavailable, sent: float, now: float) -> None:
        """Process the answer to a heartbeat: still waiting, or a reason to ring the bell."""
        self.due = now + BEAT
        if isinstance(reply, EngineUnavailable):
            self._bell.ring(Ask())
            return
        self._anchor = Anchor(reply.now, sent)
        match reply.answer:
            case Waiting():
                self._plan_heartbeat(reply.answer, reply.now)
            case Held(fence, until):
                self._bell.ring(Grasp(fence, until))
            case _:
                self._bell.ring(Ask())

    def _refuse_to_hold_up_others(self) -> None:
        self._locker.refuse_to_hold_up_others(self.key, self.owner, self._terms.limit)

    def _keep_place(self, waiting: Waiting, now: float) -> None:
        self._plan_heartbeat(waiting, now)
        caller = self._caller
        self.control = self._runtime.control() if caller is None else caller.control
        self._locker.keeper.keep(self)

    def _plan_heartbeat(self, waiting: Waiting, now: float) -> None:
        """Plan the next heartbeat: the first waiter asks when the lease should end."""
        self._retry_after, self._recovering = waiting.until - now, waiting.recovering
        self._holder, self._others = waiting.holder or None, waiting.others
        if self._pace is None:
            self._pace = Pace()
            tell_waiting(
                self._observers,
                self.key,
                self._claim.label,
                place=waiting.position,
                holder=self._holder,
                others=self._others,
            )
        self._pace.saw(waiting.position, self._runtime.now())
        pause = BEAT * (0.75 + self._runtime.jitter() / 4)
        if waiting.position == 0:
            pause = min(pause, max(0.0, waiting.until - now) + GRACE)
        self.due = self._runtime.now() + pause
