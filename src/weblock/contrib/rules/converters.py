"""What a placeholder of a path may stand for: Starlette's converters."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Converter:
    """``pattern`` is what it matches, and ``convert`` makes the value that the endpoint sees.

    ``samples`` are values that another path matches only if it matches all values there are,
    apart from those with newlines. ``lenient`` matches what other routers may take for such a value,
    as far as ``convert`` does too, where it shares its segment with no other placeholder;
    ``beside`` matches it where it does. Both are empty where nothing else is taken for one.
    """

    pattern: str
    convert: Callable[[str], object]
    samples: tuple[str, ...]
    lenient: str
    beside: str
    _characters: Callable[[str], bool]

    def may_have(self, character: str) -> bool:
        """Return whether a value may contain the character."""
        return self._characters(character)


# Characters of private use, which no path has for its own text.
_ODD: Final = "\ue0f0"

_SEGMENT: Final = "[^/]+"

CONVERTERS: Final = {
    "str": Converter("[^/]+", str, (_ODD, "7"), "", "", lambda each: each != "/"),
    "path": Converter(
        ".*",
        str,
        ("", _ODD, f"{_ODD}/{_ODD}", "/"),
        r"(?=[^\n]*[\n])[\s\S]*",  # With a newline in it, which ends what a dot matches.
        "",
        lambda _each: True,
    ),
    "int": Converter(
        "[0-9]+",
        int,
        ("0", "7", "77777777777"),
        _SEGMENT,
        r"[\d]+",
        lambda each: each in "0123456789",
    ),
    "float": Converter(
        r"[0-9]+(?:\.[0-9]+)?",
        float,
        ("0", "7", "7.75"),
        _SEGMENT,
        r"[\d]+(?:\.[\d]+)?",
        lambda each: each in "0123456789.",
    ),
    "uuid": Converter(
        "[0-9a-fA-F]{8}-?[0-9a-fA-F]{4}-?[0-9a-fA-F]{4}-?[0-9a-fA-F]{4}-?[0-9a-fA-F]{12}",
        uuid.UUID,
        (32 * "7", f"{8 * 'a'}-{4 * 'a'}-{4 * 'a'}-{4 * 'a'}-{12 * 'a'}"),
        _SEGMENT,
        "",
        lambda each: each in "0123456789abcdefABCDEF-",
    ),
}
