"""The logger, which never raises, and what may be in its lines."""

from __future__ import annotations

import logging
import time
from typing import Any, Final

CALM: Final = 60.0
"""Seconds without a failure after which the next failure counts as the first."""


class _Harmless(logging.LoggerAdapter[logging.Logger]):
    """A logger whose handlers may fail: no lease depends on what a handler does."""

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        if not self.isEnabledFor(level):
            return
        try:
            self.logger.log(level, msg, *args, stacklevel=2, **kwargs)
        except Exception:  # noqa: BLE001, S110 - there is nobody left to tell
            pass


logger = _Harmless(logging.getLogger("weblock"), {})
"""Logs as ``logging.getLogger("weblock")`` does, and never raises because a handler did."""

audit = _Harmless(logging.getLogger("weblock.audit"), {})
"""Logs which lease was taken from which holder, and by whom."""


def printable(text: str | None) -> str:
    """Return a text from strangers, a key or a label, for a terminal or a log.

    Control and format characters, which would move a cursor, reverse a line or begin another, are
    escaped.
    """
    text = text or ""
    if text.isprintable():
        return text
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode() for each in text
    )


def and_others(count: int) -> str:
    """Return what follows the name of a holder that so many others hold the key with."""
    return f" and {count} other{'s' if count > 1 else ''}" if count else ""


class Repeats:
    """Counts what fails again and again, so that the log is not flooded.

    ``count`` returns how often it has failed in a row if that is to be logged, else 0: the first,
    second, fourth, eighth time and so on are. After a minute without a failure it counts anew.
    """

    __slots__ = ("_last", "_times")

    def __init__(self) -> None:
        self._times = 0
        self._last = float("-inf")

    def count(self) -> int:
        before, self._last = self._last, time.monotonic()
        self._times = self._times + 1 if self._last - before < CALM else 1
        return 0 if self._times & (self._times - 1) else self._times
