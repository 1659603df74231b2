"""Keys, and the templates that they are filled in from."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, Self

from .canonical import CONVERTERS, canonical
from .errors import ConfigurationError, InvalidKey

MAX_LENGTH: Final = 512

_FORBIDDEN = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff\u2028\u2029]")
_NAMESPACE = re.compile(r"[A-Za-z0-9._-]{1,64}")
_PLACEHOLDER = re.compile(r"\{([^{}]*)\}")
_NAME = re.compile(
    r"([A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z_][A-Za-z0-9_-]*)?|0|[1-9][0-9]?)(?::([a-z]+))?"
)
_UNRESERVED: Final = "-._~"
_KINDS: Final = ("path", "query", "header", "cookie")

MISSING: Final = "%none"
"""The text of ``None``. No value has it: a percent sign is encoded, as a percent sign and a number."""


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
    _refuse_what_is_no_key(key)
    return CheckedKey(str.__str__(key))


def _refuse_what_is_no_key(key: object) -> None:
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


def check_prefix(prefix: str) -> str:
    """Return ``prefix`` if keys may begin with it, or if it is empty. Raises ``InvalidKey``."""
    return prefix if prefix == "" else check_key(prefix)


def check_namespace(namespace: object) -> str:
    """Return ``namespace`` if it is valid: letters, digits, ``.``, ``_``, ``-``."""
    if not isinstance(namespace, str) or not _NAMESPACE.fullmatch(namespace):
        raise ConfigurationError(
            f"namespace {namespace!r:.80} must be 1 to 64 letters, digits, '.', '_' or '-'"
        )
    return str.__str__(namespace)


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
        sources = {name: source for name in names if (source := _source(name))}
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
                raise InvalidKey(f"key template {self.text!r} needs {name!r}; there is: {known}")
            value = values[name]
            if converter and isinstance(value, str):
                value = self._converted(name, converter, canonical(value))
            if value is None:
                text = MISSING
            else:
                make = _EXACT.get(type(value), canonical)
                text = make(value)
                if not (text.isascii() and text.isalnum()):
                    text = self._encode(text)
            parts += text, literal
        key = "".join(parts)
        if not key or len(key) > MAX_LENGTH or not key.isprintable():
            _refuse_what_is_no_key(key)
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
                    f"key template {self.text!r} has {{{name}}}: the values of a request have names,"
                    " not places: write a name like {item_id}"
                )
            if name not in self.sources:
                raise ConfigurationError(
                    f"key template {self.text!r} has {{{name}}}: a placeholder with a dot starts"
                    f" with one of {', '.join(_KINDS)}. For anything else, such as a value of the body, give the"
                    " adapter a function that returns the key"
                )
        return self.sources

    def for_call_of(self, function: Callable[..., object]) -> CallKey:
        """Return a function that makes a key from the arguments of a call of ``function``.

        ``{0}`` is the first argument, however it is passed. Raises ``ConfigurationError`` if the
        template names a parameter that the function does not have.
        """
        signature = signature_of(function)
        places = [name for name in self.names if name.isdecimal()]
        for name in self.names:
            if not (
                _has_place(signature, name) if name in places else name in signature.parameters
            ):
                there = ", ".join(signature.parameters) or "none"
                raise ConfigurationError(
                    f"key template {self.text!r} needs {name!r}, which is no parameter of"
                    f" {function.__qualname__}; there is: {there}"
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

    def _converted(self, name: str, converter: str, value: str) -> object:
        try:
            return CONVERTERS[converter](value)
        except ValueError as error:
            raise InvalidKey(
                f"key template {self.text!r} was given {value[:40]!r} for {name!r}, which"
                f" {converter!r} cannot convert"
            ) from error

    def _encode(self, value: str) -> str:
        if not value:
            raise InvalidKey(f"key template {self.text!r} was given an empty value")
        try:
            return self._encoded.sub(_percent_encoded, value)
        except UnicodeEncodeError as error:
            raise InvalidKey(f"key template {self.text!r} was given a lone surrogate") from error


def _percent_encoded(found: re.Match[str]) -> str:
    return "".join(f"%{byte:02X}" for byte in found[0].encode())


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
            f"key template {text!r} has the converter {converter!r}; there is"
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


def _has_place(signature: inspect.Signature, place: str) -> bool:
    """Return whether a function takes a positional argument of that number."""
    kinds = [each.kind for each in signature.parameters.values()]
    positional = kinds.count(inspect.Parameter.POSITIONAL_ONLY) + kinds.count(
        inspect.Parameter.POSITIONAL_OR_KEYWORD
    )
    return int(place) < positional or inspect.Parameter.VAR_POSITIONAL in kinds


def _source(name: str) -> Source | None:
    kind, dot, rest = name.rpartition(".")
    if name.isdecimal() or (dot and kind not in _KINDS):
        return None
    return Source(kind or "path", rest.lower() if kind == "header" else rest)


def in_order(keys: Sequence[str]) -> tuple[CheckedKey, ...]:
    """Return the keys, each once, in the one order in which every caller acquires them.

    Raises ``InvalidKey``.
    """
    if len(keys) == 1:
        (key,) = keys
        return (key if isinstance(key, CheckedKey) else check_key(key),)
    return tuple(sorted({check_key(key) for key in keys}))


def qualified(namespace: str, key: str) -> str:
    """Return the key as an engine knows it. A namespace has no colon, so keys cannot collide."""
    return f"{namespace}:{key}"


def unqualified(key: str) -> str:
    """Return the key as its user knows it, without the namespace."""
    return key.partition(":")[2]


def template_of(key: str) -> str | None:
    """Return the template of a key; ``None`` for a plain string."""
    return key.template if isinstance(key, Key) else None
