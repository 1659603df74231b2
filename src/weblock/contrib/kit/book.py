"""The leases of one request: the book that every adapter keeps.

A rule, a decorator and several dependencies may lock for the same request, and the same keys too. A key
that the request holds already is not acquired again, and everything is released together, when the
request's work is done.

It is written once, as coroutines, as the core is. An adapter that serves requests in threads drives
them: on the blocking face they never suspend.
"""

from __future__ import annotations

import asyncio
import math
import re
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from contextvars import copy_context
from itertools import groupby
from typing import Any, Final, Generic, Self, TypeVar
from urllib.parse import quote
from weakref import ref

from ..._adapting import Acquired, acquire, holdings_of, joined, kind_of, place_of, terms_of
from ..._core.acquiring import Caller
from ..._core.holding import Status
from ..._face import BaseLease, Face
from ..._options import HoldOptions
from ..._platform.forks import enter_child, getpid, process
from ..._platform.logs import logger
from ..._runtime.clock import Flow, part_of
from ..._runtime.internals import running_loop
from ...errors import AlreadyHeld, ConfigurationError, LeaseLost
from ...keys import CheckedKey, unqualified
from .output import check_done
from .problems import ClientGone
from .spec import LockSpec

L = TypeVar("L", bound=BaseLease)
T = TypeVar("T")
B = TypeVar("B", bound="RequestLeases[Any]")
S = TypeVar("S", bound=LockSpec)

BeforeWaiting = Callable[[], Awaitable[object]]

LONGEST_LABEL: Final = 200
"""The longest label in characters: an engine keeps it for each waiter."""


_PLAIN: Final = re.compile(r"[A-Za-z0-9_.~/-]*").fullmatch
"""Matches what ``quote`` leaves as it is."""


class RequestLeases(Generic[L]):
    """What one request holds, from its first key until everything is released."""

    over = False
    """Whether the request has ended: it acquires nothing any more."""
    waited: float | None = None
    """Seconds that it has waited for keys; ``None`` if it has asked for none."""
    while_waiting: Callable[[], object] | None = None
    """Called now and then while the request waits in a thread; what it raises ends the wait."""
    beside_others = False
    """Whether several may run at once within the same: none of them holds what another has acquired."""
    of_rules = False
    """Whether a middleware keeps it for its rules, rather than the application for its own locks."""

    def __init__(self, method: str, path: str, within: Self | None = None) -> None:
        """``within`` is what this is a part of: its keys are not acquired again, nor released here."""
        self.within: Final = within
        self.leases: list[L] = []
        """Those that are released here, in the order in which they were acquired."""
        self._acquired: Final[list[Acquired]] = []
        """What releases them."""
        around: dict[tuple[object, str], L] = within._by_key if within else {}  # noqa: SLF001 - of the same class
        # Else the same object: each must know which keys the other holds.
        self._by_key: Final[dict[tuple[object, str], L]] = (
            around.copy() if self.beside_others else around
        )
        self.database: Final[dict[Any, bool]] = within.database if within else {}
        """Weak references to the sessions that this, and what is around it, has used: see ``sessions``.

        Each with whether it was first used on an event loop.
        """
        self._method = method
        self._path = path
        self.flow: Final = Flow()
        """What ``part_of`` is for all that runs for the request.

        None of it can wait for what the request holds: that would be to wait for itself.
        """
        loop = running_loop()
        self.flow.loop = ref(loop) if loop else None
        self.flow.within = within.flow if within else None
        self.flow.book = ref(self)

    async def take(
        self,
        locks: Face,
        keys: Sequence[CheckedKey],
        options: HoldOptions,
        before_waiting: BeforeWaiting | None = None,
    ) -> L:
        """Return a lease of just these keys, which ``in_order`` gave.

        Those that the request holds are not acquired again; those that it has released, or handed
        over, are. Raises what ``Locks.acquire`` raises, ``LeaseLost`` for a lease that was lost
        meanwhile, and ``ConfigurationError`` when the request has ended, for nobody would release.
        """
        if self.over:
            raise self._has_ended()
        missing = self.missing(locks, keys) if self._by_key else keys
        if missing:
            label = ""
            if "label" not in options:
                path = self._path  # Most have nothing to encode, and that is seen much faster.
                if not _PLAIN(path):
                    path = quote(path, errors="replace")
                label = f"{locks.label} {self._method} {path}"[:LONGEST_LABEL]
            caller = Caller(label, self.flow, before_waiting, self.while_waiting)
            began = time.perf_counter()
            try:
                acquired = await acquire(locks, missing, options, caller)
            finally:  # Also without success: the response says how long it took.
                self.waited = (self.waited or 0.0) + time.perf_counter() - began
            if self.over:  # It has ended while it waited.
                locker, holdings = acquired  # type: ignore[unreachable]
                await locker.release(holdings)
                raise self._has_ended()
            lease = self.new_lease(locks, acquired)
            self._acquired.append(acquired)
            self.leases.append(lease)
            place = place_of(locks)
            for key in missing:
                self._by_key[place, key] = lease
            if len(missing) == len(keys):
                return lease
        self.refuse_upgrades(locks, keys, options)
        lease = self.lease_of(locks, keys)
        lease.check()
        return lease

    def missing(self, locks: Face, keys: Sequence[CheckedKey]) -> Sequence[CheckedKey]:
        """Return those of the keys that the request does not hold yet."""
        return [key for key in keys if not self.holds(locks, key)]

    def holds(self, locks: Face, key: str) -> bool:
        """Return whether the request holds a key, by locks of either face, and has not released it."""
        lease = self._by_key.get((place_of(locks), key))
        return lease is not None and not any(
            each.status is Status.RELEASED and unqualified(each.key) == key
            for each in holdings_of(lease)
        )

    def refuse_upgrades(
        self, locks: Face, keys: Sequence[CheckedKey], options: HoldOptions
    ) -> None:
        """Raise ``AlreadyHeld`` if more may hold a key with this request than it asks for now."""
        limit = terms_of(locks, options).limit
        for key in keys:
            held = self._by_key[place_of(locks), key]
            if held.limit > limit:
                raise AlreadyHeld(key, upgrade=True)

    def in_turn(
        self, wanted: Iterable[tuple[S, Face, Sequence[CheckedKey]]]
    ) -> Iterator[tuple[S, Face, list[CheckedKey]]]:
        """Return what is still to be acquired of several specs, each with its locks and its keys.

        All keys are acquired in one order, whatever spec each is of: requests that want the same keys by
        several specs would otherwise wait for one another. Raises ``AlreadyHeld`` as ``refuse_upgrades``.
        """
        missing: dict[tuple[str, str, CheckedKey, int], tuple[S, Face, int]] = {}
        for spec, locks, keys in wanted:
            limit = terms_of(locks, spec.options).limit
            for key in keys:
                if self.holds(locks, key):
                    self.refuse_upgrades(locks, [key], spec.options)
                    continue
                # The engine last: its number differs in each process.
                place = locks.engine, locks.namespace, key, id(place_of(locks).engine)
                other = missing.get(place)
                if other is None or limit < other[2]:  # The spec that lets fewer in.
                    missing[place] = spec, locks, limit
        for (spec, locks, _), group in groupby(sorted(missing), key=missing.__getitem__):
            yield spec, locks, [place[2] for place in group]

    def lease_of(self, locks: Face, keys: Sequence[str]) -> L:
        """Return the lease of just these keys, all of which the request holds, for users of ``locks``."""
        place = place_of(locks)
        leases = [self._by_key[place, key] for key in keys]
        first = leases[0]
        if type(first) is self.kind_of_lease(locks) and first.keys == tuple(keys):
            return first
        return self.new_lease(locks, joined(locks, leases, keys))

    def kind_of_lease(self, locks: Face) -> type[BaseLease]:
        """Return the class of the leases that users of ``locks`` have."""
        return kind_of(locks)

    def new_lease(self, locks: Face, acquired: Acquired) -> L:
        """Return what was acquired as a lease for users of ``locks``."""
        return kind_of(locks)(*acquired)  # type: ignore[return-value] # Of this kind of locks.

    def unended(self) -> Self:
        """Return this, or what is around it and has not ended; the outermost if all have ended."""
        found = self
        while found.over and found.within:
            found = found.within
        return found

    def of_application(self) -> Self:
        """Return where the application acquires, whose own locks may be others than those of a rule."""
        innermost = found = self.unended()
        while found.of_rules and found.within:
            found = found.within
        return innermost if found.of_rules else found

    @property
    def holds_any(self) -> bool:
        """Whether the request holds anything, here, around this or in a part of it."""
        return bool(self._by_key)

    def check(self) -> None:
        """Raise ``LeaseLost`` if any lease of the request has ended: what is to commit must not."""
        for lease in tuple(self._by_key.values()):  # Another thread may acquire meanwhile.
            lease.check()

    def check_done(self) -> None:
        """Raise ``LeaseLost`` if the request must not report success: see ``check_done``."""
        check_done(self.leases)

    async def release(self) -> LeaseLost | None:
        """Release everything, the last first. Return the loss, if a lease was lost before."""
        if getpid() != process.pid:
            enter_child()
        self.over = True
        if self.within:  # What is around this holds these no more, before another can have them.
            self._forget()
        loss: LeaseLost | None = None
        for locker, holdings in reversed(self._acquired):
            try:
                await locker.release(holdings)
            except LeaseLost as error:
                loss = error
            except Exception:  # The others are to be released all the same.
                keys = [unqualified(each.key) for each in holdings]
                logger.exception("the lease of %s was not released", keys)
        self._acquired.clear()
        self.leases.clear()
        if not self.within:
            self._by_key.clear()
        return loss

    def _forget(self) -> None:
        for place_and_key, lease in tuple(self._by_key.items()):
            if any(lease is mine for mine in self.leases):
                del self._by_key[place_and_key]

    def _has_ended(self) -> ConfigurationError:
        return ConfigurationError(
            "this request has ended: what outlives it holds its locks by itself, with hold() of the"
            " locks themselves"
        )


def going_on(found: object, kind: type[B]) -> B | None:
    """Return the innermost book that has not ended, beginning with what a request was found to have.

    Return ``None`` if all have ended, or that is no book of the kind.
    """
    innermost = found.unended() if isinstance(found, kind) else None
    return innermost if innermost and not innermost.over else None


def current_book() -> RequestLeases[Any] | None:
    """Return the innermost book whose work the running code is a part of; ``None`` if all have ended."""
    flow = part_of.get()
    while flow is not None:
        book: RequestLeases[Any] | None = flow.book()
        if book is not None and not book.over:
            return book
        flow = flow.within
    return None


def watch_sessions() -> None:
    """Notice which SQLAlchemy sessions a request uses, if the application has imported SQLAlchemy."""
    if "sqlalchemy.orm" in sys.modules:
        try:
            from ..sqlalchemy.sessions import watch
        except ConfigurationError as error:
            logger.warning(
                "rows that are read before a lock are not read again inside it: %s", error
            )
        else:
            watch()


async def to_its_end(
    work: Callable[[asyncio.Future[None]], Coroutine[Any, Any, T]],
    loop: asyncio.AbstractEventLoop,
    *,
    may_end: Callable[[], bool],
    scope: Any = None,
) -> T:
    """Return what ``work`` returns, or raise what it raises, from a task of its own.

    So what cancels a request does not cancel what it does inside its lock, unless ``may_end`` returns
    that it may: otherwise it runs to its end, and only then the cancellation is raised again, unchanged.
    ``work`` is given a future, and resolves it as the last thing that it does, unless it is done: the
    waiting for it was cancelled. To wait for it is cheaper than to wait for a task. Context variables that
    the work has set are set for the caller, too: middleware outside of it may log them.

    anyio and ``asyncio.timeout`` recognize only their own cancellation, so it is not replaced. ``scope`` is a
    cancel scope of anyio that ``work`` has entered. If anyio cancels the request, anyio also cancels the
    work, so that the shields inside the work count.
    """
    ended: asyncio.Future[None] = loop.create_future()
    # Not by the loop's ``create_task``: on Python 3.12 and 3.13 it starts no task at once.
    context = copy_context()
    task = asyncio.Task(work(ended), loop=loop, context=context, **_BEGUN_AT_ONCE)
    try:
        await ended
    except asyncio.CancelledError:
        anyio = sys.modules.get("anyio")
        by_anyio = anyio is not None and anyio.current_effective_deadline() == -math.inf
        cancel = scope.cancel if scope and by_anyio else task.cancel
        if may_end():
            cancel()
        # anyio would repeat its cancellation at each turn of the loop.
        with anyio.CancelScope(shield=True) if anyio else nullcontext():
            while not task.done():  # Work that was cancelled before it began resolves nothing.
                try:
                    await asyncio.wait({task})
                except asyncio.CancelledError:
                    if may_end():
                        task.cancel()
        error = None if task.cancelled() else task.exception()
        if error and ClientGone not in (type(error), type(error.__cause__)):
            # Of the work, not the cancellation that is handled here.
            logger.error("a request failed after it was cancelled", exc_info=error)  # noqa: TRY400
        raise
    finally:
        for variable, value in context.items():
            # Those of weblock are about the work itself.
            if variable.get(None) is not value and not variable.name.startswith("weblock_"):
                variable.set(value)
    return task.result()


_BEGUN_AT_ONCE: Final[Mapping[str, Any]] = (
    {"eager_start": True} if sys.version_info >= (3, 12) else {}
)
"""Options of a task that starts at once, which spares it a turn of the loop."""
