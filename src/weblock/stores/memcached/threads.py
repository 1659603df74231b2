"""Threads that do what blocks for event loops: the driver is blocking."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

from ..._core.ports import Runtime
from ..._platform.loops import in_thread
from ...errors import EngineUnavailable

THREADS: Final = 16

T = TypeVar("T")


class Threads:
    """The threads of one process, started when they are first needed."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._closed = False
        self._guard = threading.Lock()
        self._executor: ThreadPoolExecutor | None = None

    async def do(self, runtime: Runtime, work: Callable[[], T]) -> T:
        """Run a function that blocks: here, or in a thread if it would block an event loop.

        Raises ``EngineUnavailable`` if they were closed, or the machine has no more threads.
        """
        if not runtime.suspends:
            return work()
        executor = self._opened()
        try:
            done = in_thread(executor, work)
        except RuntimeError as error:
            reason = "it was closed" if self._closed else f"no thread could be started: {error}"
            raise EngineUnavailable(self._name, reason) from error
        return await done

    def close(self) -> None:
        with self._guard:
            self._closed = True
            executor, self._executor = self._executor, None
        if executor:
            executor.shutdown(wait=False)

    def _opened(self) -> ThreadPoolExecutor:
        with self._guard:
            if self._closed:
                raise EngineUnavailable(self._name, "it was closed")
            self._executor = self._executor or ThreadPoolExecutor(THREADS, "weblock-memcached")
            return self._executor
