"""The locks of an application: given to it, or made for it from a URL."""

from __future__ import annotations

from collections.abc import Sequence

from ..._options import LocksOptions
from ...aio import AsyncLocks
from ...sync import Locks


def opened(
    locks: AsyncLocks | str | Sequence[str] | None, options: LocksOptions
) -> tuple[AsyncLocks, bool]:
    """Return the locks, and whether they were made here, so that the application owns them."""
    if isinstance(locks, AsyncLocks):
        if options:
            raise TypeError(f"give {', '.join(options)} to the AsyncLocks instead")
        return locks, False
    if isinstance(locks, Locks):
        raise TypeError(
            "a Locks blocks the thread that waits, and an ASGI application awaits its locks: give"
            " AsyncLocks.from_url(...), or the engine's URL"
        )
    return AsyncLocks.from_url(locks, **options), True
