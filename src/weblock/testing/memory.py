"""Locks in memory, whatever engines an application names."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from .._adapting import rest
from .._engines import opened_by_url, opening_instead
from ..stores.memory import MemoryEngine


class _EngineOfATest(MemoryEngine):
    scope = "cluster"  # An application may require that of its engine.


@contextmanager
def memory_locks() -> Iterator[None]:
    """Keep the leases of all ``Locks`` and ``AsyncLocks`` in memory while the block runs.

    This is for those that ``from_url`` or a framework's adapter opens by a URL, now or before. Each URL is
    an engine that nothing has used, with ``scope="cluster"``; all options stay. Leases that are held
    when the block begins or ends are lost. It also decorates test functions.
    """
    try:
        with opening_instead(lambda _url: _EngineOfATest()):
            _open_again()
            yield
    finally:
        _open_again()


def _open_again() -> None:
    """Make all locks open their engine when they are used next."""
    for locks in list(opened_by_url):
        rest(locks)
