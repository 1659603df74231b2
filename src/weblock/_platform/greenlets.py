"""gevent and eventlet, which replace the standard library's threads, locks and queues by their own.

weblock uses these under their usual names, so every thread of its own is a greenlet there, the keeper
included. Greenlets take turns only while they wait. Two things follow:

- A handler that computes for longer than its ttl loses its lease, because nothing renews it meanwhile.
  ``NotRenewed`` says so when locks are made.
- What greenlets share belongs to the event loop (gevent's hub) of one real thread. A call from another
  one, such as a thread of gevent's threadpool, could wait for ever, and is rejected.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any, Final

from ..errors import ConfigurationError
from .forks import reset_after_fork

_PATCHERS: Final = {
    "gevent": ("gevent.monkey", "is_module_patched", "threading"),
    "eventlet": ("eventlet.patcher", "is_monkey_patched", "thread"),
}
"""Where each library says whether it has replaced the threads of this process."""


def patched_by() -> str | None:
    """Return the library that has made the threads of this process greenlets, or ``None``."""
    for library, (module, function, argument) in _PATCHERS.items():
        patcher = sys.modules.get(module)
        if patcher is not None and getattr(patcher, function)(argument):
            return library
    return None


class _FirstThread:
    """The real thread whose greenlets lock, which is the first one that does."""

    def __init__(self) -> None:
        self.after_fork()
        reset_after_fork(self)

    def after_fork(self) -> None:
        self.hub: Any = None


_first: Final = _FirstThread()


def refuse_other_threads() -> None:
    """Raise ``ConfigurationError`` under gevent, unless this real thread is the first that comes here."""
    hub = importlib.import_module("gevent").get_hub()
    if _first.hub is None:
        _first.hub = hub
    if hub is not _first.hub:
        raise ConfigurationError(
            "this thread does not run the greenlets that use weblock's locks: it might belong to"
            " gevent's threadpool. Acquire and release in a greenlet, and run only the work in the"
            " threadpool",
            code="wrong_thread",
        )
