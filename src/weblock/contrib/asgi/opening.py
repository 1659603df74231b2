"""The locks of an application: its own, or those of a URL, which live as long as it does."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

from ..._options import LocksOptions
from ...aio import AsyncLocks

Reopen = Callable[[], AsyncLocks]


def opened(
    locks: AsyncLocks | str | Sequence[str] | None, options: LocksOptions
) -> tuple[AsyncLocks, Reopen | None]:
    """The locks; and what makes them again, if they were made here, and so are to be closed."""
    if isinstance(locks, AsyncLocks):
        if options:
            raise TypeError(f"give {', '.join(options)} to the AsyncLocks instead")
        return locks, None
    reopen = functools.partial(AsyncLocks.from_url, locks, **options)
    return reopen(), reopen
