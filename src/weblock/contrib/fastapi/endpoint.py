"""Endpoints that a request can cancel when its lease is lost.

FastAPI has no hook between an endpoint and the dependencies around it. What these do must not be
interrupted, for a commit that was sent is not undone. So the first request of a route replaces the
endpoint in ``dependant.call``, where FastAPI finds it after it has solved the dependencies.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
from typing import Any

from ..asgi import AsyncRequestLocks
from ..kit import innermost


def interruptible(endpoint: Any) -> Any:
    """Return a coroutine function as one that can be cancelled, and others as they are.

    To cancel the task that waits for a thread does not stop the thread, and a stream is cancelled as
    such. An endpoint that is cancelled raises ``LeaseLost``, so that the dependencies around it roll
    back as they do for any error, and its task is cancelled no more.
    """
    function = endpoint
    while isinstance(function, functools.partial):
        function = function.func
    called = function if inspect.isroutine(function) else type(function).__call__
    if not inspect.iscoroutinefunction(called):
        return endpoint

    @functools.wraps(endpoint, updated=())
    async def call(*args: Any, **kwargs: Any) -> Any:
        task = asyncio.current_task()
        request = innermost(AsyncRequestLocks, for_application=True)
        if task is None or request is None:
            return await endpoint(*args, **kwargs)
        if request.lost:  # While a dependency ran, which nothing interrupts.
            request.check_done()
        cancelled_before = task.cancelling()
        request.endpoints.append(task)
        try:
            return await endpoint(*args, **kwargs)
        except asyncio.CancelledError:
            # The dependencies around it roll back for an error, and a server cancels for another reason.
            if request.interrupted and request.lost and task.cancelling() - 1 <= cancelled_before:
                request.check_done()
            raise
        finally:
            request.endpoints.remove(task)
            if request.interrupted and task.cancelling() > cancelled_before:
                task.uncancel()

    return call
