"""Acquire, extend and release keys.

Acquiring a key takes these steps:

1. The caller sends one request to the engine. If the key is free, the answer is a lease.
2. If the key is held, the same request has put the caller at the end of the queue. There is no
   second request, so a newcomer cannot overtake a caller that is about to join.
3. The caller waits for a notification. When the key becomes free, the engine gives the lease to the
   first waiter in the queue, and notifies the process of that waiter. No other waiter wakes up.
4. The lease of a waiter is short at first (``HANDOFF``). The keeper confirms it with its next
   heartbeat, and from then on it lasts for its full ttl. If the process of the waiter has died, the
   lease ends soon, and the next waiter gets the key.

What can fail:

- *A notification is lost.* The keeper sends heartbeats for each waiter (``keeping``), and wakes it up
  if its state has changed.
- *The caller is cancelled, or times out.* It must leave neither a lease nor a place in the queue. If
  the caller cannot clean up itself, the release becomes a ``PendingRelease``: the keeper retries it in the
  background until the engine answers, or until the lease and the place have expired.
- *The engine does not answer.* The request may have been lost, or may still take effect later. The
  acquisition is then *in doubt*. Its release tells the engine to reject any request of the same
  owner that arrives late (``void``).
- *A signal interrupts the caller between two lines.* Before the engine is asked, the keeper takes note
  of the acquisition, with a weak reference to the caller's leases (``keeping``).

``Locker`` is the interface for callers. ``Acquisition`` is one attempt to get one key.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple, TypeVar

from ..errors import (
    AlreadyHeld,
    ConfigurationError,
    EngineRecovering,
    EngineUnavailable,
    LeaseLost,
    LockTimeout,
)
from ..events import Acquired, Answered, Released
from ..keys import unqualified
from .holding import Anchor, Holding, Holdings, Status, Terms, Unprotected
from .keeping import LATE, LATEST, Keeper, Waiter
from .ports import CheckAgain, Message, Pulse, Runtime, Store, Switchboard, Unfinished
from .reporting import DOWN, OUTAGE, Health, Observers
from .table import HANDOFF, Answer, Busy, Claim, Gone, Held, Waiting

T = TypeVar("T")

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

DAY: Final = 86400.0
INFINITE: Final = float("inf")


@dataclass(frozen=True, slots=True)
class Attempts:
    """A ``wait`` that asks a few times, with a growing backoff, instead of joining the queue.

    Each pause is twice as long as the one before, and a random half of it is left out, so that
    callers that came at the same moment do not come back at the same moment. Waiters in the queue
    get the key first.

    Attributes:
        count: How often to ask, at most.
        pause: The first pause, in seconds.
        longest: The longest pause, in seconds; a day at most.

    Raises:
        ConfigurationError: A value cannot work.
    """

    count: int
    pause: float = 0.1
    longest: float = 2.0

    def __post_init__(self) -> None:
        if type(self.count) is not int or self.count < 1:
            raise ConfigurationError(
                f"Attempts(count={self.count!r:.80}) must be an integer of 1 or more"
            )
        numbers = all(type(each) in (int, float) for each in (self.pause, self.longest))
        if not numbers or not 0 < self.pause <= self.longest <= DAY:
            raise ConfigurationError(
                f"Attempts(pause={self.pause!r:.80}, longest={self.longest!r:.80}) must be seconds:"
                f" pause is more than 0 and at most longest, which is at most {DAY:g}"
            )

    def pauses(self) -> Iterator[float]:
        pause = self.pause
        for _ in range(self.count - 1):
            yield pause
            pause = min(self.longest, 2 * pause)


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
        return self.is_closed or self.keeper.is_closed

    def closed_error(self) -> EngineUnavailable:
        return EngineUnavailable(self.engine, "it was closed")

    def refuse_unless_kept(self, terms: Terms) -> None:
        """Raise ``EngineUnavailable`` if nothing would renew a lease: it could end within its section."""
        if self.over:
            raise self.closed_error()
        if terms.renew:
            reason = "no thread can be started to renew the lease"
            raise EngineUnavailable(self.engine, reason)

    def close(self) -> None:
        """End the waits of its callers. Other lockers on the same engine are not affected."""
        self.is_closed = True  # First: a caller that begins to wait now looks at it afterwards.
        self.keeper.wake(self)

    async def acquire(
        self,
        keys: Sequence[str],
        terms: Terms,
        wait: float | None,
        caller: Caller | None = None,
        attempt: Attempt | None = None,
    ) -> Holdings[Holding]:
        """Acquire all keys in this order, or none.

        Every caller passes keys in the same order, so that no two can wait for each other. Raises
        ``LockTimeout``, ``EngineUnavailable`` or ``AlreadyHeld``.
        """
        keeper = self.keeper
        is_held_here = keeper.has_shared or not keeper.holdings.keys().isdisjoint(keys)
        if is_held_here and (wait != 0 or attempt):
            await self.refuse(partial(self._waits_for_itself, keys, terms.limit))
        asked = self.runtime.now()
        give_up_at = None if wait is None else asked + wait
        got: Holdings[Holding] = Holdings()
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
        except BaseException as failure:
            await self.undo(got, failure)
            raise
        return got

    async def undo(self, got: Sequence[Holding], failure: BaseException) -> None:
        """Release what a caller got that did not get all; in the background if it was cancelled."""
        if isinstance(failure, Exception):
            with suppress(LeaseLost):  # Why not all were acquired says more.
                await self.release(got)
        else:
            self.release_later(got)

    async def attempt(
        self, keys: Sequence[str], terms: Terms, attempts: Attempts, caller: Caller | None = None
    ) -> Holdings[Holding]:
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
                raise self.closed_error()
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
                    if ours or not holding.released_elsewhere:
                        ttl, void = holding.terms.ttl, holding.void
                        answer = await self.give_back(holding.key, holding.owner, ttl, void)
                        # A lease whose release took long may have ended meanwhile: it was valid
                        # until it was let go of.
                        if (
                            ours
                            and isinstance(answer, Gone)
                            and self.runtime.now() < holding.deadline
                            and not self.keeper.is_closed
                        ):
                            holding.refute_release()
                            ours = False
                        elif ours and Released in self.observers.wanted:
                            holding.tell(Released, held_for=holding.held_for())
                    if not ours:
                        lost = lost or holding
                pending.pop()
        except BaseException:
            self.release_later(pending)
            raise
        if lost:
            raise lost.loss()

    def release_later(self, holdings: Sequence[Holding | Unprotected]) -> None:
        for holding in holdings:
            if isinstance(holding, Unprotected):
                continue
            self.keeper.drop_holding(holding)
            ours = holding.let_go(self.runtime.now())
            if not holding.released_elsewhere:
                self.keeper.release_later(
                    holding.key, holding.owner, holding.terms.ttl, holding.void
                )
            if ours:
                holding.tell(Released, held_for=holding.held_for())

    def leave(self, holding: Holding) -> None:
        """End a lease for its holder, while it lasts in the engine to its end, without renewal.

        One that is lost stays lost.
        """
        ours = holding.status is Status.HELD
        if ours:  # First: a keeper that is closed meanwhile gives back all that has a watch.
            self.keeper.watches.pop(holding.owner, None)
        self.keeper.drop_holding(holding)
        if ours and holding.let_go(self.runtime.now()):
            holding.tell(Released, held_for=holding.held_for())

    async def give_back(self, key: str, owner: str, ttl: float, void: float) -> Answer | None:
        """Release whatever ``owner`` has; what cannot be released now becomes a pending release."""
        if self.keeper.is_closed:  # Asking the engine would open again what was closed.
            self.keeper.release_later(key, owner, ttl, void)
            return None
        sent = self.runtime.now() if Answered in self.observers.wanted else None
        try:
            answer = (await self.store.release(key, owner, void=void)).answer
        except EngineUnavailable as failure:
            self.keeper.release_later(key, owner, ttl, void)
            if sent is not None:
                self.observers.tell_answer("release", sent, failed=True)
            return failure.answer if isinstance(failure, Unfinished) else None
        except BaseException:
            self.keeper.release_later(key, owner, ttl, void)
            raise
        self.keeper.watches.pop(owner, None)
        if sent is not None:
            self.observers.tell_answer("release", sent, failed=False)
        return answer

    async def refuse(self, find: Callable[[], AlreadyHeld | None]) -> None:
        """Raise the error that ``find`` returns, unless it returns ``None`` within ``LEAVING`` turns."""
        for _ in range(LEAVING if self.runtime.suspends else 0):
            if find() is None:
                return
            await self.runtime.sleep(0)
        if refusal := find():
            raise refusal

    def _waits_for_itself(self, keys: Sequence[str], limit: int) -> AlreadyHeld | None:
        keeper = self.keeper
        for key in keys:
            mine = keeper.holdings.get(key)
            if mine and self._is_own(mine):
                inherited = mine.control is not self.runtime.control()
                return AlreadyHeld(unqualified(key), inherited=inherited)
            if keeper.has_shared:
                limits = [each.terms.limit for each in keeper.shared_on(key) if self._is_own(each)]
                if limits and len(limits) >= min(limit, *limits):
                    return AlreadyHeld(unqualified(key), upgrade=limit < min(limits))
        return None

    def _is_own(self, holding: Holding) -> bool:
        runtime = self.runtime
        return runtime.is_part_of(holding.control) and holding.held(runtime.now())

    def would_hold_up_others(self, key: str, owner: str, limit: int) -> AlreadyHeld | None:
        """Return an error if the caller, while it waits, would hold up what it waits for.

        That is a holder of the key, which could not release it, or a caller in front, which could not
        take its turn, or release it afterwards.
        """
        runtime, keeper = self.runtime, self.keeper
        # Also one of several slots: a caller that has another may wait for this one.
        for each in (keeper.holdings.get(key), *keeper.shared_on(key)):
            stopped = each and runtime.holds_up(each.control) and each.held(runtime.now())
            if stopped or (each and self._is_own(each)):
                return AlreadyHeld(unqualified(key))
        if not runtime.holds_up(runtime.control()):
            return None  # Nor does it hold up anything else: most callers need not look.
        waits = [
            each.terms.limit
            for each in keeper.waiting_for(key)
            if each.owner != owner and runtime.holds_up(each.control)
        ]
        # Those that may hold the key together with the caller do not need each other's turn.
        held_up = waits and len(waits) >= min(limit, *waits)
        return AlreadyHeld(unqualified(key), waits=True) if held_up else None


class Acquisition:
    """One acquisition of one key, from the first request until it holds or has left no trace."""

    _leaves_traces = False
    """Whether the engine may have a lease or a place of this owner."""
    _in_doubt = False
    """Whether a request may still take effect."""
    _place: Waiter | None = None
    """What the keeper keeps, once the caller waits."""
    _busy: Busy | None = None
    """The answer that the caller was not let into the queue."""
    _pause = FIRST_PAUSE
    """How long to pause after the next failure of the engine."""
    _failing_since: float | None = None
    """When the first request was sent of those that have failed in a row."""

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
        self._since = attempt.since if attempt else asked
        """When the caller first asked for the key, or got the one before it."""
        self._is_repeated = attempt is not None and not attempt.last
        """Whether the caller pauses and asks again if the key is busy."""
        label = f"{terms.label}{caller.about}"[:LONGEST_LABEL] if caller else terms.label
        ttl = terms.ttl if terms.max_hold is None else terms.first_ttl
        self._claim = Claim(owner, locker.store.process, ttl, label, terms.limit)
        self._mailbox = runtime.mailbox()

    async def run(self, holdings: Holdings[Holding]) -> Holding:
        locker, keeper, terms = self._locker, self._locker.keeper, self._terms
        runtime, health = self._runtime, locker.health
        try:
            if not keeper.watch(holdings, self.key, self.owner, terms.ttl):
                locker.refuse_unless_kept(terms)
            locker.switchboard.mailboxes[self.owner] = self._mailbox
            may_be_down = health.failed_at is not None and locker.fails_as_one
            if may_be_down and (down_for := health.spares(runtime.now())):
                raise self._unavailable(f"it has answered no caller for {down_for:.1f} s")
            while True:
                if locker.is_closed or keeper.is_closed:
                    raise locker.closed_error()
                self._leaves_traces = True
                sent = runtime.now()
                try:
                    reply = await locker.store.acquire(self.key, self._claim, room=self._room)
                except BaseException as failure:
                    self._in_doubt = True
                    # Raised here: a frame that raises what it was given keeps all frames below alive.
                    if not isinstance(failure, EngineUnavailable):
                        raise
                    if not await self._endure(failure, sent):
                        raise
                    continue
                self._pause, self._failing_since = FIRST_PAUSE, None
                if health.failed_at is not None or Answered in self._observers.wanted:
                    health.answered("acquire", sent)
                answer, anchor = reply.answer, Anchor(reply.now, sent)
                # One after the other, which costs less than ``match``, and the first the most often.
                if isinstance(answer, Held):
                    until, at_most = answer.until, self._claim.ttl
                    holding = self._hold(answer.fence, anchor, until, at_most, confirmed=True)
                elif isinstance(answer, Waiting):
                    holding = await self._turn(answer, anchor)
                else:
                    raise self._refusal(answer, reply.now)
                if holding:
                    locker.switchboard.mailboxes.pop(self.owner, None)
                    return holding
        except BaseException as failure:
            await self._give_up(failure)
            raise

    async def _give_up(self, failure: BaseException) -> None:
        """Leave no trace in the engine, and report why."""
        locker, ttl = self._locker, self._terms.ttl
        # Other failures mean that it was cancelled, or that the engine would not answer at all.
        answered = isinstance(failure, LockTimeout | EngineRecovering | AlreadyHeld)
        # Before the watch goes, which would do it if an interrupt came before.
        locker.switchboard.mailboxes.pop(self.owner, None)
        if self._place:
            locker.keeper.drop(self._place)
        try:
            if self._leaves_traces and not (self._place and self._place.was_given_back):
                if answered:
                    await locker.give_back(self.key, self.owner, ttl, self._void())
                else:
                    locker.keeper.release_later(self.key, self.owner, ttl, self._void())
            locker.keeper.watches.pop(self.owner, None)
        finally:
            # A caller that asks again tells nothing yet. One with ``AlreadyHeld`` has not waited: its
            # code has to be mended.
            told_later = isinstance(failure, LockTimeout | EngineRecovering) and self._is_repeated
            if not told_later and not isinstance(failure, AlreadyHeld):
                place = self._place
                answer = self._busy or (place and place.waiting)
                locker.health.not_acquired(
                    failure,
                    self.key,
                    self._claim.label,
                    since=self._since,
                    place=place.waiting.position if place else None,
                    others=answer.others if answer else 0,
                    closed=locker.over,
                )

    async def _endure(self, failure: EngineUnavailable, sent: float) -> bool:
        """Pause after a request of ``sent`` that has failed. Return whether there was time for that."""
        locker, terms, pause, longest = self._locker, self._terms, self._pause, INFINITE
        if isinstance(failure, EngineRecovering):
            locker.health.recovers(failure)
            self._failing_since = None
        else:
            self._observers.tell_answer("acquire", sent, failed=True)
            self._failing_since = sent if self._failing_since is None else self._failing_since
            known_for, now = locker.health.failed(sent), self._runtime.now()
            down_when_asked = known_for - (now - sent) >= DOWN
            if down_when_asked and not self._place and pause == FIRST_PAUSE:
                return False  # A new caller asks an engine once that was known to be down.
            # A section that runs in any case does not wait for an engine that is known to be down.
            failing_for = max(now - self._failing_since, known_for if terms.fail_open else 0.0)
            # The ttl of a lease that is not renewed is the time of its work, not of an outage.
            longest = (max(terms.ttl, OUTAGE) if terms.renew else OUTAGE) - failing_for
        if pause >= min(self._patience(), longest):
            return False
        if self._caller:
            await self._caller.prepare_to_wait()
        # Any message of the mailbox is repeated by the answer to the next question.
        seconds = pause * (0.5 + self._runtime.jitter() / 2)
        await locker.pause(seconds, self._mailbox.heard, self._caller)
        self._pause = min(LONGEST_PAUSE, 2 * pause)
        return True

    async def _queue(self, waiting: Waiting, anchor: Anchor) -> Waiter:
        """Have the keeper keep the caller's place in the queue."""
        locker, caller, place = self._locker, self._caller, self._place
        if self._would_hold_up_others():
            await locker.refuse(self._would_hold_up_others)
        if place is None:
            place = Waiter(
                self.key,
                self._claim,
                self._terms,
                runtime=self._runtime,
                mailbox=self._mailbox,
                locker=locker,
                control=self._runtime.control() if caller is None else caller.control,
                give_up_at=self._give_up_at,
            )
        place.waits(waiting, anchor)
        if self._place is None:
            self._place = place
            locker.health.waits(self.key, self._claim.label, waiting)
        locker.keeper.keep(place)
        if locker.over:
            raise locker.closed_error()
        if waiting.recovering:
            recovery = self._recovery(waiting, place.rest)
            if recovery.retry_after > self._patience():
                raise recovery
        if caller:
            await caller.prepare_to_wait()
        return place

    async def _turn(self, waiting: Waiting, anchor: Anchor) -> Holding | None:
        """Wait in the queue for the lease; return ``None`` if the engine has to be asked for it."""
        place = await self._queue(waiting, anchor)
        while_waiting = self._caller.while_waiting if self._caller else None
        message: Message | None = None
        while message is None:
            patience = self._patience()
            timeout = patience if while_waiting is None else min(LOOK, patience)
            message = await self._mailbox.heard(None if timeout == INFINITE else max(0.0, timeout))
            if message is None and timeout == patience:
                raise self._timeout(place.waiting, place.rest)
            if message is None and while_waiting:
                while_waiting()
        while isinstance(message, CheckAgain) and message.after:
            pause = max(0.0, min(message.after, self._patience()))
            message = await self._mailbox.heard(pause) or CheckAgain()
        if isinstance(message, CheckAgain) or not self._terms.renew:
            return None
        anchor = place.anchor if message.since is None else Anchor.at(message.since)
        # However old the anchor is, no hand-over lasts for longer from now on.
        at_most = self._runtime.now() - anchor.local + min(self._claim.ttl, HANDOFF)
        if anchor.is_implausible(message.until, at_most=at_most, drift=self._terms.drift):
            return None
        return self._hold(message.fence, anchor, message.until, at_most, confirmed=False)

    def _hold(
        self, fence: int, anchor: Anchor, until: float, at_most: float, *, confirmed: bool
    ) -> Holding | None:
        """Return the lease for its holder; ``None`` if the engine has to be asked whether it has it.

        That is if it has ended by now, or if it was handed over and half of its time is gone: the keeper
        might confirm it too late.
        """
        deadline = anchor.deadline(until, at_most=at_most, drift=self._terms.drift)
        now = self._runtime.now()
        least = 0.0 if confirmed else min(self._claim.ttl, HANDOFF) / 2
        if self._place and self._patience() < -LATE:
            raise self._timeout(self._place.waiting, self._place.rest)
        if now >= deadline - least:
            # A blocked loop learns of its turn too late, but the keeper may have kept the lease.
            if confirmed and self._patience() <= 0:
                raise self._unavailable("it answered after the ttl had passed")
            return None
        locker, caller = self._locker, self._caller
        if locker.is_closed or locker.keeper.is_closed:
            raise locker.closed_error()
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
            self._claim.label,
            self._observers,
        )
        locker.keeper.keep_holding(holding)
        if locker.keeper.is_closed:  # Since just before: then nobody keeps it.
            raise locker.closed_error()
        if self._place:
            if len(locker.waits) >= MOST_WAITS:
                locker.waits.clear()
            locker.waits[self.key] = now - self._since
        if Acquired in self._observers.wanted:
            handed_over = self._place is not None
            holding.tell(Acquired, waited=now - self._since, handed_over=handed_over)
        return holding

    def _patience(self) -> float:
        give_up_at = self._place.give_up_at if self._place else self._give_up_at
        return INFINITE if give_up_at is None else give_up_at - self._runtime.now()

    def _void(self) -> float:
        return 2 * self._terms.ttl + LATEST if self._in_doubt else 0.0

    def _would_hold_up_others(self) -> AlreadyHeld | None:
        return self._locker.would_hold_up_others(self.key, self.owner, self._terms.limit)

    def _unavailable(self, reason: str) -> EngineUnavailable:
        return EngineUnavailable(self._locker.engine, reason)

    def _refusal(self, answer: Answer, now: float) -> Exception:
        """Return the error for an answer of ``now`` that is neither a lease nor a place."""
        locker = self._locker
        if not isinstance(answer, Busy):
            if locker.over:  # To close gives back what is waited for.
                return locker.closed_error()
            return self._unavailable("it rejected the request")
        self._busy, self._leaves_traces = answer, self._in_doubt or answer.elsewhere
        if self._is_repeated and (refusal := self._would_hold_up_others()):
            return refusal
        waiters = answer.waiters if self._wait != 0 else None
        return self._timeout(answer, answer.until - now, waiters)

    def _recovery(self, answer: Busy | Waiting, rest: float) -> EngineRecovering:
        engine, rest = self._locker.engine, max(0.0, rest)
        failure = EngineRecovering(engine, answer.recovering, retry_after=rest)
        self._locker.health.recovers(failure)
        return failure

    def _timeout(
        self, answer: Busy | Waiting, rest: float, waiters: int | None = None
    ) -> LockTimeout | EngineRecovering:
        if answer.recovering:
            return self._recovery(answer, rest)
        place = self._place
        if self._terms.renew:  # The holder's lease, too, lasts for as long as its work does.
            rest = self._locker.waits.get(self.key, min(rest, UNKNOWN_WAIT))
        return LockTimeout(
            unqualified(self.key),
            wait=self._wait,
            retry_after=max(0.0, place.until_its_turn(rest) if place else rest),
            waiters=waiters,
            place=place.waiting.position if place else None,
            holder=answer.holder or None,
        )
