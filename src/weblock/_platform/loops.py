"""Event loops, and work that they leave to threads."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import TypeVar

R = TypeVar("R")


def in_thread(executor: Executor | None, work: Callable[[], R]) -> asyncio.Future[R]:
    """Run work in a thread of an executor, of which ``None`` is the loop's own.

    Raises ``RuntimeError`` if no thread can be started. Then it is not run: the executor has queued
    it all the same, and would run it when it gets a thread.
    """
    outcome: Future[R] = Future()

    def run() -> None:
        if not outcome.set_running_or_notify_cancel():
            return
        try:
            outcome.set_result(work())
        except BaseException as error:  # noqa: BLE001 - raised in the loop
            outcome.set_exception(error)

    loop = asyncio.get_running_loop()
    try:
        loop.run_in_executor(executor, run)
    except RuntimeError:
        if outcome.cancel():  # Else a thread that was there has begun it just now.
            raise
    return asyncio.wrap_future(outcome, loop=loop)


async def beside_loop(work: Callable[[], object]) -> None:
    """Do in a thread what the loop should not wait for; where none can be started, do it here."""
    try:
        done = in_thread(None, work)
    except RuntimeError:
        work()
    else:
        await done


def running() -> asyncio.AbstractEventLoop | None:
    """Return the event loop of this thread, if one runs."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
