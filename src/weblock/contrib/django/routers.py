"""The database that is read inside a lock.

A replica may lack a row that the last holder has committed. So a read inside a lock
belongs on the database that is written: ``DATABASE_ROUTERS = ["weblock.contrib.django.routers.LockedReads", ...]``.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any, Final

from django.apps import apps
from django.db import router

from ...errors import ConfigurationError
from .request import holds_locks

LOCKED_READS: Final = "weblock.contrib.django.routers.LockedReads"

_TRIES: Final = 5
"""How often a router is asked: it may choose between replicas at random."""


is_locked: Final[ContextVar[bool]] = ContextVar("weblock_is_locked", default=False)
"""Whether the code that runs here is a locked management command, or asks what such code would read."""


class LockedReads:
    """Sends the reads of a request, or a command, that holds a lock to the database that is written.

    It stands before the routers that know replicas. ``using()`` still decides for itself.
    """

    def db_for_read(self, model: Any, **hints: Any) -> str | None:
        """Return the database that is written, inside a lock; ``None`` outside."""
        if not (is_locked.get() or holds_locks()):
            return None
        found: str = router.db_for_write(model, **hints)
        return found


def refuse_split_reads() -> None:
    """Raise ``ConfigurationError`` if reads inside a lock would go to another database than the writes.

    ``LockedReads`` does not help behind a router that has decided already.
    """
    token = is_locked.set(True)
    try:
        for model in apps.get_models() if router.routers else ():
            written = router.db_for_write(model)
            for _ in range(_TRIES):
                if (read := router.db_for_read(model)) != written:
                    raise ConfigurationError(
                        f"DATABASE_ROUTERS sends the reads of {model.__name__} to {read!r} and its writes"
                        f" to {written!r}, so that a view would read rows inside its lock that are out of"
                        f" date: put {LOCKED_READS!r} first into DATABASE_ROUTERS"
                    )
    finally:
        is_locked.reset(token)
