"""What PostgreSQL's errors mean for a caller, and for the connection that they came on."""

from __future__ import annotations

from typing import Final

import psycopg
from psycopg import errors

from ...errors import ConfigurationError, EngineUnavailable
from .settings import Settings

LOST_RACE: Final = (errors.SerializationFailure, errors.DeadlockDetected)
"""Another transaction was quicker: the statement is retried."""

HARMLESS: Final = (*LOST_RACE, errors.LockNotAvailable, errors.QueryCanceled)
"""Errors after which a connection is as good as before."""


TOO_MANY: Final = "too many callers change the same key at once"
"""Why a caller did not get to change a key."""


class Unfit(psycopg.OperationalError):
    """The server, or the libpq here, lacks what the engine needs; the message says what."""


class OtherFormat(Unfit):
    """Another version of weblock has made the table."""


class Missing(EngineUnavailable):
    """The table is missing, or of another format, or its rights are missing: it keeps no leases."""


def unavailable(settings: Settings, error: BaseException) -> EngineUnavailable:
    """Return the error for a caller, without its cause."""
    kind = Missing if remedy_for(settings, error) else EngineUnavailable
    return kind(settings.name, explained(settings, error))


def as_setting(settings: Settings, error: Missing) -> ConfigurationError:
    """Return the error for a table that cannot be used: waiting does not help."""
    return ConfigurationError(f"{settings.name}: {error.reason}")


def remedy_for(settings: Settings, error: BaseException) -> str:
    """Return what an operator has to do about the table; an empty string for other errors."""
    match error:
        case errors.UndefinedTable() | errors.InvalidSchemaName():
            return (
                "create it with what 'weblock ddl' prints, or let weblock create it with"
                " ?create=true in the URL"
            )
        case OtherFormat():
            return "stop all that lock here for the longest ttl, drop it, and create it anew"
        case errors.UndefinedColumn():
            return (
                "it has other columns than this release of weblock needs: stop all that lock here for"
                " the longest ttl, drop it, and create it anew"
            )
        case errors.InsufficientPrivilege() if "pg_control_system" in str(error):
            return "GRANT EXECUTE ON FUNCTION pg_control_system() to its user"
        case errors.InsufficientPrivilege():
            return f"GRANT SELECT, INSERT, UPDATE, DELETE ON {settings.table} to its user"
    return ""


def explained(settings: Settings, error: BaseException) -> str:
    """Return what went wrong, for a reader, with the remedy where there is one."""
    text = " ".join(str(error).split()) or type(error).__name__
    if remedy := remedy_for(settings, error):
        return f"{text}: {remedy}"
    match error:
        case errors.LockNotAvailable():
            return "another transaction has kept the row of the key locked"
        case errors.QueryCanceled() | TimeoutError():
            return f"it did not answer within {settings.timeout:g} s"
        case errors.ReadOnlySqlTransaction() | errors.ObjectNotInPrerequisiteState():
            return (
                f"it is a replica, or read-only ({text}): name the primary, or all hosts with"
                " target_session_attrs=read-write"
            )
        case errors.DiskFull():
            return f"its disk is full, and it takes and renews no leases: {text}"
    return text
