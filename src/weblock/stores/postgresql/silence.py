"""A server that does not answer: of many callers, each waits for it once."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Final

from .failures import HARMLESS, Unfit, explained, remedy_for
from .settings import Settings

LATELY: Final = 0.1
"""Seconds in which a caller does not wait again for a server that has just not answered."""

LONG: Final = 0.1
"""Seconds from which on the failure to connect counts as that. A shorter attempt may be repeated."""


class Silence:
    """What the callers of one world know of the server. As a context manager, it surrounds a statement."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._noticed_at = self._answered_at = float("-inf")
        self._reason = ""

    def __enter__(self) -> None:
        pass

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None or isinstance(error, HARMLESS):
            self._answered_at = time.monotonic()
        elif isinstance(error, TimeoutError):
            self._notice(error)

    @contextmanager
    def connecting(self) -> Iterator[None]:
        """Surround the making of a connection. Raises ``Unfit`` if the server has just been silent."""
        began = time.monotonic()
        if began - self._noticed_at < LATELY:
            raise Unfit(self._reason)
        try:
            yield
        except Exception as error:
            # What an operator has to do about the table is for each caller to find.
            if time.monotonic() - began >= LONG and not remedy_for(self._settings, error):
                self._notice(error)
            raise

    def turn_in_vain(self, otherwise: str) -> Unfit:
        """Return the error for a caller that did not get its turn at what others kept.

        They may have waited for the server all that time. If it has answered, the reason is another.
        """
        silent = time.monotonic() - self._answered_at >= self._settings.timeout
        return Unfit(explained(self._settings, TimeoutError()) if silent else otherwise)

    def _notice(self, error: BaseException) -> None:
        self._noticed_at = time.monotonic()
        self._reason = explained(self._settings, error)
