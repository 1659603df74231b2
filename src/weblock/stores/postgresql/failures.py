"""What PostgreSQL's errors mean for a caller, and for the connection that they came on."""

from __future__ import annotations

from typing import Final

import psycopg
from psycopg import errors

from ...errors import ConfigurationError, EngineUnavailable
from ..transport import failures
from .settings import Settings

LOST_RACE: Final = (errors.SerializationFailure, errors.DeadlockDetected)
"""Another transaction was quicker: the statement is retried."""

HARMLESS: Final = (*LOST_RACE, errors.LockNotAvailable, errors.QueryCanceled)
"""Errors after which a connection is as good as before."""


class OtherFormat(failures.Unfit):
    """Another version of weblock has made the table."""


class NotCreated(failures.Unfit):
    """The table is missing, and the user has no right to create it."""


ABOUT_THE_TABLE: Final = (
    errors.UndefinedTable,
    errors.InvalidSchemaName,
    errors.UndefinedColumn,
    errors.InsufficientPrivilege,
    OtherFormat,
    NotCreated,
)
"""Waiting does not help: an operator has to do something about the table, or the rights to it."""


class Missing(EngineUnavailable):
    """The table is missing, or of another format, or its rights are missing: it keeps no leases."""


def unavailable(settings: Settings, error: BaseException) -> EngineUnavailable:
    """Return the error for a caller, without its cause."""
    kind = Missing if isinstance(error, ABOUT_THE_TABLE) else EngineUnavailable
    return kind(settings.name, explained(settings, error))


def as_setting(settings: Settings, error: Missing) -> ConfigurationError:
    """Return the error for a table that cannot be used."""
    return ConfigurationError(f"{settings.name}: {error.reason}")


def explained(settings: Settings, error: BaseException) -> str:
    """Return what went wrong, for a reader, with the remedy where there is one."""
    # The text of an error also quotes the statement.
    text = isinstance(error, psycopg.Error) and error.diag.message_primary
    match error:
        case errors.UndefinedTable() | errors.InvalidSchemaName():
            said = (
                f"{text}: create it with what 'weblock ddl' prints, or let weblock create it with"
                " ?create=true in the URL"
            )
        case errors.UndefinedColumn():
            said = (
                f"{text}: it has other columns than this release of weblock needs: stop all"
                " processes that lock here for the longest ttl, drop it, and create it again"
            )
        case errors.InsufficientPrivilege() if "pg_control_system" in str(error):
            said = f"{text}: GRANT EXECUTE ON FUNCTION pg_control_system() to its user"
        case errors.InsufficientPrivilege():
            said = f"{text}: GRANT SELECT, INSERT, UPDATE, DELETE ON {settings.table} to its user"
        case errors.LockNotAvailable():
            said = "another transaction has kept the row of the key locked"
        case errors.QueryCanceled():
            said = failures.explained(TimeoutError(), timeout=settings.timeout)
        case errors.ReadOnlySqlTransaction() | errors.ObjectNotInPrerequisiteState():
            said = (
                f"it is a replica, or read-only ({text}): name the primary, or all hosts with"
                " target_session_attrs=read-write"
            )
        case errors.DiskFull():
            said = f"its disk is full, and it grants and renews no leases: {text}"
        case _:
            said = failures.explained(error, timeout=settings.timeout)
    return said
