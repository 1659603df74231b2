"""The leases of one request, and the rows that it has read before it had them.

A request has often read rows before it holds its lock: ``LoginRequiredMiddleware`` reads the user, a key
function reads ``request.user``, and a decorator reads the object that it passes to the view. While the
request waits, the holder changes these rows. So once the lock is held, each row that the view can reach is
read again: what is on the request, what the view is called with, and what its instance keeps. A row is read
again in place, because it may carry what no query returns, such as the device of a two-factor login.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, Final, Unpack
from weakref import WeakSet, ref

from django.conf import settings as django_settings
from django.core.exceptions import PermissionDenied
from django.core.handlers.asgi import ASGIRequest
from django.core.handlers.wsgi import WSGIRequest
from django.db import DEFAULT_DB_ALIAS, connections, router, transaction
from django.db.models import Model
from django.http import HttpRequest, RawPostDataException
from django.http.response import HttpResponseBase
from django.utils.functional import LazyObject

from ..._adapting import terms_of
from ..._api import BaseLease, BaseLocks
from ..._options import HoldOptions
from ..._platform.logs import logger
from ..._platform.threads import running_loop
from ..._runtime.runtimes import drive, part_of
from ...aio import AsyncLease
from ...errors import ConfigurationError, WeblockError
from ...keys import CheckedKey, in_order
from ...sync import Lease
from ..asgi.request import SCOPE_KEY, AsyncRequestLocks
from ..kit import AHEAD, Book, Patience, RequestLeases, innermost, to_its_end
from ..kit.guarding import GuardKind
from ..wsgi.request import ENVIRON_KEY, descriptor_of, in_time, size_of_body
from .answers import answer_for
from .database import (
    Guard,
    UntilEnd,
    checked_at_commit,
    ends_with_transaction,
    give_back_connections,
    prepare_connections,
    roll_back,
    until_end,
    until_ends,
    watch,
)
from .internals import close_together, is_of_test_case, stands_for
from .settings import async_locks, current, locks
from .view_lock import DEFAULT, Call, ViewLock, in_task, in_thread


class ViewLeases(RequestLeases[BaseLease]):
    """The leases of a request, and what its views see of them."""

    locks_by_alias: ClassVar[Mapping[str, BaseLocks]]
    """The locks by alias, of the API that serves it."""
    call: ClassVar[Call]
    awaits: ClassVar[bool]
    """Whether a task serves it, which awaits its work."""

    def __init__(self, request: HttpRequest) -> None:
        if isinstance(request, ASGIRequest):
            found = request.scope.get(SCOPE_KEY)
        else:
            found = request.META.get(ENVIRON_KEY)
        # A layer around Django, such as the LockMiddleware of ASGI or WSGI, may hold something for it.
        around: Any = innermost(RequestLeases, found.book) if found else None
        book = around
        if book is None:
            book = Book(str(request.method), request.path)
            book.flow.within = part_of.get()  # Of a request that waits for this one's response.
        super().__init__(book)
        self._around = around
        self.request = request
        self._refused: tuple[ViewLock, ref[WeblockError]] | None = None
        """What could not be acquired last, and why: weakly, for the error's traceback refers to this."""
        self._waiting = False
        self._unwanted = False
        self.proven: Final[set[ViewLock]] = set()
        """The locks under which all work is done, or checked at COMMIT."""
        self._taken: dict[ViewLock, BaseLease | None] = {}
        """The lease of each lock all of whose keys were acquired at once."""
        self.by_lock: dict[ViewLock, tuple[CheckedKey, ...]] = {}
        """The keys of each lock that was acquired."""
        self.values: dict[ViewLock, Mapping[str, object]] = {}
        """What the keys of each lock were made of."""
        self.has_committed = False
        """Whether a COMMIT of this request has succeeded."""
        self.written_to: Final[set[Any]] = set()
        """The connections on which this request has written something that is not committed."""
        outer = checked_at_commit.get()
        self.guard: Guard | None = Guard(outer.guard) if outer and outer.guard else None
        """The leases whose fences are in the databases."""

    def leave(self) -> bool:
        """Record that the client has gone, and return whether the request may be cancelled now.

        Once its view has begun under a lock, it must not be; but it waits for no other lock then.
        """
        self._unwanted = True
        return self._waiting or not self.book.keys

    def lock_behind(self, error: Exception) -> ViewLock | None:
        """Return the lock that says how ``error`` is answered.

        That is the lock that could not be acquired, or that holds the error's key. For an error about
        another key, it is the innermost lock, of which only the alias counts. Return ``None`` for a
        request without locks.
        """
        if self._refused and self._refused[1]() is error:
            return self._refused[0]
        key = getattr(error, "key", None)
        inner_first = list(self.by_lock)[::-1]
        for lock in inner_first:
            if key in self.by_lock[lock]:
                return lock
        return replace(inner_first[0], busy_view=None) if inner_first else None

    def show(self, lock: ViewLock, *, to_task: bool) -> None:
        """Puts the lease of ``lock`` where the view finds it: ``request.weblock``, ``None`` without a key.

        A view may be of the other world than the chain of middleware that acquired for it.
        """
        keys, lease = self.by_lock[lock], self._taken.get(lock)
        if keys and (lease is None or isinstance(lease, AsyncLease) != to_task):
            its_locks: BaseLocks = async_locks[lock.alias] if to_task else locks[lock.alias]
            lease = self.lease_of(its_locks, keys)
        self.request.weblock = lease  # type: ignore[attr-defined]

    async def serve(self, work: Callable[[], Any]) -> Any:
        """Run ``work``, which may acquire, and release when it has ended, however it ended.

        Return its response, or another one if the lock was lost before it was made. A header of it tells
        how long the request has waited for its lock.
        """
        part, checked = part_of.set(self.book.flow), checked_at_commit.set(self)
        try:
            response = work()
            if self.awaits:
                response = await response
        finally:
            checked_at_commit.reset(checked)
            part_of.reset(part)
            self.guard = None
            loss = await self.release()
        is_whole = isinstance(
            response, HttpResponseBase
        )  # Else it is an inner function's own affair.
        if loss and not (is_whole and response.status_code >= 500):  # Such a one promises nothing.
            # Whether all work under the request's locks is done; a rule's never is.
            if not self.by_lock.keys() <= self.proven:
                instead = await answer_for(self, self.request, loss, self.call)
                if is_whole:
                    close_together(instead, response)
                response = instead
            elif is_whole:
                logger.error(
                    "a response reports success, because its work was committed before the %s"
                    " [weblock.loss_unreported]",
                    loss.message,
                )
        if is_whole and self.waited is not None:
            others = response.headers.get("Server-Timing")
            own = f"lock;dur={1000 * self.waited:.1f}"
            response.headers["Server-Timing"] = f"{others}, {own}" if others else own
        return response

    def reason_of(self, error: Exception) -> Exception:
        """Return why a view failed: ``StaleFence``, if the database refused it for being stale."""
        return self.guard.reason_of(error) if self.guard else error

    async def take_all(
        self,
        of: Sequence[ViewLock],
        values: Mapping[str, object],
        given: Sequence[object] = (),
    ) -> None:
        """Acquire what of these the request does not hold yet, and read rows again that were read before.

        These are the rows on the request, among the ``values`` of its URL, and among what the view is
        ``given`` besides. Raises what ``Locks`` raises, ``ConfigurationError`` inside a transaction, and
        ``PermissionDenied`` if a row is gone.
        """
        call, read, had = self.call, current(), len(self.leases)
        wanted: dict[ViewLock, tuple[CheckedKey, ...]] = {}
        each_of: list[tuple[ViewLock, BaseLocks, Sequence[CheckedKey]]] = []
        taken: dict[ViewLock, BaseLease | None] = dict.fromkeys(of)
        try:
            for lock in of:
                keys = wanted[lock] = await lock.keys_of(self.request, values, call, given)
                if keys:
                    each_of.append((lock, self.locks_by_alias[lock.alias], keys))
            if each_of:
                body_wait = None if self.book.keys else read[of[0].alias].body_wait
                await call(_prepare, self.request, body_wait)
            is_first = len(each_of) == 1 and not self.book.keys
            for lock, its_locks, missing in each_of if is_first else self.book.in_turn(each_of):
                if self._unwanted:
                    raise asyncio.CancelledError
                self._waiting = True
                around = self._around
                hears = isinstance(around, AsyncRequestLocks) and around.loop is running_loop()
                try:  # Django hears, while the request waits, that its client has left.
                    with around.telling() if hears else nullcontext():
                        lease = await self.take(
                            its_locks, missing, lock.options, partial(call, give_back_connections)
                        )
                finally:
                    self._waiting = False
                if len(missing) == len(wanted[lock]):
                    taken[lock] = lease
        except WeblockError as error:
            self._refused = lock, ref(error)
            raise
        for lock, its_locks, _ in each_of:  # Also of keys that were held already, unguarded.
            settings = read[lock.alias]
            if settings.guards_lock(lock.guard):
                self.guard = self.guard or Guard()
                self.guard.add(self.lease_of(its_locks, wanted[lock]), settings, locks[lock.alias])
        self.by_lock.update(wanted)
        self._taken.update(taken)
        self.values.update(dict.fromkeys(wanted, values))
        self.book.check()  # Some may have been lost while we waited for others.
        if self.guard:
            await call(self.guard.write)
        if len(self.leases) > had and (
            rows := kept_rows((*vars(self.request).values(), *values.values(), *given))
        ):
            await call(read_again, rows)


class ThreadLeases(ViewLeases):
    """The locks of a request that a thread serves."""

    locks_by_alias = locks
    call = staticmethod(in_thread)
    awaits = False

    def run(self, work: Callable[[], Any]) -> Any:
        """Run ``work``: see ``serve``."""
        return drive(self.serve(work))

    def acquire(
        self,
        of: Sequence[ViewLock],
        values: Mapping[str, object],
        given: Sequence[object] = (),
    ) -> None:
        """Acquire, in this thread: see ``take_all``."""
        drive(self.take_all(of, values, given))


class TaskLeases(ViewLeases):
    """The locks of a request that a task serves."""

    locks_by_alias = async_locks
    call = staticmethod(in_task)
    awaits = True
    acquire = ViewLeases.take_all

    async def run(self, work: Callable[[], Awaitable[Any]]) -> Any:
        """Run the view, in a task of its own.

        Django cancels a request when its client leaves, and a thread that works for it goes on all the
        same. So work is cancelled only while ``leave`` says that it may be.
        """
        ended = asyncio.get_running_loop().create_future()
        return await to_its_end(self._run(work, ended), ended, may_end=self.leave)

    async def _run(self, work: Callable[[], Awaitable[Any]], ended: asyncio.Future[None]) -> Any:
        try:
            return await self.serve(work)
        finally:
            if not ended.done():
                ended.set_result(None)


def _prepare(request: HttpRequest, body_wait: float | None) -> None:
    """Prepare the connections, and read a body that Django keeps in memory: see ``kit.bodies``.

    Under ASGI, Django has read it already. The view reads a larger body, or the rest of one that was begun.
    """
    prepare_connections(request)
    if body_wait is None or not isinstance(request, WSGIRequest):
        return
    size, most = size_of_body(request.META), django_settings.DATA_UPLOAD_MAX_MEMORY_SIZE
    if not size or size > (AHEAD if most is None else most):
        return
    patience = Patience(body_wait * math.ceil(size / AHEAD))
    with suppress(RawPostDataException):
        in_time(lambda: request.body, patience, descriptor_of(request.META))


_MAYBE_ROW: Final[tuple[type, ...]] = (LazyObject, Model)
"""In this order, so that what is lazy is not read."""


def kept_rows(values: Iterable[object]) -> list[Model]:
    """Return the stored rows among the values, each once; a lazy row only if it has been read already."""
    found: dict[int, Model] = {}
    for each in [each for each in values if isinstance(each, _MAYBE_ROW)]:  # Most are neither.
        value = stands_for(each) if isinstance(each, LazyObject) else each
        if isinstance(value, Model) and not value._state.adding:  # noqa: SLF001 - Django documents it
            found[id(value)] = value
    return list(found.values())


def read_again(rows: Iterable[Model]) -> None:
    """Read the rows again, in place, from the database that is written.

    Raises ``PermissionDenied``, which is answered with 403, if one of them is gone.
    """
    for row in rows:
        model: Any = type(row)
        try:
            row.refresh_from_db(using=router.db_for_write(model, instance=row))
        except model.DoesNotExist as error:
            raise PermissionDenied(
                f"the {model.__name__} {row.pk!r} was deleted while the request waited for its lock"
            ) from error


def locks_of_request(request: HttpRequest) -> ThreadLeases | TaskLeases | None:
    """Return what an outer layer holds for the request, and will release when it is over."""
    current: Any = checked_at_commit.get()
    return current if current and current.request is request and not current.over else None


class RequestLocks:
    """Acquires for the running request. The leases are released when its work is done."""

    def __init__(self, alias: str) -> None:
        self._alias = alias

    def acquire(
        self, *keys: str, guard: GuardKind | None = None, **options: Unpack[HoldOptions]
    ) -> Lease:
        """Return the lease of the keys in blocking code. See ``request_locks``.

        Args:
            *keys: The keys themselves, such as ``f"wallet:{wallet.pk}"``.
            guard: As of ``lock``.
            **options: Override those of the alias: see ``HoldOptions``.

        Raises:
            ConfigurationError: No request with ``LockMiddleware`` is running, a transaction is open, or
                a key or an option is invalid.
            LockTimeout: The keys were not free within ``wait`` seconds.
            EngineUnavailable: The engine did not answer.
        """
        held, lock = self._of(keys, options, guard)
        drive(in_thread(held.acquire, (lock,), {}))
        return held.lease_of(locks[self._alias], in_order(keys))  # type: ignore[return-value]

    async def aacquire(
        self, *keys: str, guard: GuardKind | None = None, **options: Unpack[HoldOptions]
    ) -> AsyncLease:
        """Return the lease of the keys in async code. See ``acquire``."""
        held, lock = self._of(keys, options, guard)
        await in_task(held.acquire, (lock,), {})
        return held.lease_of(async_locks[self._alias], in_order(keys))  # type: ignore[return-value]

    def _of(
        self, keys: tuple[str, ...], options: HoldOptions, guard: GuardKind | None
    ) -> tuple[ThreadLeases | TaskLeases, ViewLock]:
        held: Any = checked_at_commit.get()
        if held is None or held.over or not keys:
            raise ConfigurationError(
                f"acquire{keys!r:.80} needs at least one key and a running request. Put"
                " weblock.contrib.django.middleware.LockMiddleware last into MIDDLEWARE. Outside a"
                f" request, use locks[{self._alias!r}].hold(...).",
                code="installation",
            )
        return held, ViewLock.of([lambda _request: keys], options, guard, alias=self._alias)


def request_locks(alias: str = DEFAULT) -> RequestLocks:
    """Return what acquires keys for the running request, which service functions need not know.

    ``request_locks().acquire("wallet:7")``, or ``await request_locks().aacquire("wallet:7")`` in async
    code. The lease lasts until the view's work has been committed. A key that the request holds is not
    acquired again, and the request waits without a database connection. Acquire outside a
    transaction: a lock inside ``atomic()``, or with ``ATOMIC_REQUESTS``, comes too late.
    """
    return RequestLocks(alias)


def hold_until_commit(
    *keys: str,
    using: str = DEFAULT_DB_ALIAS,
    alias: str = DEFAULT,
    **options: Unpack[HoldOptions],
) -> None:
    """Acquire the keys, and hold them until the transaction has ended, by COMMIT or ROLLBACK.

    For model code that runs inside a transaction, as ``pg_advisory_xact_lock``. A lock that is acquired
    inside a savepoint is released when the savepoint is rolled back. A key that the transaction or the
    request holds is not acquired again. A lost lease rolls the transaction back. Rows that were read
    before are not read again: read them after this call, which on SQLite has to come before the first
    query of the transaction.

    Args:
        *keys: The keys themselves, such as ``f"wallet:{wallet.pk}"``.
        using: The database of the transaction, as in ``transaction.atomic``.
        alias: Which entry of ``WEBLOCK`` to use.
        **options: Override those of the alias: see ``HoldOptions``. The transaction keeps its database
            connection while it waits.

    Raises:
        ConfigurationError: There is no ``atomic`` block, as with autocommit and in async code; the
            transaction is REPEATABLE READ or SERIALIZABLE; or the alias has ``"GUARD": "database"``.
        LockTimeout: The keys were not free within ``wait`` seconds.
        EngineUnavailable: The engine did not answer.
    """
    if current()[alias].guards:
        raise ConfigurationError(
            f"WEBLOCK[{alias!r}] has GUARD, whose fences are committed before the transaction begins:"
            " hold_until_commit needs another alias without it, or use request_locks() before the"
            " transaction",
            code="no_transaction",
        )
    connection: Any = connections[using]
    own = locks[alias]
    if all(map(is_of_test_case, connection.atomic_blocks)):
        raise ConfigurationError(
            f"hold_until_commit{keys!r:.80} needs a transaction on the database {using!r}, which"
            f" has none here: put it into transaction.atomic(using={using!r}), name the database of the"
            " transaction with using=, or hold the keys with locks[...].hold(...)",
            code="no_transaction",
        )
    if not connection.commit_on_exit:
        raise ConfigurationError(
            f"hold_until_commit{keys!r:.80} needs a transaction that atomic() ends, and that of"
            f" the database {using!r} was begun by set_autocommit(False), or with AUTOCOMMIT off:"
            " set_autocommit(True) would commit it unchecked. Leave AUTOCOMMIT on",
            code="no_transaction",
        )
    level = str(connection.isolation_level) if connection.vendor == "mysql" else "read committed"
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute("SHOW transaction_isolation")
            (level,) = cursor.fetchone()
    if level not in ("read committed", "read uncommitted"):
        raise ConfigurationError(
            f"hold_until_commit{keys!r:.80} comes too late in a transaction at the isolation level"
            f" {level!r}, which does not see what the last holder has committed: use READ COMMITTED, or"
            " acquire the lock before the transaction",
            code="inside_transaction",
        )
    limit = terms_of(own, options).limit
    held = {
        key
        for each in until_end(connection)
        if each.own is own and each.lease.limit <= limit
        for key in each.lease.keys
    }
    missing: Sequence[CheckedKey] = [key for key in in_order(keys) if key not in held]
    if request := checked_at_commit.get():
        book = request.book
        book.refuse_upgrades(own, [key for key in missing if book.holds(own, key)], options)
        missing = book.missing(own, missing)
    if missing:
        watch(connection)  # It may have been opened before weblock was imported.
        if connection not in until_ends:  # A rollback itself releases what it drops.
            until_ends[connection] = WeakSet()
            for name in ("rollback", "savepoint_rollback", "close"):
                method = getattr(connection, name)
                setattr(connection, name, partial(roll_back, connection, method))
        token = ends_with_transaction.set(True)
        try:
            lease = own.acquire(*missing, **options)
        finally:
            ends_with_transaction.reset(token)
        transaction.on_commit(UntilEnd(connection, own, lease), using=using)
