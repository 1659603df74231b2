"""Libraries that replace threads by greenlets.

Under gevent the thread that renews leases is a real one nevertheless (``hubs``). Under eventlet it
is a greenlet, which does not run while another computes; so are the threads of some clients under
gevent.
"""

from __future__ import annotations

import importlib
import queue
import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Protocol

if TYPE_CHECKING:
    from .hubs import RealThread

_PATCHERS: Final = {
    "gevent": ("gevent.monkey", "is_module_patched", "threading"),
    "eventlet": ("eventlet.patcher", "is_monkey_patched", "thread"),
}
"""Where each library says whether it has replaced the threads of this process."""


class Thread(Protocol):
    """The part of ``threading.Thread`` that weblock uses."""

    @property
    def ident(self) -> int | None: ...

    def start(self) -> None: ...

    def join(self, timeout: float | None = None) -> None: ...


def patched_by() -> str | None:
    """Return the library that has made the threads of this process greenlets, or ``None``."""
    for library, (module, function, argument) in _PATCHERS.items():
        patcher = sys.modules.get(module)
        if patcher is not None and getattr(patcher, function)(argument):
            return library
    return None


def new_thread(name: str, target: Callable[[], None], *, real: bool = False) -> Thread:
    """Return a daemon thread that is not started yet.

    Under gevent it is a greenlet, or, if it must be ``real``, a thread of the operating system. A
    greenlet that a real thread starts ends with that thread.
    """
    if real and patched_by() == "gevent":
        return _hubs().RealThread(name, target)  # type: ignore[no-any-return]
    if here := real_thread_here():
        return _hubs().Helper(here, target)  # type: ignore[no-any-return]
    return threading.Thread(target=target, name=name, daemon=True)


def queue_class() -> type[queue.SimpleQueue[Any]]:
    """Return the class of queues with one getter, into which any thread and any greenlet may put."""
    if patched_by() == "gevent":
        return _hubs().HubQueue  # type: ignore[no-any-return]
    return queue.SimpleQueue


def real_thread_here() -> RealThread | None:
    """Return the real thread that runs this under gevent, or ``None`` in any other thread."""
    return _hubs().running_here() if patched_by() == "gevent" else None


def original(module: str, name: str) -> Any:
    """Return a class of the standard library as it is without gevent's patches.

    Its locks block a thread with all greenlets in it, so nothing may wait while it holds one. In
    return, a thread that contends for one waits for no hub.
    """
    if patched_by() == "gevent":
        return importlib.import_module("gevent.monkey").get_original(module, name)
    return getattr(importlib.import_module(module), name)


def do_before_this_thread_ends(work: Callable[[], None]) -> None:
    """Run ``work`` at the end of the real thread that calls this. Other threads ignore it."""
    if here := real_thread_here():
        here.last_works.add(work)


def renewed_by_greenlet(*, real_keeper: bool) -> str | None:
    """Return why leases here are renewed only while callers let other greenlets run, if so.

    ``real_keeper`` says whether the engine's keeper may be a real thread under gevent.
    """
    library = patched_by()
    if library is None or (library == "gevent" and real_keeper):
        return None
    return f"{library} has replaced this process's threads by greenlets"


def do_at_home(work: Callable[[], object]) -> bool:
    """Run ``work`` among the greenlets for which this real thread is there.

    Return whether that has been arranged: in any other thread, the caller can do it by itself.
    """
    if here := real_thread_here():
        here.do_at_home(work)
    return here is not None


def _hubs() -> Any:
    return importlib.import_module(".hubs", __package__)
