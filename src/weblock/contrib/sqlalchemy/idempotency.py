"""Commit the work of a session together with the answer to its request.

An application commits when it likes, and only then makes its response. ``OneTransaction`` lets its session join
a transaction that is begun outside of it: what the application commits is a savepoint. When the response is
complete, ``commit`` inserts it into the table of answers, and commits everything at once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from sqlalchemy import (
    BLANK_SCHEMA,
    BigInteger,
    Column,
    Connection,
    Engine,
    Integer,
    LargeBinary,
    MetaData,
    RootTransaction,
    String,
    Table,
    Text,
    create_engine,
    delete,
    event,
    select,
    text,
)
from sqlalchemy.dialects import mysql, registry
from sqlalchemy.exc import ArgumentError, DBAPIError, UnboundExecutionError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.orm import Session
from sqlalchemy.schema import CreateIndex, CreateTable
from sqlalchemy.util.concurrency import in_greenlet

from ..._api import BaseLease, BaseLocks
from ..._platform.logs import logger
from ...errors import AnswersUnavailable, ConfigurationError, LockTimeout
from ..kit import RequestLeases, shown
from ..kit.idempotency import (
    ANSWER_LENGTHS,
    ANSWERS,
    Answer,
    Answers,
    Asked,
    IdempotencySpec,
    Replay,
    Stored,
    reading_answers,
)
from ..kit.sql import Kind, kind_of
from .sessions import GUARDED, ONCE, commits_by_itself, has_begun, has_effect


def answer_table(metadata: MetaData) -> Table:
    """Return the table in which the answers to idempotent requests are stored, as part of ``metadata``.

    ``metadata.create_all`` creates it, and Alembic's autogenerate finds it. It is in the connection's
    default schema, whatever the schema of ``metadata``.
    """
    texts = [
        Column(
            name,
            String(length),
            primary_key=name == "digest",
            nullable=False,
            index=name == "caller",
        )
        for name, length in ANSWER_LENGTHS.items()
    ]
    return Table(
        ANSWERS,
        metadata,
        *texts,
        Column("status", Integer, nullable=False),
        Column(
            "headers", Text().with_variant(mysql.LONGTEXT(), "mysql", "mariadb"), nullable=False
        ),
        Column(
            "body", LargeBinary().with_variant(mysql.LONGBLOB(), "mysql", "mariadb"), nullable=False
        ),
        Column("expires_at", BigInteger, nullable=False, index=True),
        schema=BLANK_SCHEMA,
    )


def session_of(given: Any) -> Session:
    """Return the session that a dependency has given, or that an ``AsyncSession`` uses. Raises ``TypeError``."""
    session = getattr(given, "sync_session", given)
    if not isinstance(session, Session):
        raise TypeError(
            "idempotent(session=...) takes a dependency that gives an SQLAlchemy Session or AsyncSession, and it"
            f" gave {shown(given)}"
        )
    return session


class OneTransaction:
    """All that a session does for an idempotent request, and the answer to it."""

    def __init__(
        self,
        session: Session,
        spec: IdempotencySpec,
        asked: Asked,
        held: RequestLeases[Any],
        locks: BaseLocks,
    ) -> None:
        """Raises ``ConfigurationError`` for a session whose commits nothing can be added to."""
        if GUARDED in session.info:
            raise _refusal(
                "is guarded with a fence: leave that out, for the database rejects a second execution anyway"
            )
        if session.twophase:
            raise _refusal("commits in two phases")
        try:
            engine = session.get_bind()
        except UnboundExecutionError as error:
            raise _refusal("is bound to several databases: bind it to one engine") from error
        if not isinstance(engine, Engine):
            raise _refusal("is bound to a connection: bind it to the engine")
        self.is_joined = False
        """Whether the session is part of the transaction, so that what it commits are savepoints."""
        self.wrote = False
        """Whether anything but plain SELECTs was sent."""
        self._session = session
        self._engine = engine
        self._spec = spec
        self._held = held
        self._connection: Connection | None = None
        self._transaction: RootTransaction | None = None
        self._committing = False
        self._get_bind: Callable[..., Engine | Connection] = session.get_bind
        self._mode = session.join_transaction_mode
        name = "mariadb" if getattr(engine.dialect, "is_mariadb", False) else engine.dialect.name
        failures = DBAPIError, PoolTimeout, OSError
        self._answers = Answers(
            spec, asked, locks, name, self._execute, failures=failures, remedy=NO_TABLE
        )

    @property
    def has_begun(self) -> bool:
        """Whether the session has sent anything, since which it may see old rows."""
        return self._connection is not None

    async def begin(self, lease: BaseLease | None, busy: LockTimeout | None) -> Answer | None:
        """Return the stored answer; if there is none, let the session join the transaction.

        Without ``lease``, ``busy`` says why: it is raised if there is no answer. Raises ``AnswersUnavailable``, the
        errors of ``Answers.find_or_admit``, and ``ConfigurationError`` if the session has begun.
        """
        find = self._answers.find_or_admit if lease else lambda: self._answers.find(busy)
        if found := self._look(find):
            return found
        if has_begun(self._session):
            raise _refusal("is in use by another task of the request")
        self.is_joined = True
        self._session.info[ONCE] = self
        self._session.join_transaction_mode = "create_savepoint"
        self._session.get_bind = self._joined  # type: ignore[method-assign]
        return None

    def note(self, status: int, headers: Iterable[tuple[str, str]], body: bytes | None) -> None:
        """Commit the work and the answer; or roll back, if the answer is not to be stored.

        ``body`` is ``None`` if the response streams. Raises as ``IdempotencySpec.answer_of`` and ``commit``, and
        ``LeaseLost``.
        """
        if answer := self._spec.answer_of(status, headers, body):
            self._held.check_done()
            self.commit(answer)
        else:
            self.roll_back()

    def commit(self, answer: Answer) -> None:
        """Commit the work and its answer.

        Raises ``Replay`` if another request with the same key has been committed meanwhile. Whatever is
        raised, nothing was committed by this one, unless the database did not answer its COMMIT.
        """
        try:
            self._session.commit()
            connection = self._open()
            if self._transaction is None or not self._transaction.is_active:
                raise _refusal(
                    "was rolled back on its connection, behind the session: use session.rollback()"
                )
            if connection.dialect.name in _MYSQL:
                try:
                    self._execute("RELEASE SAVEPOINT weblock", {})
                except DBAPIError as error:
                    if error.connection_invalidated:
                        raise
                    raise _refusal(_ROLLED_BACK) from error
            self._answers.store(answer)
            self._committing = True
            self._transaction.commit()
            self._answers.sweep(connection.begin)
        except DBAPIError:
            self.roll_back()
            with suppress(AnswersUnavailable):
                if found := self._look(self._answers.find):
                    raise Replay(found) from None
            raise
        finally:
            self.roll_back()

    def roll_back(self) -> None:
        """Undo what was not committed. After this, the session is an ordinary one."""
        if not self.is_joined:
            return
        self.is_joined = False
        try:
            if not self._committing:
                self._session.rollback()
        except DBAPIError:  # Its savepoint is gone. The connection rolls back what there is.
            logger.debug("the savepoint of an idempotent request is gone", exc_info=True)
        finally:
            del self._session.info[ONCE]
            del self._session.get_bind  # It has the one of its class again.
            self._session.join_transaction_mode = self._mode
            if self._connection:
                self._connection.close()

    def _joined(self, *args: Any, **options: Any) -> Engine | Connection:
        """Return the connection of the transaction, for the session's next statement."""
        bind = self._get_bind(*args, **options)
        if self._engine.dialect.is_async and not in_greenlet():
            return (
                bind  # The application asks, for the name of the dialect say: nothing can be sent.
            )
        if bind.engine.pool is not self._engine.pool:
            raise _refusal(
                f"uses two databases, {self._engine.url!r} and {bind.engine.url!r}, which cannot be"
                " committed together: do the work of this request in one of them"
            )
        return self._open()

    def _open(self) -> Connection:
        if self._connection is None:
            connection = self._engine.connect()
            try:
                transaction = connection.begin()
                if connection.dialect.name == "sqlite":
                    driver: Any = connection.connection.driver_connection
                    # Python's ``sqlite3`` begins no transaction before a savepoint, whose end then commits.
                    if not driver.in_transaction:
                        connection.exec_driver_sql("BEGIN IMMEDIATE")
                elif connection.dialect.name in _MYSQL:
                    # A deadlock rolls back everything and begins anew. Then this savepoint is gone.
                    connection.exec_driver_sql("SAVEPOINT weblock")
            except BaseException:
                connection.close()
                raise
            if commits_by_itself(connection):
                connection.close()
                raise _refusal(
                    'commits each statement (isolation_level="AUTOCOMMIT"): use another engine for it'
                )
            event.listen(connection, "before_cursor_execute", self._sending)
            event.listen(connection, "commit", self._ending)
            self._connection, self._transaction = connection, transaction
        return self._connection

    def _sending(self, connection: Connection, _cursor: object, sql: str, *_more: object) -> None:
        if self._committing or not self.is_joined:
            return
        self.wrote = self.wrote or has_effect(sql)
        database = connection.dialect.name
        if kind_of(sql, mysql=database in _MYSQL) is Kind.COMMITS:
            raise _refusal(f"sends {sql!r:.100}, which commits implicitly: use session.commit()")
        if database == "sqlite":
            driver: Any = connection.connection.driver_connection
            if not driver.in_transaction:  # The end of a savepoint would commit.
                raise _refusal(_ROLLED_BACK)

    def _ending(self, connection: Connection) -> None:
        if self.is_joined and not self._committing:
            connection.connection.rollback()  # SQLAlchemy returns it to its pool as it is.
            raise _refusal("was committed on its connection: use session.commit()")

    def _look(self, work: Callable[[], Answer | None]) -> Answer | None:
        """Do what reads the stored answers, in a transaction of its own."""
        try:
            with self._answers.reading(), self._engine.connect() as self._connection:
                return work()
        finally:
            self._connection = None

    def _execute(self, sql: str, values: Mapping[str, Any]) -> Sequence[Sequence[Any]]:
        assert self._connection is not None
        done = self._connection.execute(text(sql), values)
        return done.all() if done.returns_rows else ()


def _refusal(why: str) -> ConfigurationError:
    return ConfigurationError(
        f"the session of an idempotent request {why}. Its work must be committed together with its answer",
        code="idempotency",
    )


_MYSQL: Final = "mysql", "mariadb"

_ROLLED_BACK: Final = (
    "was rolled back as a whole by its database, as after a deadlock on MySQL, or by INSERT OR ROLLBACK or"
    " a full disk on SQLite: let that error leave the endpoint, so that the client can retry"
)

NO_TABLE: Final = (
    "add it to your metadata with weblock.contrib.sqlalchemy.answer_table(metadata), and create it with metadata.create_all(engine) or a"
    " migration"
)


_TABLE = answer_table(MetaData())


def answers_ddl(dialect: str) -> str:
    """Return the SQL that creates the table of answers in a database of this kind, such as ``"postgresql"``."""
    found = registry.load(dialect)()
    indexes = sorted(_TABLE.indexes, key=lambda each: str(each.name))
    creating: list[CreateTable | CreateIndex] = [CreateTable(_TABLE), *map(CreateIndex, indexes)]
    return "\n".join(f"{str(each.compile(dialect=found)).strip()};" for each in creating)


class StoredAnswers:
    """The answers in the database at a URL of SQLAlchemy.

    Raises ``ConfigurationError`` for a URL that cannot work, and for a database without the table, and
    ``AnswersUnavailable`` if the database does not answer.
    """

    def __init__(self, url: str) -> None:
        try:
            self._engine = create_engine(url)
        except ImportError as error:
            raise ConfigurationError(
                f"the driver of --database is not installed: {error}"
            ) from error
        except (ArgumentError, ValueError) as error:  # Its text may have a part of the password.
            raise ConfigurationError(
                "--database must be the URL of a database, as SQLAlchemy takes it, such as"
                " postgresql+psycopg://host/shop"
            ) from error
        if self._engine.dialect.is_async:
            raise ConfigurationError(
                f"--database has the async driver {self._engine.dialect.driver}: name another one, such as"
                " postgresql+psycopg:// or sqlite://"
            )
        place = self._engine.url
        # SQLite would create a file for a name that is misspelled.
        if (
            place.get_backend_name() == "sqlite"
            and place.database
            and not Path(place.database).is_file()
        ):
            raise ConfigurationError(
                f"--database names the file {place.database}, which does not exist"
            )

    def all(self, limit: int, key: str | None = None) -> Sequence[Stored]:
        """Return answers that have not expired, the newest first, or those with an idempotency key."""
        columns = [_TABLE.c[name] for name in Stored._fields]
        query = select(*columns).where(_TABLE.c.expires_at > time.time())
        if key is not None:
            query = query.where(_TABLE.c.idempotency_key == key)
        with self._connected() as connection:
            found = connection.execute(query.order_by(_TABLE.c.expires_at.desc()).limit(limit))
            return [Stored(*row) for row in found]

    def forget(self, answer: Stored) -> bool:
        """Delete an answer, and return whether there was one."""
        with self._connected() as connection:
            done = connection.execute(delete(_TABLE).where(_TABLE.c.digest == answer.digest))
            return bool(done.rowcount)

    @contextmanager
    def _connected(self) -> Iterator[Connection]:
        with reading_answers((DBAPIError, OSError), NO_TABLE):
            try:
                connecting = self._engine.connect()
            except TypeError as error:
                raise ConfigurationError(
                    f"--database has an option that its driver does not know: {error}"
                ) from error
            with connecting as connection, connection.begin():
                yield connection

    def close(self) -> None:
        """Close the connections."""
        self._engine.dispose()
