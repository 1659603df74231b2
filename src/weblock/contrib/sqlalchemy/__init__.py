"""SQLAlchemy: no commit without the lease that it was made under."""

from __future__ import annotations

import functools
import inspect
import re
import weakref
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from ..._requirements import require

require("weblock.contrib.sqlalchemy", "sqlalchemy")

from sqlalchemy import (  # noqa: E402 - only what fits can be imported
    BLANK_SCHEMA,
    BigInteger,
    Column,
    Connection,
    DateTime,
    Engine,
    MetaData,
    String,
    Table,
    event,
    text,
)
from sqlalchemy.dialects import mysql  # noqa: E402
from sqlalchemy.engine import AdaptedConnection, ExceptionContext  # noqa: E402
from sqlalchemy.exc import PendingRollbackError  # noqa: E402
from sqlalchemy.orm import Session, SessionTransaction, scoped_session  # noqa: E402
from sqlalchemy.util.concurrency import in_greenlet  # noqa: E402

from ..._api import BaseLease  # noqa: E402
from ...errors import ConfigurationError, LeaseLost  # noqa: E402
from ...keys import unqualified  # noqa: E402
from ..kit.application import shown  # noqa: E402
from ..kit.guarding import Mark, Row, Runner, is_due, marks_of  # noqa: E402
from ..kit.sql import LENGTHS, LOCK_WAIT, TABLE, Kind, Trouble, kind_of, refuse_commit, trouble_of  # noqa: E402
from .idempotency import answer_table as answer_table  # noqa: E402
from .sessions import GUARDED, commits_by_itself, has_begun  # noqa: E402

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncSession


def guard(
    session: Session | AsyncSession,
    lease: BaseLease,
    *,
    fence: bool = False,
    wait: float = LOCK_WAIT,
) -> None:
    """Make every commit of ``session`` raise ``LeaseLost`` once the lease is lost.

    The check is the last step before COMMIT: the session's changes have been sent by then, and all
    of its ``before_commit`` listeners have run. The lease is also checked before each
    ``begin_nested`` block ends.

    With ``fence=True`` the database has the last word, so that even a process that is stopped
    between that check and the COMMIT does not commit after another holder has followed. Before the
    session's first statement, the lease's fence is written into a table of the database
    (``fence_table``), and it is read again, under a lock, before each COMMIT of what was written.

    The session stays guarded, even after the lease has been released: create a new session for
    other work. Code that commits without a session, through a ``Connection`` for
    example, must call ``lease.check()`` before.

    Raises:
        TypeError: The arguments are no session and no lease.
        StaleFence: At a commit: another holder has followed. A kind of ``LeaseLost``.
        FenceLocked: A former holder has not ended its transaction within ``wait`` seconds. A kind
            of ``LockTimeout``.
        ConfigurationError: The session has an open transaction, which may have read what is no
            longer true.
    """
    target: Any = getattr(session, "sync_session", session)
    if not isinstance(lease, BaseLease):
        raise TypeError(
            f"guard(session, lease) takes a lease second, and was given {shown(lease)}: give what"
            " `with locks.hold(key) as lease:` returns, or the parameter of Depends(lock(key))"
        )
    if not isinstance(target, Session):  # A registry or a factory would guard all of its sessions.
        raise TypeError(
            "guard(session, lease) takes an SQLAlchemy Session or AsyncSession first, and was given"
            f" {shown(target)}: give the one session that commits, such as db.session() of a registry"
            " db.session; without a session, call lease.check() before the commit"
        )
    if fence and has_begun(target):
        raise ConfigurationError(
            "guard(..., fence=True) was given a session with an open transaction, which may have"
            " read outdated rows: guard it before its first use, or roll it back first",
            code="stale_rows",
        )
    _Guard(target, lease, marks_of(lease) if fence else None, wait)


def watch_registry(
    sessions: scoped_session[Session],
    made: Callable[[Session], None],
    before_commit: Callable[[Session], None],
) -> None:
    """Call ``made`` with each session that a registry makes, and ``before_commit`` with each that commits.

    The first call for a registry counts: one module's ``db`` is often given to many applications, one for
    each test, and each commit would be checked for every application that there has been.
    """
    if sessions in _watched:
        return
    create = sessions.registry.createfunc

    def created() -> Session:
        session = create()
        made(session)
        return session

    sessions.registry.createfunc = created
    # SQLAlchemy knows a listener by the ids of its target and its function. A registry may have the id of
    # one that is gone, so each has a function of its own.
    event.listen(sessions, "before_commit", functools.partial(before_commit))
    # Last: a request in another thread must not go on unchecked. At worst, both threads come here.
    _watched.add(sessions)


_watched: Final[weakref.WeakSet[scoped_session[Session]]] = weakref.WeakSet()


def fence_table(metadata: MetaData) -> Table:
    """Return the table that ``guard(..., fence=True)`` needs, as part of ``metadata``.

    ``metadata.create_all`` creates it, and Alembic's autogenerate finds it. Django's migrations create
    the same table. It is in the connection's default schema, whatever the schema of ``metadata``: the
    guard's statements name no schema, and all sections of a key must find the same table.
    """
    moment = DateTime(timezone=True).with_variant(mysql.DATETIME(fsp=6), "mysql", "mariadb")
    return Table(
        TABLE,
        metadata,
        Column("digest", String(LENGTHS["digest"]), primary_key=True),
        Column("lock_key", String(LENGTHS["lock_key"]), nullable=False),
        Column("fence", BigInteger, nullable=False),
        Column("token", String(LENGTHS["token"]), nullable=False),
        Column("raised_at", moment, nullable=False),
        schema=BLANK_SCHEMA,
    )


_REMEMBERED: Final = 10_000

_told: Final[weakref.WeakKeyDictionary[Engine, OrderedDict[str, float]]] = (
    weakref.WeakKeyDictionary()
)
"""The last sections that each engine has been told of, and when: see ``is_due``."""

_guards_on: Final[weakref.WeakKeyDictionary[Connection, set[_Guard]]] = weakref.WeakKeyDictionary()
"""The guards, with fences, of the session that a connection is in use by."""

_SAVEPOINT: Final = re.compile(r"\s*SAVEPOINT\b", re.IGNORECASE)


class _Guard:
    """A session that commits nothing once its lease is lost.

    With ``marks``, its database refuses a holder whose key has passed to another.
    """

    def __init__(
        self, session: Session, lease: BaseLease, marks: list[Mark] | None, wait: float
    ) -> None:
        self._session = session
        self._lease = lease
        self._fences = marks is not None
        self._marks = marks or []
        self._wait = wait
        self._wrote: dict[Connection, bool] = {}
        """The connections that the session has now, and whether each has written unchecked."""
        self._ending: set[Connection] = set()
        """Those whose COMMIT has begun."""
        self._broken: set[Connection] = set()
        """Those whose transaction was rolled back after an error, to look who was the reason."""
        event.listen(session, "before_commit", self.before_commit)
        event.listen(session, "after_begin", self.begun)
        event.listen(session, "after_transaction_end", self.ended)
        if self._fences:
            tokens: dict[str, str] = session.info.setdefault(GUARDED, {})
            for mark in self._marks:
                if tokens.setdefault(mark.digest, mark.token) != mark.token:
                    raise ConfigurationError(
                        "this session is guarded with another lease of"
                        f" {unqualified(mark.key)!r:.200}: make a session for each lease, and if two"
                        " engines hold the same key, give one of them its own namespace=, because a"
                        " key has one row in the database",
                        code="unsuitable_guard",
                    )
            self._get_bind: Callable[..., Engine | Connection] = session.get_bind
            session.get_bind = self.get_bind  # type: ignore[method-assign]
            self._connection: Callable[..., Connection] = session.connection
            session.connection = self.connection  # type: ignore[method-assign]

    # The first step: before the session sends anything.

    def get_bind(self, *args: Any, **options: Any) -> Engine | Connection:
        """Return the database of the next statement; it knows of the lease from now on.

        The session asks for it before it takes a connection, so that nothing waits for a second
        connection while it has one.
        """
        bind = self._get_bind(*args, **options)
        if getattr(bind.dialect, "is_async", False) and not in_greenlet():
            return (
                bind  # The application asks, for the name of the dialect say: nothing can be sent.
            )
        if isinstance(bind, Connection):
            raise ConfigurationError(
                "guard(..., fence=True) needs a session that is bound to an engine, not to a"
                " connection, whose transaction may be older than the lease",
                code="stale_rows",
            )
        told = _told.setdefault(bind, OrderedDict())
        for mark in self._marks:
            written = told.get(mark.token)
            # Inside a transaction it could wait for a lock of its own.
            if is_due(written) and (written is None or not has_begun(self._session)):
                with bind.connect() as connection:
                    by_itself = connection.execution_options(isolation_level="AUTOCOMMIT")
                    told[mark.token] = self._runner(by_itself).begin(mark, written)
                if len(told) > _REMEMBERED:
                    told.popitem(last=False)
        return bind

    def connection(
        self, bind_arguments: Mapping[str, Any] | None = None, *args: Any, **options: Any
    ) -> Connection:
        """Return the session's connection to a database, which ``bind_arguments`` may name."""
        self.get_bind(**(bind_arguments or {}))
        return self._connection(bind_arguments, *args, **options)

    def begun(self, _session: Session, _transaction: object, connection: Connection) -> None:
        """Watch a connection that the session has just taken."""
        if connection in self._wrote:  # A savepoint begins.
            return
        if self._fences:
            if commits_by_itself(connection):
                raise ConfigurationError(
                    "guard(..., fence=True) was given a session that commits each statement at once"
                    ' (isolation_level="AUTOCOMMIT"), before they could be checked',
                    code="unchecked_commit",
                )
            event.listen(connection, "before_cursor_execute", self.seen)
            _guards_on.setdefault(connection, set()).add(self)
        self._wrote[connection] = False
        event.listen(connection, "commit", self.committing)
        event.listen(connection, "prepare_twophase", self.preparing)

    def ended(self, _session: Session, transaction: SessionTransaction) -> None:
        """Forget the connections that the session has returned."""
        if transaction.parent is None:
            self._wrote.clear()
            self._ending.clear()
            self._broken.clear()

    def seen(self, connection: Connection, _cursor: object, statement: str, *_more: object) -> None:
        """Record a statement that may write; refuse one that commits by itself."""
        if connection not in self._wrote:
            return
        if connection in self._broken:
            raise PendingRollbackError(
                "the database rejected a statement of this transaction, which was rolled back: call"
                " session.rollback() before the next one"
            )
        kind = kind_of(statement, mysql=connection.dialect.name in ("mysql", "mariadb"))
        if kind is Kind.COMMITS and connection not in self._ending:
            raise refuse_commit(statement)
        if connection.dialect.name == "sqlite" and (
            kind is Kind.WRITES or _SAVEPOINT.match(statement)
        ):
            # Python's ``sqlite3`` leaves BEGIN out before some statements. SQLite would then commit after
            # each CTE, DDL and PRAGMA, and when a savepoint is released.
            driver: Any = connection.connection.driver_connection
            if not driver.in_transaction:
                connection.exec_driver_sql(f"BEGIN {driver.isolation_level or ''}")
        if kind is Kind.WRITES and not self._wrote[connection]:
            self._wrote[connection] = True
            if connection in self._ending:  # A listener of COMMIT itself writes.
                self._check_all()

    # The second step: before COMMIT.

    def before_commit(self, session: Session) -> None:
        """Check early, also at the end of a savepoint or on a connection that its owner commits.

        Before the first of two phases: SQLAlchemy 2.0 hides an error that is raised there.
        """
        self._lease.check()
        if self._fences and session.twophase and not session.in_nested_transaction():
            session.flush()
            self._check_all()

    def committing(self, connection: Connection) -> None:
        """Check just before COMMIT, after everything that the session and its listeners do."""
        try:
            self.preparing(connection)
        except BaseException:
            # After an error here, SQLAlchemy returns the connection to its pool as it is.
            if not connection.invalidated:
                connection.connection.rollback()
            raise

    def preparing(self, connection: Connection, *_xid: object) -> None:
        """Check the lease, and ask each database that was written to.

        That is just before the first phase of a two-phase COMMIT, or before COMMIT itself.
        """
        if connection in self._wrote:
            self._lease.check()
            self._ending.add(connection)
            self._check_all()

    def _check_all(self) -> None:
        """Check with each database that was written to; it then keeps others out until its COMMIT."""
        for connection, wrote in list(self._wrote.items()):
            if wrote:
                for mark in self._marks:
                    self._runner(connection).check(mark)
                self._wrote[connection] = False

    def explain(self, connection: Connection) -> None:
        """Raise ``StaleFence`` if a statement conflicts with another section, and not with other data.

        A savepoint may be all that the application rolls back, so the error stays what it is in one.
        """
        if connection not in self._wrote or connection.in_nested_transaction():
            return
        connection.connection.rollback()  # Without taking a second connection.
        for mark in self._marks:
            self._runner(connection).look(mark)
        self._broken.add(connection)

    def _runner(self, connection: Connection) -> Runner:
        def execute(sql: str, parameters: dict[str, Any]) -> tuple[int, Row | None]:
            done = connection.execute(text(sql), parameters)
            found = done.first() if done.returns_rows else None
            return done.rowcount, Row(*found) if found else None

        def is_held(_mark: Mark) -> bool:
            try:
                asking = self._lease.extend(0)  # type: ignore[attr-defined] # both APIs have it
                if inspect.isawaitable(asking):
                    driver: Any = connection.connection.dbapi_connection
                    if not isinstance(driver, AdaptedConnection):  # It cannot be asked.
                        asking.close()  # type: ignore[attr-defined] # it is a coroutine
                        return False
                    driver.run_async(lambda _driver: asking)
            except LeaseLost:
                return False
            return True

        dialect = connection.engine.dialect
        name = "mariadb" if getattr(dialect, "is_mariadb", False) else dialect.name
        return Runner(name, self._wait, execute, is_held, _NO_TABLE)


@event.listens_for(Engine, "handle_error")
def _explain(context: ExceptionContext) -> None:
    """Explain the errors of databases, those of a flush and of a COMMIT, too."""
    connection = context.connection
    guards = connection is not None and _guards_on.get(connection)
    if (
        connection is not None
        and guards
        and trouble_of(context.original_exception) is Trouble.CONFLICT
    ):
        for each in guards:
            each.explain(connection)


_NO_TABLE: Final = (
    f'the database has no table {TABLE}, which guard(..., fence=True) and guard="database" need: add it'
    " to your metadata with weblock.contrib.sqlalchemy.fence_table(metadata), and create it with"
    " metadata.create_all(engine), db.create_all() or a migration"
)
