"""The stored answers of an application's database, for operators."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import Connection, MetaData, create_engine, delete, select
from sqlalchemy.dialects import registry
from sqlalchemy.exc import ArgumentError, DBAPIError
from sqlalchemy.schema import CreateIndex, CreateTable

from ...errors import ConfigurationError
from ..kit.idempotency import Stored, reading_answers
from .idempotency import NO_TABLE, answer_table

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
