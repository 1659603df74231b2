"""The leases of one request."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import groupby
from typing import Any, Final, Generic, TypeVar, cast
from urllib.parse import quote

from asgiref.sync import sync_to_async
from django.http import HttpRequest
from django.http.response import HttpResponseBase

from ..._core.acquiring import Caller
from ..._face import BaseLease, Face
from ..._options import HoldOptions
from ..._platform.logs import logger
from ..._runtime.blocking import drive
from ..._runtime.clock import acting_for, begin_whole
from ..._runtime.clock import control as runs_here
from ...aio import AsyncLease
from ...errors import AlreadyHeld, ConfigurationError, LeaseLost, WeblockError
from ...keys import in_order
from ...sync import Lease
from .answers import answer
from .description import Lock
from .guard import Guard, guarded_databases
from .internals import close_together
from .registry import async_locks, locks
from .settings import of_alias
from .transactions import checked_at_commit, give_back_connections, prepare_connections

L = TypeVar("L", Lease, AsyncLease)


class RequestLocks(Generic[L]):
    """What a request holds: acquired one after the other, and released together."""

    def __init__(self, request: HttpRequest) -> None:
        self.request = request
        self.over = False
        self.refused: Lock | None = None
        """What could not be acquired."""
        self._waiting = False
        self._unwanted = False
        self._proven: set[Lock] = set()
        self._whole = begin_whole()
        current = _current.get()
        self._outer = None if current is None or current.over else current
        self._leases: list[L] = []
        self._by_key: dict[tuple[str, str], L] = {}
        self._by_lock: dict[Lock, tuple[str, ...]] = {}
        self._waited: float | None = None
        self.guard: Guard | None = self._outer.guard if self._outer else None
        """What the databases are to know of the leases."""

    def leave(self) -> bool:
        """Record that the client has gone, and return whether the request may be cancelled now.

        Once its view has begun under a lock, it must not be; but it waits for no other lock then.
        """
        self._unwanted = True
        return self._waiting or not self.has_any

    def check(self) -> None:
        """Raises ``LeaseLost`` if something that we hold is not ours any more."""
        for lease in tuple(self._leases):
            lease.check()

    def prove(self, lock: Lock) -> None:
        """Notes that what runs under ``lock`` has returned: its work is done, or checked at COMMIT.

        Raises ``LeaseLost`` if a lease was lost before.
        """
        self.check()
        self._proven.add(lock)

    @property
    def _is_proven(self) -> bool:
        """Whether all that the request has held for is done; what a rule locks never says so."""
        return self._by_lock.keys() <= self._proven

    @property
    def has_any(self) -> bool:
        """Whether anything has been acquired."""
        return bool(self._leases)

    def has(self, lock: Lock) -> bool:
        """Whether this very lock has been acquired."""
        return lock in self._by_lock

    def holds(self, alias: str, key: str) -> bool:
        """Whether the request holds a key, or one that waits for its answer, as this one's view."""
        if not self.over and (alias, key) in self._by_key:
            return True
        return self._outer is not None and self._outer.holds(alias, key)

    def show(self, lock: Lock, *, to_task: bool) -> None:
        """Puts the lease of ``lock`` where the view finds it: ``request.weblock``.

        A view may be of the other world than the chain of middleware that acquired for it.
        """
        keys = self._by_lock[lock]
        leases = [self._by_key[lock.alias, key] for key in keys]
        wanted: type[BaseLease] = AsyncLease if to_task else Lease
        if len(leases) == 1 and isinstance(leases[0], wanted) and leases[0].keys == keys:
            lease: BaseLease = leases[0]
        else:
            face: Face = async_locks[lock.alias] if to_task else locks[lock.alias]
            lease = face._joined(leases, keys)  # noqa: SLF001
        self.request.weblock = lease  # type: ignore[attr-defined]

    def answered(self, response: Any, loss: LeaseLost | None) -> Any:
        """The response, or what is to be said instead if the lock was lost before it was made."""
        if not isinstance(response, HttpResponseBase):  # It is an inner function's own affair.
            return answer(self.request, loss) if loss and not self._is_proven else response
        if loss and response.status_code < 500:  # Otherwise it promises nothing.
            response = self._after(loss, response)
        return self.timed(response)

    def timed(self, response: HttpResponseBase) -> HttpResponseBase:
        """The response, which tells how long the request has waited, if it has asked for a lock."""
        if self._waited is not None:
            others = response.headers.get("Server-Timing")
            own = f"lock;dur={1000 * self._waited:.1f}"
            response.headers["Server-Timing"] = f"{others}, {own}" if others else own
        return response

    def _after(self, loss: LeaseLost, response: HttpResponseBase) -> HttpResponseBase:
        if self._is_proven:
            logger.error("a response is sent although, after its work was committed, the %s", loss)
            return response
        instead = answer(self.request, loss)
        assert instead is not None
        close_together(instead, response)
        return instead

    @contextmanager
    def _acquiring(self, lock: Lock) -> Iterator[None]:
        if self.over:
            raise ConfigurationError(
                "this request has ended: what outlives it holds its locks by itself, with"
                ' locks["default"].hold'
            )
        if self._unwanted:
            raise asyncio.CancelledError
        began = time.monotonic()
        self._waiting = True
        try:
            with acting_for(self._whole):
                yield
        except WeblockError:
            self.refused = lock
            raise
        finally:
            self._waiting = False
            self._waited = (self._waited or 0.0) + time.monotonic() - began

    def _in_turn(self, wanted: Mapping[Lock, Sequence[str]]) -> Iterator[tuple[Lock, list[str]]]:
        """What is still to be acquired: all keys in one order, whatever lock each is of.

        Requests that want the same keys by several locks would otherwise wait for one another.
        Raises ``AlreadyHeld`` for what would never become free.
        """
        missing: dict[tuple[str, str], Lock] = {}
        for lock, keys in wanted.items():
            for key in keys:
                if self._outer and self._outer.holds(lock.alias, key):
                    raise AlreadyHeld(key)
                if (lock.alias, key) not in self._by_key:
                    missing.setdefault((lock.alias, key), lock)
        for lock, group in groupby(sorted(missing), key=missing.__getitem__):
            yield lock, [key for _, key in group]

    def _keep(self, lock: Lock, lease: L) -> None:
        self._leases.append(lease)
        if wanted := of_alias(lock.alias).guard:
            if self.guard is None or (self._outer and self.guard is self._outer.guard):
                self.guard = Guard(self.guard)
            self.guard.add(lease, wanted, locks[lock.alias])
        self._by_key.update(((lock.alias, key), lease) for key in lease.keys)

    def _settle(self, wanted: Mapping[Lock, tuple[str, ...]]) -> None:
        self._by_lock.update(wanted)
        self.check()  # Some may have been lost while we waited for others.

    def _options(self, lock: Lock, face: Face) -> HoldOptions:
        path = quote(self.request.path, errors="replace")
        options: Any = {"label": f"{face.label} {self.request.method} {path}", **dict(lock.options)}
        return cast("HoldOptions", options)

    def _end(self) -> list[L]:
        self.over = True
        self.guard = None
        leases, self._leases = self._leases[::-1], []
        return leases


class ThreadLocks(RequestLocks[Lease]):
    """The locks of a request that a thread serves."""

    def run(self, work: Callable[[], Any]) -> Any:
        """Does ``work``, which may acquire, and releases when it has ended in whatever way."""
        loss = None
        ours, checked = _current.set(self), checked_at_commit.set(self)
        try:
            response = work()
        finally:
            checked_at_commit.reset(checked)
            _current.reset(ours)
            loss = self._release()
        return self.answered(response, loss)

    def acquire(self, of: Sequence[Lock], values: Mapping[str, object]) -> None:
        """Acquires what of these the request does not hold yet, and raises as ``Locks`` does.

        Raises ``ConfigurationError`` inside a transaction.
        """
        prepare_connections(_guarded(of))
        wanted = {lock: in_order(lock.keys_of(self.request, values)) for lock in of}
        for lock, missing in self._in_turn(wanted):
            face = locks[lock.alias]
            with self._acquiring(lock):
                options = self._options(lock, face)
                caller = Caller(options["label"], runs_here(), _give_back)
                lease = Lease(*drive(face._acquire(missing, options, caller)))  # noqa: SLF001
            self._keep(lock, lease)
        self._settle(wanted)

    def _release(self) -> LeaseLost | None:
        loss = None
        for lease in self._end():
            try:
                lease.release()
            except LeaseLost as error:
                loss = error
            except Exception:  # The others are to be released all the same.
                logger.exception("the lease of %s was not released", lease.keys)
        return loss


class TaskLocks(RequestLocks[AsyncLease]):
    """The locks of a request that a task serves."""

    async def run(self, work: Callable[[], Any]) -> Any:
        """Run the view, in a task of its own, because it leaves traces in the context."""
        loss = None
        _current.set(self)
        checked_at_commit.set(self)
        try:
            response = await work()
        finally:
            loss = await self._release()
        # The answer to a loss may be a page, which may use the database.
        answered = sync_to_async(self.answered) if loss else None
        return await answered(response, loss) if answered else self.answered(response, loss)

    async def acquire(self, of: Sequence[Lock], values: Mapping[str, object]) -> None:
        """Acquire the keys, in a task."""
        await sync_to_async(prepare_connections)(_guarded(of))
        wanted = {lock: in_order(await lock.akeys_of(self.request, values)) for lock in of}
        for lock, missing in self._in_turn(wanted):
            face = async_locks[lock.alias]
            with self._acquiring(lock):
                options = self._options(lock, face)
                give_back = sync_to_async(give_back_connections)
                caller = Caller(options["label"], runs_here(), give_back)
                lease = AsyncLease(*await face._acquire(missing, options, caller))  # noqa: SLF001
            self._keep(lock, lease)
        self._settle(wanted)

    async def _release(self) -> LeaseLost | None:
        loss = None
        for lease in self._end():
            try:
                await lease.release()
            except LeaseLost as error:
                loss = error
            except Exception:  # The others are to be released all the same.
                logger.exception("the lease of %s was not released", lease.keys)
        return loss


_current: Final[ContextVar[ThreadLocks | TaskLocks | None]] = ContextVar(
    "weblock_request", default=None
)


def _guarded(of: Iterable[Lock]) -> set[str]:
    """The databases that are to know of these locks."""
    wanted = [found for lock in of if (found := of_alias(lock.alias).guard)]
    return {alias for each in wanted for alias in guarded_databases(each.databases)}


def locks_of_request(request: HttpRequest) -> ThreadLocks | TaskLocks | None:
    """Return what an outer layer holds for the request, and will release when it is over."""
    current = _current.get()
    return current if current and current.request is request and not current.over else None


async def _give_back() -> None:
    give_back_connections()
