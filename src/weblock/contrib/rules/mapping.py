"""Rules from plain data: TOML, JSON in the environment, a framework's settings."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from ..._options import HoldOptions
from ...errors import ConfigurationError
from .rule import Rule

_OPTIONS: Final = tuple(HoldOptions.__annotations__)
_FIELDS: Final = ("path", "regex", "key", "methods", "exempt", *_OPTIONS)


def named_rules(rules: object, name: str) -> Iterator[tuple[str, Rule]]:
    """Return the rules, each with its name for errors. Raises ``ConfigurationError``."""
    if isinstance(rules, str):
        rules = _of_json(rules, name)
    for label, entry in _entries(rules, name):
        yield label, entry if isinstance(entry, Rule) else _rule(label, entry)


def _of_json(text: str, name: str) -> object:
    try:
        return json.loads(text)
    except ValueError as error:
        raise ConfigurationError(f"{name} is not JSON: {error}") from error


def _entries(rules: object, name: str) -> Iterator[tuple[str, object]]:
    if isinstance(rules, Mapping):
        yield from ((f"{name}.{label}", entry) for label, entry in rules.items())
    elif isinstance(rules, list | tuple):
        yield from ((f"{name}[{number}]", entry) for number, entry in enumerate(rules))
    else:
        raise ConfigurationError(
            f"{name} is {rules!r:.80}: give a list of rules, or a mapping of names to rules"
        )


def _rule(label: str, entry: object) -> Rule:
    if not isinstance(entry, Mapping):
        raise ConfigurationError(
            f"{label} is {entry!r:.80}: give a Rule, or a mapping with path and key"
        )
    if strange := [field for field in entry if field not in _FIELDS]:
        raise ConfigurationError(
            f"{label} has {strange[0]!r:.80}, which no rule has; there is {', '.join(_FIELDS)}"
        )
    fields: dict[str, Any] = {field: _without_end(field, value) for field, value in entry.items()}
    try:
        return Rule(_path(fields), **fields)
    except ConfigurationError as error:
        raise ConfigurationError(f"{label}: {error}") from error


def _path(fields: dict[str, Any]) -> str | re.Pattern[str]:
    """Remove the path, or the regular expression, from the fields and return it."""
    if ("path" in fields) == ("regex" in fields):
        raise ConfigurationError("give either path or regex")
    if "path" in fields:
        path: str = fields.pop("path")
        return path
    try:
        return re.compile(fields.pop("regex"))
    except (re.error, TypeError) as error:
        raise ConfigurationError(f"regex cannot be read: {error}") from error


def _without_end(field: str, value: object) -> object:
    """Replace infinity by ``None``: TOML has no null."""
    return None if field in ("wait", "max_hold") and value == math.inf else value
