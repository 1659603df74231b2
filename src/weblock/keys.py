"""Keys, and the templates that they are filled in from.

A handler works on a value: the row with the number 7. A URL may spell that value in many ways
(``7``, ``07``, ``+7``, digits of another script), and so may a type (``Decimal("1.5")`` and
``Decimal("1.50")``). A key made of the spelling would lock one row under several names, and then
two requests for the same row would run at the same time. So each value has one text in a key, which
``canonical`` returns.
"""

from __future__ import annotations

import datetime as dt
import enum
import functools
import inspect
import re
import sys
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from types import MappingProxyType
from typing import Final, Self

from .errors import ConfigurationError, InvalidKey

MAX_LENGTH: Final = 512

_FORBIDDEN = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff\u2028\u2029]")
_PLACEHOLDER = re.compile(r"\{([^{}]*)\}")
_NAME = re.compile(
    r"([A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z_][A-Za-z0-9_-]*)?|0|[1-9][0-9]?)(?::([a-z]+))?"
)
_UNRESERVED: Final = "-._~"
_KINDS: Final = ("path", "query", "header", "cookie")

MISSING: Final = "%none"
"""The text of ``None``. No value has it: a percent sign is encoded, as a percent sign and a number."""


_ADDRESS: Final = re.compile(r" at 0x[0-9A-Fa-f]+\b")
"""What the text of an object contains whose class defines no text, and the text of a function."""

_SOME_DAY: Final = dt.date(2000, 1, 2)
_FIRST: Final = dt.datetime.min.replace(tzinfo=dt.UTC)

PLAIN: Final = 40
"""Digits up to which a number is written without an exponent."""


@functools.singledispatch
def canonical(value: object) -> str:
    """Return the text that represents ``value`` in a key.

    Values that are equal have the same text, regardless of their precision, time zone or numeric type:
    ``Decimal("1.50")`` is ``1.5``, ``7.0`` is ``7``, and an aware time is converted to UTC. A member of
    an ``Enum`` has the text of its value. A value of another type is converted by ``str``.

    Raises:
        ConfigurationError: Equal values could have different texts, as sets and lists do, or the text
            would be the address of the object, or a mask that hides a secret.
    """
    kind = type(value)
    text = str(value)
    if _ADDRESS.search(text):
        raise ConfigurationError(
            f"a key cannot be made of a {kind.__qualname__}, whose text contains its address: two"
            " equal objects would have different keys, and would not exclude each other. Use one"
            " of its attributes instead, or give the class a __str__"
        )
    if hasattr(kind, "get_secret_value"):
        raise ConfigurationError(
            f"a key cannot be made of a {kind.__qualname__}, whose text is {text!r:.40} for every"
            " secret: all secrets would share one key. Use a digest of value.get_secret_value()"
            " instead"
        )
    return text


@canonical.register(dict)
@canonical.register(list)
@canonical.register(tuple)
@canonical.register(set)
@canonical.register(frozenset)
@canonical.register(bytearray)
def _(value: object) -> str:
    raise ConfigurationError(
        f"a key cannot be made of a {type(value).__qualname__}: two that are equal can have"
        " different texts, depending on the order and the types of the elements. Lock one key for"
        " each element, or use a text such as ','.join(sorted(...))"
    )


# A subclass may print itself in a way of its own; ``str`` of a member of a ``(str, Enum)`` is its name.
canonical.register(str, str.__str__)
canonical.register(int, int.__repr__)
canonical.register(bool, str)
canonical.register(dt.date, dt.date.isoformat)


@canonical.register
def _(value: enum.Enum) -> str:
    return canonical(value.value)


@canonical.register
def _(value: float) -> str:
    return canonical(Decimal(float.__repr__(value)))


@canonical.register
def _(value: Decimal) -> str:
    if not value.is_finite():
        return str(value)
    sign, digits, exponent = value.as_tuple()
    assert isinstance(exponent, int)
    # Not normalize(), which rounds to the precision of the context: different values would meet.
    significant = len(digits)
    while significant and digits[significant - 1] == 0:
        significant -= 1
    if not significant:
        return "0"
    exact = Decimal((sign, digits[:significant], exponent + len(digits) - significant))
    return f"{exact:f}" if abs(exact.adjusted()) < PLAIN else str(exact)


@canonical.register
def _(value: dt.time) -> str:
    if value.utcoffset() is None:
        return value.isoformat()
    # Of times that differ by a whole day in UTC, only those of the same day are equal.
    moment = dt.datetime.combine(_SOME_DAY, value).astimezone(dt.UTC)
    day = (moment.date() - _SOME_DAY).days
    return moment.timetz().isoformat() + (f"{day:+}" if day else "")


@canonical.register
def _(value: dt.datetime) -> str:
    offset = value.utcoffset()
    if offset is None:
        return value.isoformat()
    try:
        return value.astimezone(dt.UTC).isoformat()
    except OverflowError:  # In UTC, the year would be 0 or 10000.
        return f"{value.replace(tzinfo=dt.UTC) - _FIRST - offset} UTC"


CONVERTERS: Final[Mapping[str, Callable[[str], object]]] = MappingProxyType(
    {"int": int, "uuid": uuid.UUID, "lower": str.lower, "str": str}
)
"""The converters of a key template for a value that is still text, as in ``"item:{pk:int}"``.

``int`` reads what handlers and databases read as that number: ``07``, ``+7``, digits of other
scripts. ``str`` says that the text itself is the value, so that each spelling names another thing.
"""


_EXACT: Final[Mapping[type, Callable[[object], str]]] = {str: str, int: str}
"""What ``canonical`` is for the types that most values have, and not for those that derive from them."""

CallKey = Callable[[tuple[object, ...], dict[str, object]], str]


class CheckedKey(str):
    """A key that was checked once, and can be locked."""

    __slots__ = ()


class Key(CheckedKey):
    """A key that knows its template: ``Key("item:{item_id}", item_id=7)``.

    It is the string ``"item:7"``, wherever a key is expected. Events carry the ``template`` next to
    the key, and metrics are counted by it; a plain string has none. Values are encoded and made
    canonical, as adapters and decorators do. Raises ``ConfigurationError`` for a template that
    cannot work, and ``InvalidKey`` for a value that is missing or cannot be used.
    """

    __slots__ = ("template",)

    template: str

    def __new__(cls, template: str, /, **values: object) -> Self:
        """Fill in a template."""
        parsed = KeyTemplate.parse(template)
        return cls._of(parsed.fill(values), parsed.text)

    @classmethod
    def _of(cls, text: str, template: str) -> Self:
        key = str.__new__(cls, text)
        key.template = template
        return key

    def __radd__(self, prefix: str) -> Self:
        """Keep the template when the namespace is prefixed."""
        key = str.__new__(type(self), str.__add__(prefix, self))
        key.template = self.template
        return key

    def __reduce__(self) -> tuple[object, ...]:
        return Key._of, (str(self), self.template)


def check_key(key: str) -> CheckedKey:
    """Return ``key`` as one that can be locked.

    A member of a ``(str, Enum)`` is its value. Raises ``InvalidKey`` for anything but a string of 1
    to 512 characters, for control characters and line separators, and for lone surrogates, which no
    encoding can carry.
    """
    if isinstance(key, CheckedKey):
        return key
    if not isinstance(key, str):
        raise InvalidKey(f"a lock key is a string, not {type(key).__name__}: {key!r:.80}")
    if not key:
        raise InvalidKey("a lock key has at least one character: the key is empty")
    if len(key) > MAX_LENGTH:
        raise InvalidKey(
            f"a lock key has at most {MAX_LENGTH} characters; {key[:40]!r}... has {len(key)}:"
            " lock a digest of it instead"
        )
    if not key.isprintable() and (bad := _FORBIDDEN.search(key)):  # All of those are unprintable.
        lone = "\ud800" <= bad.group() <= "\udfff"
        kind = "lone surrogate" if lone else "control character"
        raise InvalidKey(
            f"lock key {key[:80]!r} has the {kind} {bad.group()!r} at position {bad.start()}:"
            " strip or encode it first"
        )
    return CheckedKey(str.__str__(key))


@dataclass(frozen=True, slots=True)
class Source:
    """Where a request contains a value: ``kind`` is ``path``, ``query``, ``header`` or ``cookie``."""

    kind: str
    name: str


@dataclass(frozen=True, slots=True)
class KeyTemplate:
    """A key with placeholders, as in ``"item:{item_id}"``.

    Two different sets of values never make the same key: punctuation in values is percent-encoded, so
    that no value can contain the text between two placeholders. Letters of all scripts stay as they are,
    and count as one character each. Equal values always make the same key
    (``canonical``); ``"item:{item_id:int}"`` converts a value that is still text.
    """

    text: str
    """Everything else is made of it, so it alone is compared and hashed."""
    names: tuple[str, ...] = field(compare=False)
    converters: tuple[str, ...] = field(compare=False)
    """The converter of each name; empty if none is given."""
    sources: Mapping[str, Source] = field(repr=False, compare=False)
    """Where a request contains each value, by its name in the template: see ``in_request``."""
    _literals: tuple[str, ...] = field(compare=False)
    _places: tuple[tuple[str, str, str], ...] = field(repr=False, compare=False)
    """Each name, its converter and the text behind it."""
    _encoded: re.Pattern[str] = field(repr=False, compare=False)
    """The characters of values that are percent-encoded."""

    @classmethod
    def parse(cls, text: str) -> KeyTemplate:
        """Parse a template. Raises ``ConfigurationError`` if it is malformed or ambiguous."""
        if callable(text):
            raise ConfigurationError(
                f"a decorator was given {text!r:.80} instead of a key: name the key, as in"
                ' @locks.serialized("create_item")'
            )
        text = str.__str__(check_key(text))
        pieces = _PLACEHOLDER.split(text)
        literals = pieces[::2]
        for literal in literals:
            if "{" in literal or "}" in literal:
                raise ConfigurationError(f"key template {text!r} has an unmatched brace")
        places = [_place(text, piece) for piece in pieces[1::2]]
        for between in literals[1:-1]:
            if all(character.isalnum() or character == "%" for character in between):
                raise ConfigurationError(
                    f"key template {text!r} is ambiguous: put a character such as ':' between its"
                    " placeholders"
                )
        separators = "".join(literals[1:-1])
        # Which characters these are must not depend on the version of Python, and so of Unicode.
        plain = "".join(character for character in _UNRESERVED if character not in separators)
        others = "".join(character for character in separators if not character.isascii())
        encoded = re.compile(
            f"[^A-Za-z0-9{re.escape(plain)}\xa0-\U0010ffff]"
            f"|[\ud800-\udfff\u2028\u2029{re.escape(others)}]"
        )
        names, converters = (tuple(place[part] for place in places) for part in (0, 1))
        sources: dict[str, Source] = {}
        for name in names:
            kind, dot, rest = name.rpartition(".")
            if not (name.isdecimal() or (dot and kind not in _KINDS)):
                sources[name] = Source(kind or "path", rest.lower() if kind == "header" else rest)
        parts = tuple(zip(names, converters, literals[1:], strict=True))
        return cls(
            text, names, converters, MappingProxyType(sources), tuple(literals), parts, encoded
        )

    def fill(self, values: Mapping[str, object]) -> Key:
        """Return the key for ``values``. Raises ``InvalidKey`` if one is missing or unusable."""
        if not self.names:  # ``parse`` has checked the text, which is the key.
            return Key._of(self.text, self.text)  # noqa: SLF001 - of the same module
        parts = [self._literals[0]]
        for name, converter, literal in self._places:
            if name not in values:
                known = ", ".join(sorted(map(str, values))) or "none"
                raise InvalidKey(f"key template {self.text!r} needs {name!r}; available: {known}")
            value = values[name]
            if converter and isinstance(value, str):
                spelled = canonical(value)
                try:
                    value = CONVERTERS[converter](spelled)
                except ValueError as error:
                    raise InvalidKey(
                        f"key template {self.text!r} was given {spelled[:40]!r} for {name!r}, which"
                        f" {converter!r} cannot convert"
                    ) from error
            if value is None:
                text = MISSING
            else:
                make = _EXACT.get(type(value), canonical)
                text = make(value)
                if not (text.isascii() and text.isalnum()):
                    if not text:
                        raise InvalidKey(f"key template {self.text!r} was given an empty value")
                    try:
                        text = self._encoded.sub(
                            lambda found: "".join(f"%{byte:02X}" for byte in found[0].encode()),
                            text,
                        )
                    except UnicodeEncodeError as error:
                        raise InvalidKey(
                            f"key template {self.text!r} was given a lone surrogate"
                        ) from error
            parts += text, literal
        key = "".join(parts)
        if not key or len(key) > MAX_LENGTH or not key.isprintable():
            check_key(key)
        made = str.__new__(Key, key)
        made.template = self.text
        return made

    def in_request(self) -> Mapping[str, Source]:
        """Return where a request contains each value, by its name in the template.

        ``{x}`` and ``{path.x}`` are path parameters, ``{query.x}``, ``{header.x}`` and ``{cookie.x}``
        are values of the query string, the headers and the cookies. Raises ``ConfigurationError`` for
        another prefix.
        """
        for name in self.names:
            if name.isdecimal():
                raise ConfigurationError(
                    f"key template {self.text!r} has {{{name}}}: the values of a request have"
                    " names, not places: write a name like {item_id}"
                )
            if name not in self.sources:
                raise ConfigurationError(
                    f"key template {self.text!r} has {{{name}}}: a placeholder with a dot starts"
                    f" with one of {', '.join(_KINDS)}. For anything else, such as a value of the"
                    " body, give the adapter a function that returns the key"
                )
        return self.sources

    def for_call_of(self, function: Callable[..., object]) -> CallKey:
        """Return a function that makes a key from the arguments of a call of ``function``.

        ``{0}`` is the first argument, however it is passed. Raises ``ConfigurationError`` if the
        template names a parameter that the function does not have.
        """
        signature = signature_of(function)
        places = [name for name in self.names if name.isdecimal()]
        kinds = [each.kind for each in signature.parameters.values()]
        positional = kinds.count(inspect.Parameter.POSITIONAL_ONLY)
        positional += kinds.count(inspect.Parameter.POSITIONAL_OR_KEYWORD)
        takes_any = inspect.Parameter.VAR_POSITIONAL in kinds
        for name in self.names:
            if name in places:
                takes = takes_any or int(name) < positional
            else:
                takes = name in signature.parameters
            if not takes:
                there = ", ".join(signature.parameters) or "none"
                raise ConfigurationError(
                    f"key template {self.text!r} needs {name!r}, which is not a parameter of"
                    f" {function.__qualname__}; available: {there}",
                    code="missing_value",
                )

        def key_of(args: tuple[object, ...], kwargs: dict[str, object]) -> str:
            call = signature.bind(*args, **kwargs)
            call.apply_defaults()
            values: dict[str, object] = call.arguments
            if places:
                values = {**values, **{str(place): value for place, value in enumerate(call.args)}}
            return self.fill(values)

        constant = Key._of(self.text, self.text)  # noqa: SLF001 - of the same module
        return key_of if self.names else lambda _args, _kwargs: constant


def _place(text: str, piece: str) -> tuple[str, str]:
    """Return the name and the converter of a placeholder."""
    found = _NAME.fullmatch(piece)
    if not found:
        raise ConfigurationError(
            f"key template {text!r} has {{{piece}}}: write a name like {{item_id}}, or"
            " {item_id:int}"
        )
    name, converter = found[1], found[2] or ""
    if converter and converter not in CONVERTERS:
        raise ConfigurationError(
            f"key template {text!r} has the converter {converter!r}; available:"
            f" {', '.join(sorted(CONVERTERS))}"
        )
    return name, converter


if sys.version_info >= (3, 14):
    import annotationlib

    def signature_of(function: Callable[..., object]) -> inspect.Signature:
        """Return what a function takes. Its annotations may have names that exist for type checkers alone."""
        return inspect.signature(function, annotation_format=annotationlib.Format.FORWARDREF)

else:
    signature_of = inspect.signature


def in_order(keys: Sequence[str]) -> tuple[CheckedKey, ...]:
    """Return the keys, each once, in the one order in which every caller acquires them.

    Raises ``InvalidKey``.
    """
    return tuple(sorted({check_key(key) for key in keys}))


def qualified(namespace: str, key: str) -> str:
    """Return the key as an engine knows it. A namespace has no colon, so keys cannot collide."""
    return f"{namespace}:{key}"


def unqualified(key: str) -> str:
    """Return the key as its user knows it, without the namespace."""
    return key.partition(":")[2]
