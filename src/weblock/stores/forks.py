"""Engines in a forked child, which lets go of what belongs to its parent."""

from __future__ import annotations

import os
import weakref
from typing import Final, Protocol


class Forking(Protocol):
    """An engine with something open: connections, threads, leases of its process."""

    def after_fork(self) -> None:
        """Runs in the child, where no other thread does. Ends nothing of the parent's."""


_engines: Final[weakref.WeakSet[Forking]] = weakref.WeakSet()


def heed_forks(engine: Forking) -> None:
    """Has the engine told in each child that this process forks, for as long as it is in use."""
    _engines.add(engine)


def _after_fork() -> None:
    for engine in _engines:
        engine.after_fork()


os.register_at_fork(after_in_child=_after_fork)
