"""Why a server cannot be used, in words for an operator."""

from __future__ import annotations

from collections.abc import Iterable

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
