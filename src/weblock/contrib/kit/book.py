"""What one request holds: one book, in which each layer around its application keeps its own part.

A rule, a decorator and several dependencies may lock for the same request, and by different locks::

    LockMiddleware  --->  install()  --->  the application
          |                   |                |
    RequestLeases       RequestLeases          |            each releases what it has acquired itself
          |                   |                |
          +------------------ Book ------------+            keys, sessions, and the flow of control

1. The outermost layer makes the ``Book``. Each layer farther in finds that layer where the framework keeps what
   belongs to a request (the scope, ``environ``), and shares its book.
2. A layer acquires by locks of its own (``RequestLeases.take``). A key that the book has already is not acquired
   again, whichever layer holds it.
3. A layer releases what it has acquired, when what runs inside of it has ended. Its keys leave the book before
   another caller can have them.
4. ``innermost`` finds the layer by which the application acquires, also where code does not know its request: the
   context (``part_of``) leads to the book.

What may run beside others of the same request, such as tasks of Celery that it calls in threads, has a book of its
own *within* that of the request. It begins with the keys of what is around it, and those that it acquires are only
its own: the others have to wait for them.

All is written once, as coroutines, as the core is. An adapter that serves requests in threads drives
them: on the blocking API they never suspend.
"""

from __future__ import annotations

import asyncio
import math
import re
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import nullcontext
from contextvars import copy_context
from functools import partial
from itertools import groupby, takewhile
from typing import Any, Final, Generic, TypeVar
from urllib.parse import quote
from weakref import ref

from ..._adapting import (
    Acquired,
    acquire,
    acquired_of,
    holdings_of,
    joined,
    key_space_of,
    kind_of,
    terms_of,
)
from ..._api import BaseLease, BaseLocks
from ..._core.acquiring import Caller
from ..._core.holding import Status
from ..._options import HoldOptions
from ..._platform.forks import Mutex, enter_child, getpid, process
from ..._platform.logs import logger
from ..._platform.threads import running_loop
from ..._runtime.runtimes import Flow, part_of
from ...errors import AlreadyHeld, ConfigurationError, LeaseLost
from ...keys import CheckedKey, unqualified
from .bodies import check_done
from .spec import LockSpec

L = TypeVar("L", bound=BaseLease)
T = TypeVar("T")
R = TypeVar("R", bound="RequestLeases[Any]")
S = TypeVar("S", bound=LockSpec)

BeforeWaiting = Callable[[], Awaitable[object]]

_PLAIN: Final = re.compile(r"[A-Za-z0-9_.~/-]*").fullmatch
"""Matches what ``quote`` leaves as it is."""

_joining: Final = Mutex()


class Book:
    """What one request holds, whichever of its layers has acquired it."""

    def __init__(
        self,
        method: str,
        path: str,
        within: Book | None = None,
        *,
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        """``within`` is what this is a part of, which may run beside others: it has its keys, too.

        ``loop`` is the running event loop, if the caller knows it.
        """
        self.method: Final = method
        self.path: Final = path
        self.keys: Final[dict[tuple[object, str], BaseLease]] = within.keys.copy() if within else {}
        """The lease of each key that is held, by its place and its name."""
        self.sessions: Final[dict[Any, bool]] = within.sessions if within else {}
        """Weak references to the database's sessions that the request has used: see ``sessions``.

        Each with whether it was first used on an event loop.
        """
        self.layers: Final[list[ref[RequestLeases[Any]]]] = []
        """The layers that were opened, from the outermost: weakly, for they keep the book."""
        loop = loop or running_loop()
        flow = Flow()
        flow.loop = ref(loop) if loop else None
        flow.within = within.flow if within else None
        flow.book = ref(self)
        self.flow: Final[Flow] = flow
        """What ``part_of`` is for all that runs for the request.

        None of it can wait for what the request holds: that would be to wait for itself.
        """

    def forget(self, leases: Iterable[BaseLease]) -> None:
        """Drop the keys of some leases: they are no longer held, or not for what has this book."""
        gone = {id(lease) for lease in leases}
        for key, lease in tuple(self.keys.items()):
            if id(lease) in gone:
                self.keys.pop(key, None)

    def missing(self, locks: BaseLocks, keys: Sequence[CheckedKey]) -> Sequence[CheckedKey]:
        """Return those of the keys that the request does not hold yet."""
        return [key for key in keys if not self.holds(locks, key)]

    def holds(self, locks: BaseLocks, key: str) -> bool:
        """Return whether the request holds a key, by locks of either API, and has not released it."""
        lease = self.keys.get((key_space_of(locks), key))
        return lease is not None and not any(
            each.status is Status.RELEASED and unqualified(each.key) == key
            for each in holdings_of(lease)
        )

    def refuse_upgrades(
        self, locks: BaseLocks, keys: Sequence[CheckedKey], options: HoldOptions
    ) -> None:
        """Raise ``AlreadyHeld`` if more may hold a key with this request than it asks for now."""
        limit = terms_of(locks, options).limit
        for key in keys:
            held = self.keys[key_space_of(locks), key]
            if held.limit > limit:
                raise AlreadyHeld(key, upgrade=True)

    def in_turn(
        self, wanted: Iterable[tuple[S, BaseLocks, Sequence[CheckedKey]]]
    ) -> Iterator[tuple[S, BaseLocks, list[CheckedKey]]]:
        """Return what is still to be acquired of several specs, each with its locks and its keys.

        All keys are acquired in one order, whatever spec each is of: requests that want the same keys by
        several specs would otherwise wait for one another. Raises ``AlreadyHeld`` as ``refuse_upgrades``.
        """
        missing: dict[tuple[str, str, CheckedKey, int], tuple[S, BaseLocks, int]] = {}
        for spec, locks, keys in wanted:
            limit = terms_of(locks, spec.options).limit
            for key in keys:
                if self.holds(locks, key):
                    self.refuse_upgrades(locks, [key], spec.options)
                    continue
                # The engine last: its number differs in each process.
                place = locks.engine, locks.namespace, key, id(key_space_of(locks).engine)
                other = missing.get(place)
                if other is None or limit < other[2]:  # The spec that lets fewer in.
                    missing[place] = spec, locks, limit
        for (spec, locks, _), group in groupby(sorted(missing), key=missing.__getitem__):
            yield spec, locks, [place[2] for place in group]

    def check(self) -> None:
        """Raise ``LeaseLost`` if any lease of the request has ended: what is to commit must not."""
        for lease in tuple(self.keys.values()):  # Another thread may acquire meanwhile.
            lease.check()


class RequestLeases(Generic[L]):
    """What one layer of a request has acquired, from its first key until everything is released."""

    book: Book
    over = False
    """Whether the layer has ended: it acquires nothing any more."""
    of_rules = False
    """Whether it acquires for the rules of a middleware, and not for the application inside."""
    waited: float | None = None
    """Seconds that it has waited for keys; ``None`` if it has asked for none."""
    while_waiting: Callable[[], object] | None = None
    """Called now and then while the request waits in a thread; what it raises ends the wait."""

    def __init__(self, around: Book | RequestLeases[Any]) -> None:
        """``around`` is the layer around this one, or the new book of an outermost layer."""
        self.leases: list[L] = []
        """Those that are released here, in the order in which they were acquired."""
        self.at_end: Final[list[Callable[[int], Awaitable[None]]]] = []
        """What keeps answers, before the end of the response is sent: see ``Output``."""
        if isinstance(around, Book):
            self.book = around
            around.layers.append(ref(self))
        else:
            around.let_in(self)

    def let_in(self, layer: RequestLeases[Any]) -> None:
        """Give a layer inside this one its book: the same, unless it runs beside another that is inside.

        What that other one holds, and may release at any time, is not in the book of this layer.
        """
        book, layers = self.book, self.book.layers
        with _joining.lock:  # Two threads of a request may come at once.
            while (last := layers[-1]()) is None or last.over:
                layers.pop()
            if last is not self:
                known = (each() for each in reversed(layers))
                beside = [each for each in takewhile(lambda each: each is not self, known) if each]
                book = Book(book.method, book.path, book)
                book.forget(lease for each in beside for lease in list(each.leases))
            layer.book = book
            book.layers.append(ref(layer))

    async def take(
        self,
        locks: BaseLocks,
        keys: Sequence[CheckedKey],
        options: HoldOptions,
        before_waiting: BeforeWaiting | None = None,
    ) -> L:
        """Return a lease of just these keys, which ``in_order`` gave.

        Those that the request holds are not acquired again; those that it has released, or handed
        over, are. Raises what ``Locks.acquire`` raises, ``LeaseLost`` for a lease that was lost
        meanwhile, and ``ConfigurationError`` when the layer has ended, for nobody would release.
        """
        if self.over:
            raise self._has_ended()
        book = self.book
        missing = book.missing(locks, keys) if book.keys else keys
        if missing:
            about = ""
            if "label" not in options:
                path = book.path  # Most have nothing to encode, and that is seen much faster.
                if not _PLAIN(path):
                    path = quote(path, errors="replace")
                about = f" {book.method} {path}"
            caller = Caller(about, book.flow, before_waiting, self.while_waiting)
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
            self.leases.append(lease)
            place = key_space_of(locks)
            for key in missing:
                book.keys[place, key] = lease
            if len(missing) == len(keys):
                return lease
        book.refuse_upgrades(locks, keys, options)
        lease = self.lease_of(locks, keys)
        lease.check()
        return lease

    def lease_of(self, locks: BaseLocks, keys: Sequence[str]) -> L:
        """Return the lease of just these keys, all of which the request holds, for users of ``locks``."""
        place = key_space_of(locks)
        leases: list[Any] = [self.book.keys[place, key] for key in keys]
        first: L = leases[0]
        if type(first) is self.kind_of_lease(locks) and first.keys == tuple(keys):
            return first
        return self.new_lease(locks, joined(locks, leases, keys))

    def kind_of_lease(self, locks: BaseLocks) -> type[BaseLease]:
        """Return the class of the leases that users of ``locks`` have."""
        return kind_of(locks)

    def new_lease(self, locks: BaseLocks, acquired: Acquired) -> L:
        """Return what was acquired as a lease for users of ``locks``."""
        return kind_of(locks)(*acquired)  # type: ignore[return-value] # Of this kind of locks.

    def check_done(self) -> None:
        """Raise ``LeaseLost`` if the request must not report success: see ``check_done``."""
        check_done(tuple(self.book.keys.values()))  # Another thread may acquire meanwhile.

    async def release(self) -> LeaseLost | None:
        """Release everything, the last first. Return the loss, if a lease was lost before."""
        if getpid() != process.pid:
            enter_child()
        self.over = True
        known = self.book.keys  # Its keys leave the book before another caller can have them.
        if self.book.layers[0]() is self:
            known.clear()
        else:
            self.book.forget(self.leases)
        loss: LeaseLost | None = None
        for locker, holdings in map(acquired_of, reversed(self.leases)):
            try:
                await locker.release(holdings)
            except LeaseLost as error:
                loss = error
            except Exception:  # The others are to be released all the same.
                keys = [unqualified(each.key) for each in holdings]
                logger.exception("the lease of %s was not released [weblock.not_released]", keys)
        self.leases.clear()
        return loss

    def _has_ended(self) -> ConfigurationError:
        return ConfigurationError(
            "this request has ended: code that outlives it must acquire its own locks, with"
            " locks.hold(...)",
            code="closed",
        )


def innermost(kind: type[R], of: Book | None = None, *, for_application: bool = False) -> R | None:
    """Return the innermost layer of a kind that has not ended; ``None`` if there is none.

    Looks in a book and those around it; by default in those whose work the running code is a part of.
    ``for_application``: the layer by which the application acquires. That is not the layer of a rule, whose
    locks may be others, unless there is no other.
    """
    flow, found = of.flow if of else part_of.get(), None
    while flow is not None:
        book: Book | None = flow.book()
        for known in reversed(book.layers) if book else ():
            layer = known()
            if isinstance(layer, kind) and not layer.over:
                if not (for_application and layer.of_rules):
                    return layer
                found = found or layer
        flow = flow.within
    return found


def current_book() -> Book | None:
    """Return the innermost book whose work the running code is a part of; ``None`` if all have ended."""
    layer: RequestLeases[Any] | None = innermost(RequestLeases)
    return layer.book if layer else None


def watch_sessions() -> None:
    """Notice which SQLAlchemy sessions a request uses, if the application has imported SQLAlchemy."""
    if "sqlalchemy.orm" in sys.modules:
        try:
            from ..sqlalchemy.sessions import known_classes  # It watches them from now on.

            known_classes()
        except ConfigurationError as error:
            logger.warning(
                "rows that are read before a lock are not read again inside it: %s"
                " [weblock.stale_rows]",
                error.message,
            )


async def to_its_end(
    work: Coroutine[Any, Any, T],
    ended: asyncio.Future[None],
    *,
    may_end: Callable[[], bool],
    scope: Any = None,
) -> T:
    """Return what ``work`` returns, or raise what it raises, from a task of its own.

    So what cancels a request does not cancel what it does inside its lock, unless ``may_end`` returns
    that it may: otherwise it runs to its end, and only then the cancellation is raised again, unchanged.
    ``work`` resolves ``ended`` as the last thing that it does, unless it is done: the waiting for it was
    cancelled. Context variables that the work has set are set for the caller, too: middleware outside of it
    may log them.

    anyio and ``asyncio.timeout`` recognize only their own cancellation, so it is not replaced. ``scope`` is a
    cancel scope of anyio that ``work`` has entered. If anyio cancels the request, anyio also cancels the
    work, so that the shields inside the work count.
    """
    # Not by the loop's ``create_task``: on Python 3.12 and 3.13 it starts no task at once.
    context = copy_context()
    task: asyncio.Task[T] = _begun(work, loop=ended.get_loop(), context=context)
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
        if error:
            # Of the work, not the cancellation that is handled here.
            logger.error(  # noqa: TRY400
                "a request failed after it was cancelled [weblock.request_failed]", exc_info=error
            )
        raise
    finally:
        for variable, value in context.items():
            if variable is part_of or variable.get(None) is value:
                continue
            if not variable.name.startswith("weblock_"):  # Those are about the work itself.
                variable.set(value)
    return task.result()


_begun: Callable[..., asyncio.Task[Any]] = asyncio.Task
"""Returns a task that has started at once, where Python can do that: it spares a turn of the loop."""
if sys.version_info >= (3, 12):
    _begun = partial(asyncio.Task, eager_start=True)
