"""The blocking runtime: every port method blocks, so that coroutines never suspend. The keeper runs on it."""

from __future__ import annotations

import queue
import random
import threading
import time
import warnings
from collections.abc import Callable, Coroutine
from queue import Empty
from typing import Any, TypeVar

from .._core.keeping import Keeper
from .._core.ports import Engine, Message
from .._platform.greenlets import patched_by, refuse_other_threads
from .._platform.logs import logger
from .._platform.threads import BackgroundThread
from ..errors import ConfigurationError
from . import clock

T = TypeVar("T")


def drive(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine of the blocking API to its end, in one step.

    The idea is that of gel-python's ``iter_coroutine``. One that suspends is a bug, and raises.
    """
    if _in_one_thread:
        try:
            refuse_other_threads()
        except ConfigurationError:
            work.close()
            raise
    try:
        work.send(None)
    except StopIteration as stop:
        result: T = stop.value
        return result
    work.close()
    raise RuntimeError("a coroutine suspended in the blocking runtime")


_in_one_thread = False
"""Whether threads are greenlets: then all of them that lock anything belong to one real thread."""


class BlockingMailbox:
    """A queue, which no signal can interrupt: a finalizer may put a message into it."""

    __slots__ = ("_messages", "put")

    deaf = False

    def __init__(self) -> None:
        self._messages: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self.put: Callable[[Message], None] = self._messages.put

    async def heard(self, timeout: float | None) -> Message | None:
        if timeout is not None:
            timeout = min(max(0.0, timeout), threading.TIMEOUT_MAX)
        try:
            return self._messages.get(timeout=timeout)
        except Empty:
            return None


class BlockingRuntime:
    suspends = False
    mailbox = BlockingMailbox
    now = staticmethod(clock.now)
    jitter = staticmethod(random.random)
    new_owner = staticmethod(clock.new_owner)
    control = staticmethod(clock.control)
    is_part_of = staticmethod(clock.is_part_of)

    def __init__(self, *, renews: bool = False) -> None:
        self.renews = renews
        if patched_by() == "gevent":
            global _in_one_thread  # noqa: PLW0603 - not before locks are made is it known
            _in_one_thread = True
            refuse_other_threads()

    def holds_up(self, flow: object) -> bool:
        # Where blocking code runs on an event loop, whatever waits in one task stops all of them.
        return clock.waits_for_this_loop(flow) or clock.runs_on_this_loop(flow)

    async def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


class KeeperThread:
    """Runs one engine's keeper in a daemon thread, from when it is first needed."""

    def __init__(self, engine: Engine) -> None:
        self._thread = BackgroundThread("weblock-keeper", lambda: drive(self.keeper.run()))
        self.keeper = Keeper(
            BlockingRuntime(renews=True),
            engine.connect,
            self._thread.start,
            report_forgotten=_warn_of_forgotten,
            disconnect=engine.switchboard.disconnect,
        )

    def close(self, timeout: float = 5.0) -> None:
        """End the thread, and wait for that at most ``timeout`` seconds.

        Pending releases come first, if the engine answers in that time.
        """
        self.keeper.close()
        self._thread.join(timeout)


def _warn_of_forgotten(message: str) -> None:
    try:
        warnings.warn(message, ResourceWarning, stacklevel=1)
    except ResourceWarning:  # Where warnings are errors: nobody could catch it here.
        logger.error(message)  # noqa: TRY400
