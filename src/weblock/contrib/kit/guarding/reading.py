"""What a statement does, by its text. What does not certainly read is taken for writing."""

from __future__ import annotations

import functools
import re
from enum import Enum
from typing import Final

from ....errors import ConfigurationError


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


@functools.lru_cache(maxsize=1024)
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
