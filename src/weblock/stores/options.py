"""What stands behind the ``?`` of an engine's URL."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import parse_qsl

from ..errors import ConfigurationError

Reader = Callable[[str, str], Any]
"""Makes a value of an option's name and text. Raises ``ConfigurationError``."""


def options_in(query: str, readers: Mapping[str, Reader], *, engine: str) -> dict[str, Any]:
    """The options of a query, each as its reader reads it. Raises ``ConfigurationError``."""
    options: dict[str, Any] = {}
    for name, text in parse_qsl(query, keep_blank_values=True):
        if name not in readers:
            raise ConfigurationError(
                f"there is no {engine} option {name!r:.40}; there are {', '.join(sorted(readers))}"
            )
        options[name] = readers[name](name, text)
    return options


def seconds(name: str, value: Any) -> float:
    """A time of more than 0 and less than a day, as a number or its text."""
    try:
        seconds = float(value)
    except (TypeError, ValueError):
        seconds = -1.0
    if not 0 < seconds < 86400:
        raise ConfigurationError(f"{name}={str(value)!r:.40} must be seconds, more than 0")
    return seconds


def flag(name: str, text: str) -> bool:
    """``true`` or ``false``."""
    if text not in ("true", "false"):
        raise ConfigurationError(f"{name}={text!r:.40} must be true or false")
    return text == "true"
