"""Paths in Starlette's syntax, and compiled regular expressions: what they match, and how fast.

A template matches what Starlette's router matches, a newline at the end included, and takes time
in proportion to the length of the path, whatever the path is.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from ...errors import ConfigurationError, InvalidKey
from .converters import CONVERTERS, Converter
from .overlap import ANYTHING, SEGMENT, Shape, shape_of_regex

_PLACEHOLDER: Final = re.compile(r"\{([a-zA-Z_][a-zA-Z0-9_]*)(?::([a-zA-Z_][a-zA-Z0-9_]*))?\}")

_OTHER_SYNTAX: Final = re.compile(r"[*\\]|<[^/]*>|/:[A-Za-z_]|\(\?")
"""What stands for placeholders elsewhere: globs, regular expressions, Django and Express."""

_NO_ASCII_DIGIT: Final = re.compile(r"[^\D0-9]")

_SAMPLES: Final = 4096
"""Paths that are tried, at most, to see whether one template matches all that another does."""


LONG: Final = 100
"""The characters of a path from which on its segments are compared before a template reads it.

A template reads a segment that a placeholder stands for before it compares the next. With hundreds of
templates that would let a long path keep the event loop for tens of milliseconds.
"""


class Path(Protocol):
    """Which paths a rule is about."""

    @property
    def text(self) -> str:
        """Its text, for messages."""

    @property
    def names(self) -> frozenset[str]:
        """The names of its parameters."""

    def match(self, path: str) -> Mapping[str, str | None] | None:
        """Return the parameters as they are spelled in ``path``; ``None`` if it does not match."""

    @property
    def is_lenient(self) -> bool:
        """Whether ``match_doubtful`` may match a path in ASCII."""

    def match_doubtful(self, path: str) -> Mapping[str, str | None] | None:
        r"""The parameters in a ``path`` that does not match, but that another router may take for one.

        Django's ``\d`` are digits of every script, and Litestar reads what ``int()`` reads.
        """

    def convert(self, name: str, value: str) -> object:
        """Return the value that the endpoint sees. Raises ``InvalidKey`` if it sees none."""

    def is_spelled(self, name: str) -> bool:
        """Return whether a parameter is text that may spell one value in many ways."""

    @property
    def below_mounts(self) -> Iterable[Path]:
        """Return the paths that a router mounted along the way may see."""

    def covers(self, other: Path) -> bool:
        """Return whether it certainly matches all paths that ``other`` matches."""

    @property
    def shape(self) -> Shape:
        """Return its literal text, with markers for other text, for ``may_meet``."""


@dataclass(frozen=True, slots=True)
class PathTemplate:
    """A path in Starlette's syntax: ``/shops/{shop}/items/{item_id:int}``."""

    text: str
    converters: Mapping[str, Converter]
    regex: re.Pattern[str]
    lenient: re.Pattern[str] | None
    below_mounts: tuple[PathTemplate, ...]
    literals: tuple[str | None, ...]
    """The segments; ``None`` for one with a placeholder. Empty if one placeholder may have slashes."""

    @classmethod
    def parse(cls, text: str) -> PathTemplate:
        """Parse a template. Raises ``ConfigurationError`` if it cannot be matched quickly."""
        if not text.startswith("/"):
            raise ConfigurationError(f'path {text!r} must start with "/"')
        if "//" in text:
            raise ConfigurationError(
                f"path {text!r} has an empty segment, and routers differ in how many slashes they read"
                " as one: write it with single slashes, which match several, too"
            )
        if found := _OTHER_SYNTAX.search(text):
            raise ConfigurationError(
                f"path {text!r} has {found.group()!r}, which would be matched as it stands: a"
                " placeholder is {name}, {name:int} or, for what may have slashes, {name:path}. Give a"
                " regular expression, or a path that really has this character, as re.compile(...)"
            )
        starts = [each.start() for each in re.finditer("/", text)]
        # Read here, once: a request must not pay for it, whatever its path is.
        return cls._parsed(text, tuple(cls._parsed(text[start:], ()) for start in starts[1:]))

    @classmethod
    def _parsed(cls, text: str, below_mounts: tuple[PathTemplate, ...]) -> PathTemplate:
        segments = [_Segment.parse(text, segment) for segment in text.split("/")]
        placeholders = [each for segment in segments for each in segment.placeholders]
        _check(text, placeholders)
        strict, lenient = (
            "/".join(patterns)
            for patterns in zip(*((each.pattern, each.lenient) for each in segments), strict=True)
        )
        return cls(
            text,
            dict(placeholders),
            re.compile(f"^{strict}$"),
            None if lenient == strict else re.compile(f"^{lenient}$"),
            below_mounts,
            _literals(text, segments),
        )

    @property
    def names(self) -> frozenset[str]:
        return frozenset(self.converters)

    def match(self, path: str) -> Mapping[str, str | None] | None:
        if len(path) > LONG and not self._has_literals_of(path):
            return None
        found = self.regex.match(path)  # Neither fullmatch nor \Z: as Starlette has it.
        return None if found is None else found.groupdict()

    @property
    def is_lenient(self) -> bool:
        return self.lenient is not None

    def match_doubtful(self, path: str) -> Mapping[str, str | None] | None:
        if self.lenient is None or (len(path) > LONG and not self._has_literals_of(path)):
            return None
        found = self.lenient.match(path)
        if found is None:
            return None
        try:
            for name, value in found.groupdict().items():
                self.converters[name].convert(value)
        except ValueError:
            return None
        return found.groupdict()

    def _has_literals_of(self, path: str) -> bool:
        """Return whether a path has as many segments as this, and each that is not a placeholder."""
        if not self.literals:
            return True
        segments = _segments(path)
        if len(segments) != len(self.literals):
            return False
        for literal, segment in zip(self.literals, segments, strict=True):
            if literal is not None and literal != segment:
                return False
        return True

    def convert(self, name: str, value: str) -> object:
        try:
            return self.converters[name].convert(value)
        except ValueError as error:  # Python reads no number of more than 4300 digits.
            raise InvalidKey(f"path {self.text!r} was given {value[:40]!r} as {name!r}") from error

    def is_spelled(self, name: str) -> bool:
        return self.converters[name] is CONVERTERS["str"]

    def covers(self, other: Path) -> bool:
        if not isinstance(other, PathTemplate):
            return False
        return all(self.match(path) is not None for path in other.samples())

    @property
    def shape(self) -> Shape:
        literals = _PLACEHOLDER.split(self.text)[::3]
        shape: list[str] = [*literals[0]]
        for converter, literal in zip(self.converters.values(), literals[1:], strict=True):
            shape.append(ANYTHING if converter is CONVERTERS["path"] else SEGMENT)
            shape += literal
        return tuple(shape)

    def samples(self) -> Iterator[str]:
        """Return paths that it matches, with every kind of value."""
        literals = _PLACEHOLDER.split(self.text)[::3]
        samples = (converter.samples for converter in self.converters.values())
        for values in itertools.islice(itertools.product(*samples), _SAMPLES):
            pairs = itertools.zip_longest(literals, values, fillvalue="")
            yield "".join(itertools.chain(*pairs))


@dataclass(frozen=True, slots=True)
class PathRegex:
    """A compiled regular expression, which has to match the whole path."""

    regex: re.Pattern[str]

    @property
    def text(self) -> str:
        return f"re.compile({self.regex.pattern!r})"

    @property
    def names(self) -> frozenset[str]:
        return frozenset(self.regex.groupindex)

    def match(self, path: str) -> Mapping[str, str | None] | None:
        found = self.regex.fullmatch(path)
        if found is None and path.endswith("\n"):
            # Routers that end their patterns with "$", as Starlette and Django do, do not see it.
            found = self.regex.fullmatch(path[:-1])
        return None if found is None else found.groupdict()

    is_lenient = False

    def match_doubtful(self, path: str) -> Mapping[str, str | None] | None:
        if path.isascii():
            return None
        return self.match(_NO_ASCII_DIGIT.sub(lambda digit: str(int(digit[0])), path))

    def convert(self, name: str, value: str) -> object:  # noqa: ARG002
        return value

    def is_spelled(self, name: str) -> bool:
        return name in self.names

    @property
    def below_mounts(self) -> Iterable[Path]:
        return ()

    def covers(self, other: Path) -> bool:
        if isinstance(other, PathTemplate) and not other.names:
            return self.match(other.text) is not None
        return isinstance(other, PathRegex) and other.regex == self.regex

    @property
    def shape(self) -> Shape:
        return shape_of_regex(self.regex.pattern)


def path_of(path: str | re.Pattern[str]) -> Path:
    """Return the path of a rule. Raises ``ConfigurationError``."""
    if isinstance(path, str):
        return PathTemplate.parse(path)
    if isinstance(getattr(path, "pattern", None), str):
        return PathRegex(path)
    raise ConfigurationError(
        f"path {path!r:.80} must be a string in Starlette's syntax, such as '/items/{{item_id}}',"
        " or a compiled regular expression of a string"
    )


@functools.lru_cache(maxsize=16)
def _segments(path: str) -> tuple[str, ...]:
    """Return the segments of a path, which every template asks for; a newline ends the last, as ``$`` does."""
    return tuple(path.removesuffix("\n").split("/"))


def _literals(text: str, segments: list[_Segment]) -> tuple[str | None, ...]:
    placeholders = [each for segment in segments for each in segment.placeholders]
    if any(converter is CONVERTERS["path"] for _, converter in placeholders):
        return ()
    texts = text.split("/")
    return tuple(
        None if segment.placeholders else each
        for each, segment in zip(texts, segments, strict=True)
    )


@dataclass(frozen=True, slots=True)
class _Segment:
    placeholders: list[tuple[str, Converter]]
    pattern: str
    lenient: str

    @classmethod
    def parse(cls, path: str, text: str) -> _Segment:
        literals, names, kinds = (_PLACEHOLDER.split(text)[start::3] for start in range(3))
        for literal in literals:
            if "{" in literal or "}" in literal:
                raise ConfigurationError(
                    f"path {path!r} has {text!r}: a placeholder is {{name}} or {{name:int}}"
                )
        converters = [_converter(path, kind or "str") for kind in kinds]
        _check_speed(path, text, literals, converters)
        places = list(zip(names, converters, strict=True))
        strict = [converter.pattern for converter in converters]
        if len(converters) > 1:
            lenient = [each.beside or each.pattern for each in converters]
        else:
            lenient = [each.lenient or each.pattern for each in converters]
        patterns = (_pattern(names, literals, values) for values in (strict, lenient))
        return cls(places, *patterns)


def _pattern(names: list[str], literals: list[str], values: list[str]) -> str:
    pieces = [re.escape(literals[0])]
    for name, value, literal in zip(names, values, literals[1:], strict=True):
        pieces.append(f"(?P<{name}>{value}){re.escape(literal)}")
    pattern = "".join(pieces)
    # It ends where the segment does, and nothing after it can make it split otherwise.
    return pattern if len(names) < 2 else f"(?>{pattern}(?=/|$))"


def _converter(path: str, kind: str) -> Converter:
    if kind not in CONVERTERS:
        raise ConfigurationError(
            f"path {path!r} has the converter {kind!r}; there is {', '.join(CONVERTERS)}."
            " For one of your own, give a compiled regular expression as the path"
        )
    return CONVERTERS[kind]


def _check(path: str, placeholders: list[tuple[str, Converter]]) -> None:
    names = [name for name, _ in placeholders]
    if twice := {name for name in names if names.count(name) > 1}:
        raise ConfigurationError(f"path {path!r} repeats the parameter {', '.join(sorted(twice))}")
    if sum(converter is CONVERTERS["path"] for _, converter in placeholders) > 1:
        raise ConfigurationError(
            f"path {path!r} has two placeholders of kind 'path', which takes long to match; have"
            " one, or give a compiled regular expression"
        )


def _check_speed(path: str, text: str, literals: list[str], converters: list[Converter]) -> None:
    """Refuses a segment that could be split at many places, where each were tried in turn.

    Placeholders are told apart by the character between them. Only the last may come after one
    that can have that character itself: it takes what is left, so the first split that is tried
    is right, or what it takes ends before the next, so that no character is looked at twice.
    """
    separators = literals[1:-1]
    for number, separator in enumerate(separators):
        before, after = converters[number : number + 2]
        told_apart = separator and not before.may_have(separator[0])
        is_last = number == len(separators) - 1 and not literals[-1]
        takes_the_rest = after is CONVERTERS["str"]
        stops = separator and not after.may_have(separator[0])
        is_path = CONVERTERS["path"] in (before, after)
        if is_path or not (told_apart or (is_last and separator and (takes_the_rest or stops))):
            raise ConfigurationError(
                f"path {path!r} has {text!r}, which takes long to match: between two placeholders"
                " stands a character that the first cannot have, as in"
                " '{year:int}-{month:int}', unless they are the last of their segment, as in"
                " '{name}.{ext}'. Or give a compiled regular expression"
            )
