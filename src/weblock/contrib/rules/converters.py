r"""What a placeholder of a path may stand for: Starlette's converters.

A framework reads more spellings of a value than Starlette's router does: Pydantic reads ``7.0`` and ``+7``
as the integer 7, Django's ``\d`` matches the digits of every script, and Litestar calls ``int()``. Each
converter therefore knows two things: the pattern of Starlette's router, and a function that reads
every spelling that a framework is known to read.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final


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
