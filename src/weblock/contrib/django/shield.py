"""Work that goes on when its waiter is cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextvars import copy_context
from typing import Any

from ..._platform.logs import logger


async def to_its_end(work: Coroutine[Any, Any, Any], *, may_end: Callable[[], bool]) -> Any:
    """What ``work`` returns or raises, with what it sets in the context.

    Django cancels a request when its client leaves, and a thread that works for it goes on all the
    same. So work is cancelled only while ``may_end`` says that it may be; otherwise that it was to
    be cancelled is said when it has ended.
    """
    context = copy_context()
    task = asyncio.create_task(work, context=context)
    cancelled = False
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError:
            cancelled = True
            if may_end():
                task.cancel()
    if cancelled:
        if not task.cancelled() and (error := task.exception()):
            logger.error("a request that was cancelled failed", exc_info=error)
        raise asyncio.CancelledError
    for variable, value in context.items():
        if variable.get(None) is not value:
            variable.set(value)
    return task.result()
