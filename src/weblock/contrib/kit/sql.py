"""The guard's statements in each database's words, what its errors mean, and what a statement does.

What does not certainly read is taken for writing.
"""

from __future__ import annotations

import re
from enum import Enum
from functools import cache, lru_cache
from typing import Final, NamedTuple

from ...errors import ConfigurationError

TABLE: Final = "weblock_fence"

LENGTHS: Final = {"digest": 64, "lock_key": 600, "token": 32}
"""The lengths of the text columns; a key with its namespace has up to 577 characters."""

LOCK_WAIT: Final = 5.0
"""Seconds to wait for a former holder that was checked and has not committed yet."""


LOOKING: Final = "SELECT fence, token FROM weblock_fence WHERE digest = :digest"
_LOCKED: Final = f"{LOOKING} FOR UPDATE"

_UPSERT: Final = """
ON CONFLICT (digest) DO UPDATE
SET fence = %s(weblock_fence.fence, excluded.fence), token = excluded.token, raised_at = excluded.raised_at
WHERE weblock_fence.fence < CAST(:below AS bigint) OR weblock_fence.token = excluded.token"""

# Assignments are made from left to right: the fence is changed last.
_MYSQL: Final = """
INSERT INTO weblock_fence (digest, lock_key, fence, token, raised_at)
VALUES (:digest, :lock_key, :fence, :token, UTC_TIMESTAMP(6))
ON DUPLICATE KEY UPDATE
    raised_at = IF(fence < :below OR token = :token, UTC_TIMESTAMP(6), raised_at),
    token = IF(fence < :below, :token, token),
    fence = GREATEST(fence, :fence)"""

_SWEEPING_MYSQL: Final = """
DELETE FROM weblock_fence WHERE raised_at < UTC_TIMESTAMP(6) - INTERVAL 1 DAY LIMIT 1000"""


class Dialect(NamedTuple):
    """The statements, with parameters as ``:digest``, and as ``Mark.values`` has them.

    ``raising`` is one statement: one round trip, and one transaction. ``certain`` are the numbers of rows
    after which it is certain that it took effect; if it is not certain, ``LOOKING`` finds out.
    """

    raising: str
    certain: frozenset[int]
    checking: str
    sweeping: str


_DIALECTS: Final = {
    "postgresql": Dialect(
        # The limit is set by the statement that it is for, and ends with it.
        """
INSERT INTO weblock_fence (digest, lock_key, fence, token, raised_at)
SELECT CAST(:digest AS varchar), CAST(:lock_key AS varchar), CAST(:fence AS bigint),
    CAST(:token AS varchar), clock_timestamp()
FROM (SELECT set_config('lock_timeout', '{milliseconds}', true)) AS waits"""
        + _UPSERT % "GREATEST",
        frozenset({1}),
        _LOCKED,
        """
DELETE FROM weblock_fence WHERE digest IN (
    SELECT digest FROM weblock_fence WHERE raised_at < clock_timestamp() - interval '1 day'
    LIMIT 1000 FOR UPDATE SKIP LOCKED)""",
    ),
    "sqlite": Dialect(
        """
INSERT INTO weblock_fence (digest, lock_key, fence, token, raised_at)
VALUES (:digest, :lock_key, :fence, :token, CURRENT_TIMESTAMP)"""
        + _UPSERT % "MAX",
        frozenset({1}),
        # What writes has the whole database for itself until its COMMIT: a plain SELECT is enough.
        LOOKING,
        """
DELETE FROM weblock_fence WHERE digest IN (
    SELECT digest FROM weblock_fence WHERE raised_at < datetime('now', '-1 day') LIMIT 1000)""",
    ),
    # Of MySQL, 1 is a new row, or one that was left as it is.
    "mysql": Dialect(_MYSQL, frozenset({2}), _LOCKED, _SWEEPING_MYSQL),
    "mariadb": Dialect(
        # It counts whole seconds; 0 does not wait.
        f"SET STATEMENT innodb_lock_wait_timeout = {{seconds}} FOR{_MYSQL}",
        frozenset({2}),
        _LOCKED,
        _SWEEPING_MYSQL,
    ),
}


@cache
def dialect_of(name: str, *, wait: float = LOCK_WAIT) -> Dialect:
    """Return the statements for a database. Raises ``ConfigurationError`` if unknown."""
    if name not in _DIALECTS:
        raise ConfigurationError(
            f"the guard in the database knows {', '.join(_DIALECTS)}, not {name!r:.40}: leave it"
            " off for that database",
            code="unsuitable_guard",
        )
    found = _DIALECTS[name]
    raising = found.raising.format(milliseconds=f"{1000 * wait:.0f}", seconds=round(wait))
    return found._replace(raising=raising)


class Trouble(Enum):
    """What a database's error means to the guard."""

    CONFLICT = "conflict"
    """Another transaction came first: a serialization error or a deadlock."""
    LOCKED = "locked"
    """A row, or the whole database, was locked for longer than the limit."""
    READ_ONLY = "read-only"
    """The transaction must not write, and so has not."""
    NO_TABLE = "no table"
    """The guard's table is missing."""
    NO_RIGHT = "no right"
    """The database's user must not do what the guard does."""


_BY_STATE: Final = {
    "40001": Trouble.CONFLICT,
    "40P01": Trouble.CONFLICT,
    "55P03": Trouble.LOCKED,
    "25006": Trouble.READ_ONLY,
    "42P01": Trouble.NO_TABLE,
    "42501": Trouble.NO_RIGHT,
}
_BY_MYSQL: Final = {
    1020: Trouble.CONFLICT,  # innodb_snapshot_isolation
    1213: Trouble.CONFLICT,
    1205: Trouble.LOCKED,
    1792: Trouble.READ_ONLY,
    1146: Trouble.NO_TABLE,
}
_BY_SQLITE: Final = {5: Trouble.LOCKED, 6: Trouble.LOCKED, 517: Trouble.CONFLICT}


NO_RIGHT: Final = (
    "the guard lacks rights in the database: GRANT SELECT, INSERT, UPDATE, DELETE ON"
    f" {TABLE} TO your application's user"
)


def trouble_of(error: BaseException) -> Trouble | None:
    """Return what a database's error means; ``None`` for all others, such as an outage.

    The driver's error may be one that a framework has chained to its own.
    """
    each: BaseException | None = error
    while each is not None:
        state = getattr(each, "sqlstate", None) or getattr(each, "pgcode", None)
        if state in _BY_STATE:
            return _BY_STATE[state]
        if (code := getattr(each, "sqlite_errorcode", None)) is not None:
            missing = Trouble.NO_TABLE if "no such table: weblock_" in str(each) else None
            return _BY_SQLITE.get(code, _BY_SQLITE.get(code & 0xFF, missing))
        if each.args and type(each.args[0]) is int and each.args[0] in _BY_MYSQL:
            return _BY_MYSQL[each.args[0]]
        each = getattr(each, "orig", None) or each.__cause__
    return None


REFRESH: Final = 12 * 3600.0
"""Seconds after which a section writes its row again, before others delete it for being a day old."""

SWEEPS: Final = 1 / 500
"""The share of sections that also delete rows that were not used for a day: at most 1000."""


class Kind(Enum):
    """What a statement does to the data, as far as its text tells."""

    READS = "reads"
    WRITES = "writes"
    """It writes, or may write: an unknown function may do anything."""
    CONTROLS = "controls"
    """It begins or undoes a transaction, is about a savepoint, or changes a setting of the session."""
    COMMITS = "commits"
    """It ends a transaction by itself, so that nothing can check it."""


_SKIPPED: Final = re.compile(
    r"""(?<!\w)[eE]'(?:[^'\\]|\\.)*' | '[^']*' | "[^"]*" | `[^`]*` | \$(\w*)\$.*?\$\1\$
    | --[^\n]* | /\*.*?\*/""",
    re.DOTALL | re.VERBOSE,
)
_SKIPPED_BY_MYSQL: Final = re.compile(
    r"""'(?:[^'\\]|\\.)*' | "(?:[^"\\]|\\.)*" | `[^`]*` | --(?=\s)[^\n]* | \#[^\n]*
    | /\*(?!M?!).*?\*/""",
    re.DOTALL | re.VERBOSE,
)
"""Names in quotes, strings and comments; MySQL and MariaDB execute what is in ``/*! ... */``."""

_FIRST: Final = re.compile(r"[\s(]*([A-Za-z]+)")
_CONTROLS: Final = re.compile("BEGIN|START|ROLLBACK|SAVEPOINT|RELEASE|SET|RESET|PRAGMA|SHOW|USE")
_COMMITS: Final = re.compile(r"[\s(]*(?:COMMIT|END|PREPARE\s+TRANSACTION)\b", re.IGNORECASE)
_STORED: Final = re.compile(r"user_version|application_id|schema_version", re.IGNORECASE)
"""What a PRAGMA of SQLite writes into the database."""

_STATEMENT: Final = re.compile(r"\A[\s(]*SET\s+STATEMENT\b.*?\bFOR\b", re.IGNORECASE | re.DOTALL)
"""``SET STATEMENT ... FOR UPDATE ...``, as MariaDB has it."""

_COMMITS_IN_MYSQL: Final = re.compile(
    r"""(?![\s(]*(?:
        SELECT|INSERT|UPDATE|DELETE|REPLACE|WITH|VALUES|TABLE|DO|LOAD|HANDLER|EXPLAIN|DESCRIBE|DESC
        |ROLLBACK|SAVEPOINT|RELEASE|SHOW|USE|XA
        |SET(?!.*(?:AUTOCOMMIT|PASSWORD))
        |CREATE\s+(?:OR\s+REPLACE\s+)?TEMPORARY|DROP\s+TEMPORARY
    )\b)""",
    re.IGNORECASE | re.VERBOSE | re.DOTALL,
)
"""MySQL and MariaDB commit before most statements that are not about rows; a procedure may commit, too."""

_CALL: Final = re.compile(r"([^\s(),=<>!+*/|%:-]+)\s*\(")
_INTO: Final = re.compile(r"\bINTO\b", re.IGNORECASE)
_BEFORE_PARENTHESES: Final = """
all and any array as between by case cast distinct else except exists filter from group having
in intersect join lateral like ilike not on or over partition select some then union using when
where within values limit offset
"""
_FUNCTIONS: Final = """
abs avg bool_and bool_or ceil ceiling char_length coalesce concat concat_ws convert_to count
current_timestamp date date_trunc date_part decimal encode extract floor greatest group_concat
if ifnull iif instr json_extract jsonb_build_object json_object jsonb_agg json_agg least left
length lower lpad ltrim max md5 min mod now numeric nullif position power rank dense_rank
replace right round row_number rpad rtrim sha256 sign sqrt statement_timestamp string_agg strpos
substr substring sum timezone to_char to_date total translate trim trunc typeof unnest upper
varchar char clock_timestamp utc_timestamp curdate year month day hour minute second
"""
_PURE: Final = frozenset((_BEFORE_PARENTHESES + _FUNCTIONS).split())


def refuse_commit(sql: str) -> ConfigurationError:
    """Return the error for a statement that commits by itself in a guarded section."""
    return ConfigurationError(
        f"under a guard, {sql!r:.100} is rejected, because it ends the transaction before"
        " the guard could check it: commit through the session, the connection or atomic(), and run"
        " statements that commit implicitly (on MySQL and MariaDB these are also DDL, TRUNCATE,"
        " CALL, LOCK TABLES and SET autocommit) outside of the guarded section",
        code="unchecked_commit",
    )


@lru_cache(maxsize=1024)
def kind_of(sql: str, *, mysql: bool = False) -> Kind:
    """Return what a statement does; in doubt, that it writes, which costs one check.

    MySQL and MariaDB commit before many statements, such as those that define tables.
    """
    plain = (_SKIPPED_BY_MYSQL if mysql else _SKIPPED).sub(_in_place_of, sql)
    kinds = {_kind_of_one(part, mysql=mysql) for part in plain.split(";") if part.strip()}
    if Kind.COMMITS in kinds:
        return Kind.COMMITS
    return kinds.pop() if len(kinds) == 1 else Kind.WRITES


def _in_place_of(skipped: re.Match[str]) -> str:
    """Return what stands for a name or string in quotes, or for a comment."""
    first = skipped[0][0]
    return " " if first in "-/#" else f"{first}{first}"


def _kind_of_one(sql: str, *, mysql: bool) -> Kind:
    sql = _STATEMENT.sub("", sql, count=1)
    first = _FIRST.match(sql)
    word, rest = (first[1].upper(), sql[first.end() :]) if first else ("", "")
    if (_COMMITS_IN_MYSQL if mysql else _COMMITS).match(sql):
        return Kind.COMMITS
    if word == "SELECT" and _only_reads(rest):
        return Kind.READS
    is_control = _CONTROLS.fullmatch(word) or (mysql and word == "XA")
    writes = (word == "SET" and not _only_reads(rest)) or (
        word == "PRAGMA" and _STORED.search(rest)
    )
    return Kind.CONTROLS if is_control and not writes else Kind.WRITES


def _only_reads(text: str) -> bool:
    if _INTO.search(text):
        return False
    return all(
        found[1].lower() in _PURE or found[1].lower().startswith("django_")
        for found in _CALL.finditer(text)
    )
