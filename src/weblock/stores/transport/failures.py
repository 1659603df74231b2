"""A server that cannot be used: why, in words for an operator, and when callers ask it again."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Final

LATELY: Final = 0.1
"""Seconds in which a caller does not wait again for a server that has just not answered."""

LONG: Final = 0.1
"""Seconds from which on the failure to connect counts as that. A shorter attempt may be repeated."""

Meanings = Iterable[tuple[str | type[BaseException] | tuple[type[BaseException], ...], str]]
"""What errors mean, with the remedy: by a part of their text, or by their type.

A meaning can have ``{text}`` in it, which is the text of the error. The first that fits counts.
"""


class Unfit(Exception):
    """A server, or a library, that cannot keep leases as it is. Says why, and what to do about it."""


def explained(error: BaseException, meanings: Meanings = (), *, timeout: float = 0.0) -> str:
    """Return what went wrong. ``timeout`` is how many seconds the server had for an answer."""
    text = " ".join(str(error).split()) or type(error).__name__
    if isinstance(error, Unfit):
        return text
    for sign, meaning in meanings:
        if sign in text if isinstance(sign, str) else isinstance(error, sign):
            return meaning.replace("{text}", text[:300])
    if isinstance(error, TimeoutError):
        return f"it did not answer within {timeout:g} s"
    return text


class Silence:
    """What the callers in this process know of one server: of many, each waits for its silence once.

    ``answers`` are the errors of the driver with which the server has answered: after one of these,
    a connection is as good as before.
    """

    def __init__(
        self,
        explained: Callable[[BaseException], str],
        *,
        timeout: float,
        answers: tuple[type[BaseException], ...] = (),
    ) -> None:
        self.answers = answers
        self.answered_at = float("-inf")
        """When a request was last answered, by ``time.monotonic``."""
        self._explained = explained
        self._timeout = timeout
        self._noticed_at = float("-inf")
        self._reason = ""

    def notice(self, error: BaseException) -> None:
        """Remember that the server has not answered."""
        self._reason = self._explained(error)
        self._noticed_at = time.monotonic()

    @contextmanager
    def connecting(self) -> Iterator[None]:
        """Surround the making of a connection. Raises ``Unfit`` if the server has just been silent."""
        began = time.monotonic()
        if began - self._noticed_at < LATELY:
            raise Unfit(self._reason)
        try:
            yield
        except self.answers:
            raise
        except Exception as error:
            if time.monotonic() - began >= LONG and not isinstance(error, Unfit):
                self.notice(error)
            raise

    def turn_in_vain(self, otherwise: str) -> Unfit:
        """Return the error for a caller that did not get its turn at what others kept.

        They may have waited for the server all that time. If it has answered, the reason is another.
        """
        silent = time.monotonic() - self.answered_at >= self._timeout
        return Unfit(self._explained(TimeoutError()) if silent else otherwise)


def spread(pause: float, jitter: Callable[[], float] = random.random) -> float:
    """Return a random half of a pause, or more of it.

    So callers that have failed at the same moment do not come back at the same moment.
    """
    return pause * (0.5 + jitter() / 2)


class Backoff:
    """Pauses in seconds, each twice as long as the one before, up to the ``longest``."""

    def __init__(
        self, first: float, longest: float, *, jitter: Callable[[], float] = random.random
    ) -> None:
        self._first = self._pause = first
        self._longest = longest
        self._jitter = jitter

    def next(self) -> float:
        pause = self._pause
        self._pause = min(self._longest, 2 * pause)
        return spread(pause, self._jitter)

    def reset(self) -> None:
        """Begin again with the first pause: an attempt has succeeded."""
        self._pause = self._first
