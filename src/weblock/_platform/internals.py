"""All private names of asyncio that weblock uses; ``tests/test_private_names.py`` notices when one goes away."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any, Final

from .greenlets import patched_by


def _by_public_name() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


_of_thread: Final[Callable[[], Any]] = getattr(asyncio, "_get_running_loop", _by_public_name)


def _of_greenlet() -> Any:
    # asyncio knows one running loop for each real thread, whichever greenlet of it asks.
    loop, here = _of_thread(), threading.get_ident()
    return loop if getattr(loop, "_thread_id", here) == here else None


running_loop: Final[Callable[[], asyncio.AbstractEventLoop | None]] = (
    _of_greenlet if patched_by() else _of_thread
)
"""Returns the event loop that runs in this thread or greenlet, or ``None``.

Outside a loop the public function raises, which takes several times as long, and the blocking API asks often.
"""
