r"""Paths in Starlette's syntax, and compiled regular expressions: what they match, and how fast.

A path matches in two ways. ``match`` is Starlette's: the path as it is written. ``match_tidied`` is that of
every router that is known: the path has been tidied (``ruleset.tidied``), and a typed placeholder takes
every spelling of a value of its type. Either way takes time in proportion to the length of the path,
whatever the path is.

A framework reads more spellings of a value than Starlette's router does: Pydantic reads ``7.0`` and ``+7``
as the integer 7, Django's ``\d`` matches the digits of every script, and Litestar calls ``int()``.
"""

from __future__ import annotations

import functools
import itertools
import re
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from ...errors import ConfigurationError, InvalidKey

_PLACEHOLDER: Final = re.compile(r"\{([a-zA-Z_][a-zA-Z0-9_]*)(?::([a-zA-Z_][a-zA-Z0-9_]*))?\}")

_OTHER_SYNTAX: Final = re.compile(r"[*\\]|<[^/]*>|/:[A-Za-z_]|\(\?")
"""What stands for placeholders elsewhere: globs, regular expressions, Django and Express."""

_FOREIGN_DIGIT: Final = re.compile(r"[^\D0-9]")

_SAMPLES: Final = 4096
"""Paths that are tried, at most, to see whether one template matches all that another does."""


LONG: Final = 100
"""The characters of a path from which on its segments are compared before a template reads it.

A template reads a segment that a placeholder stands for before it compares the next. With hundreds of
templates that would let a long path keep the event loop for tens of milliseconds.
"""


@dataclass(frozen=True, slots=True)
class Converter:
    """``pattern`` is what Starlette matches, and ``convert`` makes the value that the endpoint sees.

    ``samples`` are values that another path matches only if it matches all values there are.
    ``read`` raises ``ValueError`` for a text that no framework reads as a value of this type. It is
    ``None`` where the text is the value.
    """

    pattern: str
    convert: Callable[[str], object]
    samples: tuple[str, ...]
    read: Callable[[str], object] | None = None


def _read_int(text: str) -> int:
    """Return the integer that Python or Pydantic reads: Pydantic also reads ``7.0`` and ``0__7``."""
    whole, _, fraction = text.strip().replace("_", "").partition(".")
    if fraction.strip("0"):
        raise ValueError(f"{text!r:.80} is no integer")
    return int(whole)


def _read_float(text: str) -> float:
    """Return the number that Python or Pydantic reads: Pydantic also reads ``7._5``."""
    return float(text.replace("_", ""))


# Characters of private use, which no path has for its own text.
_ODD: Final = "\ue0f0"

CONVERTERS: Final = {
    "str": Converter("[^/]+", str, (_ODD, "7")),
    "path": Converter(".*", str, ("", _ODD, f"{_ODD}/{_ODD}", "/")),
    "int": Converter("[0-9]+", int, ("0", "7", "77777777777"), _read_int),
    "float": Converter(r"[0-9]+(?:\.[0-9]+)?", float, ("0", "7", "7.75"), _read_float),
    "uuid": Converter(
        "[0-9a-fA-F]{8}-?[0-9a-fA-F]{4}-?[0-9a-fA-F]{4}-?[0-9a-fA-F]{4}-?[0-9a-fA-F]{12}",
        uuid.UUID,
        (32 * "7", f"{8 * 'a'}-{4 * 'a'}-{4 * 'a'}-{4 * 'a'}-{12 * 'a'}"),
        uuid.UUID,
    ),
}


@dataclass(frozen=True, slots=True)
class Path:
    """The path of a rule: in Starlette's syntax, or a compiled regular expression, which has to match the whole path."""

    text: str
    """As it was written; of a regular expression, the Python expression that makes it."""
    bare: str
    """What was written without its final slash."""
    end: str
    """Its final slash, if it has one."""
    regex: re.Pattern[str]
    names: frozenset[str]
    """The names of its parameters."""
    wide: re.Pattern[str] | None = None
    """Matches tidied paths: it takes any text for a typed placeholder. ``None`` for a regular expression."""
    converters: Mapping[str, Converter] = field(default_factory=dict)
    is_alike: bool = False
    """Whether all routers read a tidy path alike for it: nothing is typed, and no slash ends it."""
    literals: tuple[str | None, ...] = ()
    """The segments; ``None`` for one with a placeholder. Empty if a parameter may have slashes."""

    def match(self, path: str) -> Mapping[str, str | None] | None:
        """Return the parameters as they are spelled in ``path``; ``None`` if it does not match."""
        if len(path) > LONG and not self._has_literals_of(path):
            return None
        found = self.regex.fullmatch(path)
        return None if found is None else found.groupdict()

    def match_tidied(self, path: str) -> Mapping[str, str | None] | None:
        """Return the parameters in a tidied path that some router may take for one of these."""
        if self.wide is None:
            # ``[0-9]`` in the rule may be ``\d`` in the router, or an endpoint's integer.
            digits = _FOREIGN_DIGIT.sub(lambda digit: str(int(digit[0])), path)
            values = "/".join(map(_in_plain_form, digits.split("/")))
            found_in_digits = self.match(digits)
            return self.match(values) if found_in_digits is None else found_in_digits
        if len(path) > LONG and not self._has_literals_of(path):
            return None
        found = self.wide.fullmatch(path)
        with suppress(ValueError):
            for name, value in found.groupdict().items() if found else ():
                if read := self.converters[name].read:
                    read(value)
            return found and found.groupdict()
        return None

    def _has_literals_of(self, path: str) -> bool:
        """Return whether a path has as many segments as this, and each that is no placeholder."""
        if not self.literals:
            return True
        segments = _segments(path)
        return len(segments) == len(self.literals) and all(
            literal in (None, segment)
            for literal, segment in zip(self.literals, segments, strict=True)
        )

    def convert(self, name: str, value: str) -> object:
        """Return the value that the endpoint sees. Raises ``InvalidKey`` if it sees none."""
        try:
            return self.converters[name].convert(value) if self.converters else value
        except ValueError as error:  # Python reads no number of more than 4300 digits.
            raise InvalidKey(f"path {self.text!r} was given {value[:40]!r} as {name!r}") from error

    def covers(self, other: Path) -> bool:
        """Return whether it certainly matches all paths that ``other`` matches."""
        if other.wide is None:
            return self.regex == other.regex
        if self.wide is None and other.names:
            return False
        return all(self.match(path) is not None for path in other.samples())

    def samples(self) -> Iterator[str]:
        """Return paths that a template matches, with every kind of value."""
        literals = _PLACEHOLDER.split(self.text)[::3]
        samples = (converter.samples for converter in self.converters.values())
        for values in itertools.islice(itertools.product(*samples), _SAMPLES):
            pairs = itertools.zip_longest(literals, values, fillvalue="")
            yield "".join(itertools.chain(*pairs))


def path_of(path: str | re.Pattern[str]) -> Path:
    """Return the path of a rule. Raises ``ConfigurationError``."""
    if isinstance(path, str):
        return _template(path)
    pattern: object = getattr(path, "pattern", None)
    if not isinstance(pattern, str):
        raise ConfigurationError(
            f"path {path!r:.80} must be a string in Starlette's syntax, such as"
            " '/items/{item_id}', or a compiled regular expression of a string"
        )
    return Path(
        text=f"re.compile({pattern!r})",
        bare=pattern.removesuffix("$").removesuffix("/"),
        end="/" if pattern.endswith(("/", "/$")) else "",
        regex=path,
        names=frozenset(path.groupindex),
    )


def _template(text: str) -> Path:
    """Parse a path in Starlette's syntax. Raises ``ConfigurationError`` if it cannot be matched quickly."""
    if not text.startswith("/"):
        raise ConfigurationError(f'path {text!r} must start with "/"')
    if "//" in text:
        raise ConfigurationError(
            f"path {text!r} has an empty segment, and routers differ in how many slashes they read"
            " as one: write it with single slashes"
        )
    if found := _OTHER_SYNTAX.search(text):
        raise ConfigurationError(
            f"path {text!r} has {found.group()!r}, which would be matched literally: a"
            " placeholder is {name}, {name:int} or, for what may have slashes, {name:path}. Give a"
            " regular expression, or a path that really has this character, as re.compile(...)"
        )
    given: dict[str, Converter] = {}
    strict: list[str] = []
    wide: list[str] = []
    literals: list[str | None] = []
    for segment in text.split("/"):
        before, *placeholder = _PLACEHOLDER.split(segment)
        if any("{" in part or "}" in part for part in (before, *placeholder[2::3])):
            raise ConfigurationError(
                f"path {text!r} has {segment!r}: a placeholder is {{name}} or {{name:int}}"
            )
        if not placeholder:
            literals.append(segment)
            strict.append(re.escape(segment))
            wide.append(re.escape(segment))
            continue
        if len(placeholder) > 3:
            raise ConfigurationError(
                f"path {text!r} has {segment!r}: a segment has one placeholder, because routers"
                " differ in where they split it. Give a compiled regular expression"
            )
        name, kind, after = placeholder
        if name in given:
            raise ConfigurationError(f"path {text!r} repeats the parameter {name}")
        if (converter := CONVERTERS.get(kind or "str")) is None:
            raise ConfigurationError(
                f"path {text!r} has the converter {kind!r}; available: {', '.join(CONVERTERS)}."
                " For your own converter, give a compiled regular expression as the path"
            )
        if kind == "path" and converter in given.values():
            raise ConfigurationError(
                f"path {text!r} has two placeholders of kind 'path', which are slow to match: use"
                " one, or give a compiled regular expression"
            )
        given[name] = converter
        literals.append(None)
        for patterns, value in (
            (strict, converter.pattern),
            (wide, "[^/]+" if converter.read else converter.pattern),
        ):
            patterns.append(f"{re.escape(before)}(?P<{name}>{value}){re.escape(after)}")
    return Path(
        text=text,
        bare=text.removesuffix("/"),
        end="/" if text.endswith("/") and text != "/" else "",
        regex=re.compile("/".join(strict)),
        names=frozenset(given),
        wide=re.compile("/".join(wide)),
        converters=given,
        is_alike=strict == wide and segment != "",
        literals=() if CONVERTERS["path"] in given.values() else tuple(literals),
    )


@functools.lru_cache(maxsize=16)
def _segments(path: str) -> tuple[str, ...]:
    """Return the segments of a path, which every template asks for."""
    return tuple(path.split("/"))


def _in_plain_form(segment: str) -> str:
    """Return an integer or a UUID as it is usually spelled, and any other segment as it is."""
    for kind in ("int", "uuid"):
        if read := CONVERTERS[kind].read:
            with suppress(ValueError):
                return str(read(segment))
    return segment
