"""The SQLAlchemy sessions of a request: rows that were read before the lock are read again.

A request often reads before it locks: authentication loads the user, and the key is made of that user.
Two things are wrong with such a session when the request waits for its lock. It occupies a pooled
connection, which the holder may need. And its rows are outdated when the lock is acquired: SQLAlchemy
returns the object that it knows, even for a new SELECT. So an adapter does this for each session that
the request has used:

1. Before the request waits, the transaction of the session is rolled back. That returns its connection.
2. All objects of the session are expired, so that they are read again at their next use.
3. As soon as an ASGI request has the lock, they are read again: an ``AsyncSession`` cannot read them at
   their next use, and FastAPI returns what the ``__dict__`` of an object has.

A rollback must lose nothing. A transaction in which anything but plain SELECTs was sent is therefore
refused, and so is one that its owner has to end: that of a ``begin()`` block, of ``begin_nested()``, or
of a connection that the session was given.

From the import of this module on, SQLAlchemy reports the transactions and statements of all sessions in the
process. A session belongs to each request in whose context it is used (``current_book``), whichever
dependency has made it. A request uses its sessions one after the other until it has the lock; one that
another task uses at that moment raises SQLAlchemy's error.
"""

from __future__ import annotations

import asyncio
import functools
import math
import re
import sys
import weakref
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from itertools import chain
from typing import Any, Final

from sqlalchemy import (
    Column,
    Connection,
    Engine,
    Integer,
    MetaData,
    Table,
    event,
    inspect,
    select,
    update,
)
from sqlalchemy.exc import InvalidRequestError
from sqlalchemy.orm import Session, SessionTransaction, SessionTransactionOrigin
from sqlalchemy.orm.attributes import set_committed_value

from ..._api import BaseLease, leaving
from ..._platform.logs import logger
from ..._platform.threads import running_loop
from ...errors import ConfigurationError
from ..kit.book import Book, current_book
from ..kit.sql import Kind, kind_of

_KEEPS: Final = re.compile(
    r"\bFOR\s+((NO\s+)?KEY\s+)?(UPDATE|SHARE)\b|\bLOCK\s+IN\s+SHARE\s+MODE\b", re.IGNORECASE
)
"""A SELECT that locks rows until the transaction ends."""

_SETS: Final = re.compile(r"[\s(]*(RE)?SET\b", re.IGNORECASE)
"""A setting that PostgreSQL undoes if the transaction is rolled back."""

GUARDED: Final = "weblock_tokens"
"""Where a session notes the leases that guard it, each with the digest of its key."""

ONCE: Final = "weblock_once"
"""Where a session notes its ``OneTransaction`` while it works for an idempotent request."""

Loaded = list[tuple[Any, dict[str, object]]]
"""Objects with the attributes that they had."""


class _Transaction:
    """What a session has done in its current transaction."""

    __slots__ = ("connections", "flushed", "session", "statement")

    def __init__(self, session: Session) -> None:
        self.session = weakref.ref(session)
        self.connections: list[weakref.ref[Connection]] = []
        self.statement: str | None = None
        """The first statement whose effect a rollback would undo."""
        self.flushed: tuple[Any, Engine | None] | None = None
        """A mapper, and where its objects were written inside a lock."""


_open: Final[weakref.WeakKeyDictionary[Session, _Transaction]] = weakref.WeakKeyDictionary()
_on: Final[weakref.WeakKeyDictionary[Connection, _Transaction]] = weakref.WeakKeyDictionary()


def known_classes() -> list[type[Session]]:
    """Return all classes of sessions that there are now, whose events are reported from now on.

    SQLAlchemy makes the lists of the listeners of a class when it is first used, without a mutex: a thread
    that uses the class at the same time may find an empty list, and miss an event.
    """
    found = [Session]
    for each in found:
        if not getattr(each, "__abstractmethods__", None):
            _ = object.__new__(each).dispatch
        found += each.__subclasses__()
    return found


_older: Final[weakref.WeakSet[type[Session]]] = weakref.WeakSet(known_classes())
"""The classes of the sessions that may have begun before this module could see it."""


def has_begun(session: Session) -> bool:
    """Return whether a session may have sent anything in its current transaction."""
    transaction = _open.get(session)
    if transaction is None:  # It may be older than this module.
        return session.in_transaction()
    return bool(transaction.connections)


def end_reading(session: Session) -> Loaded:
    """End the transaction of a session that has only read, and expire its objects.

    Return the objects with the attributes that they had. Raise ``ConfigurationError`` if a rollback
    would lose anything.
    """
    if (once := session.info.get(ONCE)) and once.has_begun:  # Its commits were savepoints.
        raise _refusal(
            "is committed together with the answer to an idempotent request",
            "acquire the lock before the session is used, as by Depends(lock(...)) or @locks.lock",
        )
    _look_for_replica(session)
    loaded: Loaded = []
    for each in session:
        state = inspect(each)
        names = {*state.mapper.column_attrs.keys(), *state.mapper.relationships.keys()}
        if values := {name: state.dict[name] for name in names & state.dict.keys()}:
            loaded.append((each, values))
    if _has_changes(session):
        raise _refusal("has written already, by changes to objects")
    if has_begun(session):
        _roll_back(session)
    session.expire_all()
    return loaded


def read_again(session: Session, loaded: Loaded) -> None:
    """Read what ``end_reading`` has expired; a row that is gone stays expired."""
    for each, values in loaded:
        missing = [name for name in values if name not in inspect(each).dict]
        columns = [name for name in missing if name in inspect(each).mapper.column_attrs]
        for wanted in (missing, columns):  # A relationship may forbid to be loaded by itself.
            if not wanted or each not in session:
                break
            try:
                session.refresh(each, wanted)
                break
            except InvalidRequestError:
                continue


def leave_as_read(ended: Iterable[tuple[Session, Loaded]]) -> None:
    """Give columns their former values where the lock was not acquired, for error handlers to use.

    An object of an ``AsyncSession`` would raise ``MissingGreenlet``.
    """
    for session, loaded in ended:
        for each, values in loaded if _async_session(session) else ():
            for name in values.keys() & inspect(each).mapper.column_attrs.keys():
                set_committed_value(each, name, values[name])


async def end_reading_of(session: Any) -> tuple[Session, Loaded]:
    """End what one session has read, and return it with what is to be read again."""
    target = getattr(session, "sync_session", session)
    loaded = await run_with(end_reading, target) if has_begun(target) else end_reading(target)
    return target, loaded


async def read_all_again(ended: Iterable[tuple[Session, Loaded]]) -> None:
    """Read what was read before, now that the request has its lock.

    Not at its next use: an ``AsyncSession`` cannot, and FastAPI and SQLModel would return an object
    whose attributes are expired as ``{}``, because they read its ``__dict__``.
    """
    for session, loaded in ended:
        if loaded:
            await run_with(read_again, session, loaded)


@asynccontextmanager
async def rows_read_again(session: Any) -> AsyncIterator[None]:
    """End what a session has read, and read it again when the block, which locks, has ended."""
    ended = [await end_reading_of(session)]
    try:
        yield
    except BaseException:
        leave_as_read(ended)
        raise
    await read_all_again(ended)


async def run_with(work: Callable[..., Any], session: Session, *given: object) -> Any:
    """Let a session work: in its greenlet, on the loop, or in a thread, as the application does.

    The thread is outside the limit of the pool, whose threads may all wait for a connection. anyio waits
    for it even if the request is cancelled, so that no other code uses the session meanwhile.
    """
    if owner := _async_session(session):
        return await owner.run_sync(work, *given)
    book = current_book()
    if book and book.sessions.get(weakref.ref(session)):
        return work(session, *given)
    if anyio := sys.modules.get("anyio"):  # It has been imported if a thread of its pool read.
        without_limit = anyio.CapacityLimiter(math.inf)
        return await anyio.to_thread.run_sync(work, session, *given, limiter=without_limit)
    return await asyncio.to_thread(work, session, *given)


def sessions_of(book: Book) -> list[Session]:
    """Return the sessions that a request has used.

    Warn of connections without a session, which nothing can read again.
    """
    found: list[Session] = []
    for known in list(book.sessions):
        used = known()
        if isinstance(used, Session):
            found.append(used)
        elif used is not None and used not in _on and used.in_transaction():
            _warn_once(
                "a request waits for a lock while its own database connection has an open"
                " transaction: the rows that it has read are outdated inside the lock, and no other request can"
                " use the connection. Acquire the lock before the connection, or end its transaction"
                " [weblock.inside_transaction]"
            )
    return found


def commits_by_itself(connection: Connection) -> bool:
    """Return whether each statement on a connection is a transaction."""
    level = connection.get_execution_options().get("isolation_level")
    driver = connection.connection.dbapi_connection
    if connection.dialect.name == "sqlite" and getattr(driver, "isolation_level", "") is None:
        return not getattr(driver, "in_transaction", False)  # Unless BEGIN was sent.
    return level == "AUTOCOMMIT" or getattr(driver, "autocommit", False) is True


@event.listens_for(Session, "after_transaction_create")
def _created(session: Session, transaction: SessionTransaction) -> None:
    if transaction.parent is None:
        _open[session] = _Transaction(session)
        _register(session)


@event.listens_for(Engine, "begin")
def _register(used: Session | Connection) -> None:
    """Record that the running request has used a session, or a connection by itself."""
    if (book := current_book()) is not None:
        on_loop = running_loop() is not None
        book.sessions.setdefault(weakref.ref(used, book.sessions.pop), on_loop)


@event.listens_for(Session, "after_begin")
def _began(session: Session, begun: SessionTransaction, connection: Connection) -> None:
    # A class that was made later, as by a ``sessionmaker``, may have missed the creation: see ``known_classes``.
    if session not in _open and type(session) not in _older:
        _created(session, begun)
    transaction = _open.get(session)
    if transaction is not None and _on.get(connection) is not transaction:  # Not a savepoint.
        transaction.connections.append(weakref.ref(connection))
        _on[connection] = transaction
        if (book := current_book()) is not None and book.keys:
            _look_for_replica(session)


@event.listens_for(Session, "after_transaction_end")
def _ended(session: Session, transaction: SessionTransaction) -> None:
    if transaction.parent is None and (ended := _open.pop(session, None)):
        if ended.flushed:
            mapper, writes = ended.flushed
            _warn_if_other(session, _engine_of(session, mapper=mapper), writes)
        for known in ended.connections:
            connection = known()
            if connection is not None and ONCE not in session.info:  # There it goes on.
                _on.pop(connection, None)


@event.listens_for(Engine, "before_cursor_execute")
def _sent(connection: Connection, _cursor: object, statement: str, *_more: object) -> None:
    if (transaction := _on.get(connection)) is not None:
        if (session := transaction.session()) is not None:
            _register(session)  # Its transaction may be older than the request.
        if transaction.statement is None and has_effect(statement):
            transaction.statement = statement


@event.listens_for(Session, "detached_to_persistent")
def _attached(_session: Session, instance: object) -> None:
    if (book := current_book()) is not None and book.keys:
        _warn_once(
            "an object of %s, which is detached from the session that loaded it, was added to a session"
            " inside a lock. If it was loaded before the lock, it is outdated: load it inside the lock, by"
            " the session that writes it [weblock.stale_rows]",
            type(instance).__qualname__,
        )


@functools.lru_cache(maxsize=1024)
def has_effect(statement: str) -> bool:
    """Return whether a rollback would undo anything of a statement."""
    match kind_of(statement):
        case Kind.READS:
            return bool(_KEEPS.search(statement))
        case Kind.CONTROLS:  # Savepoints are looked at when the transaction is to be ended.
            return bool(_SETS.match(statement))
        case _:
            return True


def _leaving(lease: BaseLease) -> None:
    """Warn if a request's code releases a lock before the COMMIT of the request's session."""
    book = current_book()
    for known in list(book.sessions if book else ()):
        session = known()
        if not isinstance(session, Session):
            continue
        transaction, once = _open.get(session), session.info.get(ONCE)
        wrote = (transaction and transaction.statement) or (once and once.wrote)
        if wrote or _has_changes(session):
            _warn_once(
                "the lock of %.200r was released although a session of the request has uncommitted writes:"
                " until its COMMIT, the next holder reads the old rows. Acquire the key with"
                " request_locks().acquire() (in Flask: the acquire() of WebLock), or commit while the lock"
                " is held (in an idempotent request, session.commit() does not commit: acquire the lock"
                " before the session is used) [weblock.released_before_commit]",
                lease.key,
            )


leaving.append(_leaving)


def _has_changes(session: Session) -> bool:
    """Return whether the objects of a session have changes that were not sent yet."""
    changed = any(map(session.is_modified, session.dirty))
    return bool(session.new or session.deleted or changed)


def _roll_back(session: Session) -> None:
    transaction = _open.get(session)
    current = session.get_transaction()
    if session.in_nested_transaction():
        raise _refusal("is inside begin_nested()")
    if transaction is None:
        raise _refusal("began before weblock was installed in the application")
    if transaction.statement:
        raise _refusal(
            f"has written already, or has changed its settings, by {transaction.statement!r:.200}"
        )
    if isinstance(session.bind, Connection):
        raise _refusal(_GIVEN, _BIND)
    connections = [*filter(None, (known() for known in transaction.connections))]
    for connection in connections:
        # What it has been told for this transaction, such as its isolation level.
        of_session = getattr(session, "execution_options", {})  # Since SQLAlchemy 2.1.
        usual = {**connection.engine.get_execution_options(), **of_session}
        options = connection.get_execution_options()
        if own := {name: value for name, value in options.items() if usual.get(name) != value}:
            raise _refusal(f"has its own execution options, {own!r:.200}")
    if current and current.origin is SessionTransactionOrigin.BEGIN:
        raise _refusal(
            "was opened by begin()",
            "write the session dependency as `with Session() as session: yield session;"
            " session.commit()`, or use the session only while the lock is held",
        )
    session.rollback()
    if not all(connection.closed for connection in connections):
        raise _refusal(_GIVEN, _BIND)


_GIVEN: Final = "belongs to a connection that was given to the session"
_BIND: Final = (
    "bind the session to the engine. A test that binds it to a connection can replace the lock:"
    " app.dependency_overrides[lock(...)] = lambda: None"
)


def _refusal(
    state: str,
    remedy: str = "commit before the lock is acquired, or begin while the lock is held",
) -> ConfigurationError:
    return ConfigurationError(
        f"a lock is acquired inside a transaction that {state}. A transaction that has only read is"
        f" ended before the request waits, but this one cannot be: {remedy}",
        code="inside_transaction",
    )


def _async_session(session: Session) -> Any:
    """Return the ``AsyncSession`` that a session belongs to, or ``None``."""
    asyncio_part = sys.modules.get("sqlalchemy.ext.asyncio")
    return asyncio_part and asyncio_part.async_session(session)


@functools.lru_cache(maxsize=128)
def _warn_once(message: str, *given: object) -> None:
    logger.warning(message, *given)


# Locked reads belong on the database that is written.

_probe: Final = Table("weblock_probe", MetaData(), Column("id", Integer))


def _look_for_replica(session: Session) -> None:
    """Warn of a session whose ``get_bind`` sends SELECTs and UPDATEs to different databases."""
    reads = _engine_of(session, clause=select(_probe))
    _warn_if_other(session, reads, _engine_of(session, clause=update(_probe)))


@event.listens_for(Session, "after_flush")
def _flushed(session: Session, _context: object) -> None:
    """Note where a session writes: a ``get_bind`` may decide by whether the session is flushing."""
    transaction, book = _open.get(session), current_book()
    if transaction and book and book.keys:
        for each in chain(session.new, session.dirty, session.deleted):
            mapper = inspect(each).mapper
            transaction.flushed = mapper, _engine_of(session, mapper=mapper)
            return


def _engine_of(session: Session, **asked: Any) -> Engine | None:
    """Return where a session's own ``get_bind`` sends it; ``None`` if it has none, or needs more to decide."""
    get_bind = type(session).get_bind
    if get_bind is Session.get_bind:
        return None
    try:
        return get_bind(session, **asked).engine
    except Exception:  # noqa: BLE001 - it is the application's
        return None


def _warn_if_other(session: Session, reads: Engine | None, writes: Engine | None) -> None:
    if reads and writes and reads.pool is not writes.pool:
        _warn_once(
            "%s.get_bind sends reads to %s and writes to %s. A replica may lag behind: inside a lock it"
            " returns outdated rows, and updates are lost. Use a session for locked requests that reads from"
            " the database that it writes to [weblock.stale_rows]",
            *(type(session).__qualname__, repr(reads.url), repr(writes.url)),
        )
