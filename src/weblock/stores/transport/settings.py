"""The options in the query of an engine's URL, and what the engines with a server have in common."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol
from urllib.parse import parse_qsl

from ..._core.ports import CheckAgain, Engine, Recovery, Switchboard
from ..._platform.forks import reset_after_fork
from ...errors import ConfigurationError

Reader = Callable[[str, Any], Any]
"""Converts an option's name and text to its value. Raises ``ConfigurationError``."""


def options_in(query: str, readers: Mapping[str, Reader], *, engine: str) -> dict[str, Any]:
    """Return the options of a query, each as its reader reads it.

    Raises ``ConfigurationError`` for an option that is not in ``readers``, or repeated.
    """
    given: dict[str, str] = {}
    for name, text in parse_qsl(query, keep_blank_values=True):
        if name in given:
            raise ConfigurationError(f"the URL names the {engine} option {name!r:.40} twice")
        given[name] = text
    return checked(given, readers, engine=engine)


def checked(
    given: Mapping[str, Any], readers: Mapping[str, Reader], *, engine: str
) -> dict[str, Any]:
    """Return options as their readers read them. Raises ``ConfigurationError`` as above."""
    for name in given:
        if name not in readers:
            raise ConfigurationError(unknown(f"{engine} option", name, readers))
    return {name: readers[name](name, value) for name, value in given.items()}


def unknown(kind: str, name: str, known: Iterable[str]) -> str:
    """Say that there is no such option, which ones there are, and which one may be meant."""
    known = sorted(known)
    meant = difflib.get_close_matches(name, known, n=1, cutoff=0.7)
    hint = f": did you mean {meant[0]!r}? Available:" if meant else "; available:"
    return f"there is no {kind} {name!r:.40}{hint} {', '.join(known) or 'none'}"


def seconds(name: str, value: Any) -> float:
    """Return a time of more than 0 and less than a day, from a number or its text."""
    try:
        seconds = float(value)
    except (TypeError, ValueError):
        seconds = -1.0
    if not 0 < seconds < 86400:
        raise ConfigurationError(
            f"{name}={str(value)!r:.40} must be seconds, more than 0 and less than a day (86400)"
        )
    return seconds


def flag(name: str, value: Any) -> bool:
    """``true`` or ``false``, in any case, or ``1`` or ``0``."""
    try:
        return {"true": True, "1": True, "false": False, "0": False}[str(value).lower()]
    except KeyError:
        raise ConfigurationError(f"{name}={str(value)!r:.40} must be true or false") from None


def recovery(name: str, value: Any) -> Recovery:
    """Return how long an engine grants nothing after a loss: ``safe``, ``off``, or seconds."""
    if value == "safe":
        return Recovery()
    if value == "off":
        return Recovery(0.0)
    try:
        return Recovery(seconds(name, value))
    except ConfigurationError:
        raise ConfigurationError(
            f"{name}={str(value)!r:.40} must be 'safe', 'off', or your longest ttl in seconds"
        ) from None


def whole(name: str, value: Any) -> int:
    """Return a whole number from 1 to 9999, from a number or its text."""
    if not re.fullmatch(r"[1-9]\d{0,3}", str(value)):
        raise ConfigurationError(f"{name}={str(value)!r:.40} must be a whole number from 1 to 9999")
    return int(value)


class Settings(Protocol):
    """How to reach a server, and how to lock there."""

    @property
    def name(self) -> str:
        """The URL, without secrets and options."""

    @property
    def recovery(self) -> Recovery: ...


class ServerEngine(Engine):
    """The leases on a server, as this process sees them. Its ``after_fork`` also opens what it needs."""

    scope = "cluster"

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.name = settings.name
        self.recovery = settings.recovery
        self.after_fork()
        reset_after_fork(self)

    def after_fork(self) -> None:
        """Begin with nothing open."""
        self.switchboard = Switchboard()

    def close(self) -> None:
        """End all connections. Callers that still wait here are notified."""
        self.switchboard.notify_all(CheckAgain())
