"""How a request is interrupted whose lease was lost.

FastAPI calls nobody between an endpoint and the dependencies around it, but a task that is suspended
shows which coroutines it is in. Only a lost lease makes us look at that.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Iterator, Mapping
from types import CodeType
from typing import Any, Final

from ..asgi import RequestLocks

LOOK_AGAIN: Final = 0.05
"""Seconds after which it is looked again whether a request can be interrupted."""


class Progress:
    """Of one request, from inside the task that runs its endpoint."""

    __slots__ = ("_endpoint", "_locks", "_task")

    def __init__(self, scope: Mapping[str, Any], locks: RequestLocks) -> None:
        self._task = asyncio.current_task()
        self._endpoint = _code_of(scope.get("endpoint"))
        self._locks = locks

    def interrupt(self) -> None:
        """Cancels the endpoint if it is ``async def``, or a stream that it gave; once.

        Never what runs in a thread, nor a dependency: whoever cancels the waiting for a thread has
        it work on, and a commit that was sent is not called back.
        """
        if self._locks.over or self._task is None or self._task.done():
            return
        if self._locks.streams or self._is_in(self._endpoint):
            self._locks.interrupted = True
            self._task.cancel()
        else:
            asyncio.get_running_loop().call_later(LOOK_AGAIN, self.interrupt)

    def _is_in(self, code: CodeType | None) -> bool:
        return self._task is not None and any(each is code for each in _codes_of(self._task))


def _code_of(endpoint: Any) -> CodeType | None:
    while isinstance(endpoint, functools.partial):
        endpoint = endpoint.func
    code = getattr(endpoint, "__code__", None) or getattr(type(endpoint).__call__, "__code__", None)
    return code if isinstance(code, CodeType) else None


def _codes_of(task: asyncio.Task[Any]) -> Iterator[CodeType]:
    """What a suspended task is in, from the outside to the inside."""
    awaited: Any = task.get_coro()
    while awaited is not None:
        if code := getattr(awaited, "cr_code", None):
            yield code
        awaited = getattr(awaited, "cr_await", None)
