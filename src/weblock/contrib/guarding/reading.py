"""Which statements certainly write nothing. All others are taken for writing."""

from __future__ import annotations

import functools
import re
from enum import Enum
from typing import Final


class Kind(Enum):
    """What a statement does to the data, as far as its text tells."""

    READS = "reads"
    WRITES = "writes"
    """It writes, or may write: an unknown function may do anything."""
    CONTROLS = "controls"
    """It begins or undoes a transaction, is about a savepoint, or changes a setting of the session."""
    COMMITS = "commits"
    """It ends a transaction by itself, so that nothing can check it."""


_FIRST: Final = re.compile(r"[\s(]*(?:(?:--[^\n]*\n|/\*(?s:.*?)\*/)[\s(]*)*([A-Za-z]+)")
_CONTROLS: Final = re.compile("BEGIN|START|ROLLBACK|SAVEPOINT|RELEASE|SET|RESET|PRAGMA|SHOW|USE")
_COMMITS: Final = re.compile("COMMIT|END|PREPARE")
_STATEMENT: Final = re.compile(r"\s+STATEMENT\b", re.IGNORECASE)
"""``SET STATEMENT ... FOR UPDATE ...``, as MariaDB has it."""

_CALL: Final = re.compile(r"([^\s(),=<>!+*/|%:-]+)\s*\(")
_INTO: Final = re.compile(r"\bINTO\b", re.IGNORECASE)
_BEFORE_PARENTHESES: Final = """
all and any array as between by case cast distinct else except exists filter from group having
in intersect join lateral like ilike not on or over partition select some then union using when
where within values limit offset
"""
_FUNCTIONS: Final = """
abs avg bool_and bool_or ceil ceiling char_length coalesce concat concat_ws count
current_timestamp date date_trunc date_part decimal extract floor greatest group_concat
if ifnull iif instr json_extract jsonb_build_object json_object jsonb_agg json_agg least left
length lower lpad ltrim max md5 min mod now numeric nullif position power rank dense_rank
replace right round row_number rpad rtrim sha256 sign sqrt statement_timestamp string_agg strpos
substr substring sum timezone to_char to_date total translate trim trunc typeof unnest upper
varchar char clock_timestamp utc_timestamp curdate year month day hour minute second
"""
_PURE: Final = frozenset((_BEFORE_PARENTHESES + _FUNCTIONS).split())


@functools.lru_cache(maxsize=1024)
def kind_of(sql: str) -> Kind:
    """Return what a statement does; in doubt, that it writes, which costs one check."""
    first = _FIRST.match(sql)
    word = first[1].upper() if first else ""
    rest = sql[first.end() :] if first else ";"
    if ";" in rest.rstrip("; \n"):
        return Kind.WRITES  # Several statements.
    if _COMMITS.fullmatch(word):
        return Kind.COMMITS
    if _CONTROLS.fullmatch(word) and not _STATEMENT.match(rest):
        return Kind.CONTROLS
    if word == "SELECT" and _only_reads(rest):
        return Kind.READS
    return Kind.WRITES


def _only_reads(select: str) -> bool:
    if "/*" in select or "--" in select or _INTO.search(select):  # A comment hides what is called.
        return False
    return all(_is_pure(found[1]) for found in _CALL.finditer(select))


def _is_pure(name: str) -> bool:
    lowered = name.lower()
    return lowered in _PURE or lowered.startswith("django_")
