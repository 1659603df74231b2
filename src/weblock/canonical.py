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
import uuid
from collections.abc import Callable, Mapping
from decimal import Decimal
from types import MappingProxyType
from typing import Final

from .errors import ConfigurationError

PLAIN: Final = 40
"""Digits up to which a number is written without an exponent."""


@functools.singledispatch
def canonical(value: object) -> str:
    """Return the text that stands for ``value`` in a key.

    Values that are equal have the same text, whatever their precision, time zone or numeric type:
    ``Decimal("1.50")`` is ``1.5``, ``7.0`` is ``7``, and an aware time is given in UTC. A member of
    an ``Enum`` stands for its value. Anything of a type that is not known here is ``str(value)``.

    Raises:
        ConfigurationError: That would be the address of an object, which is another for an equal one.
    """
    kind = type(value)
    if kind.__str__ is object.__str__ and kind.__repr__ is object.__repr__:
        raise ConfigurationError(
            f"a key cannot be made of a {kind.__qualname__}, which has no text but its address: each"
            " object would be another key, and nothing would be serialized. Name one of its attributes"
            " instead, or give the class a __str__"
        )
    return str(value)


@canonical.register
def _(value: str) -> str:
    return str.__str__(value)  # A member of an enum prints its name.


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


@canonical.register(dt.date)
@canonical.register(dt.time)
def _(value: dt.date | dt.time) -> str:
    return value.isoformat()


@canonical.register
def _(value: dt.datetime) -> str:
    return value.isoformat() if value.utcoffset() is None else _in_utc(value)


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


def _in_utc(moment: dt.datetime) -> str:
    try:
        return moment.astimezone(dt.UTC).isoformat()
    except OverflowError:  # In UTC it would lie before the year 1, or after 9999.
        return moment.isoformat()


CONVERTERS: Final[Mapping[str, Callable[[str], object]]] = MappingProxyType(
    {"int": int, "uuid": uuid.UUID, "lower": str.lower, "str": str}
)
"""The converters of a key template for a value that is still text, as in ``"item:{pk:int}"``.

``int`` reads what handlers and databases read as that number: ``07``, ``+7``, digits of other
scripts. ``str`` says that the text itself is the value, so that each spelling names another thing.
"""
