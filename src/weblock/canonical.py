"""One spelling for each value, so that equal values always make the same key.

A handler works on a value: the row with the number 7. A URL may spell that value in many ways
(``7``, ``07``, ``+7``, digits of another script), and so may a type (``Decimal("1.5")`` and
``Decimal("1.50")``). A key made of the spelling would lock one row under several names, and then
two requests for the same row would run at the same time.
"""

from __future__ import annotations

import datetime as dt
import enum
import functools
import re
import uuid
from collections.abc import Callable, Mapping
from decimal import Decimal
from types import MappingProxyType
from typing import Final

from .errors import ConfigurationError

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
            f"a key cannot be made of a {kind.__qualname__}, whose text contains its address: two equal"
            " objects would have different keys, and would not exclude each other. Use one of its"
            " attributes instead, or give the class a __str__"
        )
    if hasattr(kind, "get_secret_value"):
        raise ConfigurationError(
            f"a key cannot be made of a {kind.__qualname__}, whose text is {text!r:.40} for every secret:"
            " all secrets would share one key. Use a digest of value.get_secret_value() instead"
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
        f"a key cannot be made of a {type(value).__qualname__}: two that are equal can have different"
        " texts, depending on the order and the types of the elements. Lock one key for each element, or"
        " use a text such as ','.join(sorted(...))"
    )


@canonical.register
def _(value: str) -> str:
    return str.__str__(value)  # ``str`` of a member of a ``(str, Enum)`` is its name.


@canonical.register
def _(value: enum.Enum) -> str:
    return canonical(value.value)


@canonical.register
def _(value: bool) -> str:  # noqa: FBT001 - it is the value itself, not a switch
    return str(value)


@canonical.register
def _(value: int) -> str:
    return int.__repr__(value)  # A subclass may print itself in a way of its own.


@canonical.register
def _(value: float) -> str:
    return _number(Decimal(float.__repr__(value)))


@canonical.register
def _(value: Decimal) -> str:
    return _number(value)


@canonical.register
def _(value: dt.date) -> str:
    return value.isoformat()


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


def _number(value: Decimal) -> str:
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


CONVERTERS: Final[Mapping[str, Callable[[str], object]]] = MappingProxyType(
    {"int": int, "uuid": uuid.UUID, "lower": str.lower, "str": str}
)
"""The converters of a key template for a value that is still text, as in ``"item:{pk:int}"``.

``int`` reads what handlers and databases read as that number: ``07``, ``+7``, digits of other
scripts. ``str`` says that the text itself is the value, so that each spelling names another thing.
"""
