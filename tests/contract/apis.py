"""Both APIs behind one driver, so that each promise is written once.

An ``Actor`` is one flow of control: a thread for the blocking API, a task for the asyncio API.
A test tells its actors what to call, and either waits for the outcome (``do``) or not (``begin``).
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import queue
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from typing import Any

from tests.support.waiting import PATIENCE
from weblock import AsyncLocks, Locks
from weblock._runtime.runtimes import now


class Gate(threading.Event):
    """What work waits for until it is set; and the test, until the work has come there."""

    def __init__(self) -> None:
        super().__init__()
        self._reached = threading.Event()

    def until_reached(self) -> None:
        assert self._reached.wait(PATIENCE)

    def arrive(self) -> None:
        self._reached.set()


class Actor:
    """One flow of control, which makes one call after the other, and keeps what it was returned.

    A lease that a test does not name is still somebody's.
    """

    kept: list[Future[Any]]

    def begin(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Future[Any]:
        raise NotImplementedError

    def do(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return self.begin(function, *args, **kwargs).result(PATIENCE)

    def close(self) -> None:
        raise NotImplementedError


class ThreadActor(Actor):
    def __init__(self) -> None:
        self.kept = []
        self._calls: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._serve, name="actor", daemon=True)
        self._thread.start()

    def begin(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Future[Any]:
        done: Future[Any] = Future()
        self.kept.append(done)
        self._calls.put((done, function, args, kwargs))
        return done

    def close(self) -> None:
        self._calls.put(None)
        self._thread.join(PATIENCE)

    def _serve(self) -> None:
        while call := self._calls.get():
            done, function, args, kwargs = call
            try:
                done.set_result(function(*args, **kwargs))
            except BaseException as error:  # noqa: BLE001 - handed to whoever asked
                done.set_exception(error)


class TaskActor(Actor):
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.kept = []
        self._loop = loop
        self._calls: asyncio.Queue[Any] = asyncio.Queue()
        self._task = asyncio.run_coroutine_threadsafe(self._start(), loop).result(PATIENCE)

    def begin(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Future[Any]:
        done: Future[Any] = Future()
        self.kept.append(done)
        call = (done, function, args, kwargs)
        self._loop.call_soon_threadsafe(self._calls.put_nowait, call)
        return done

    def cancel(self) -> None:
        self._loop.call_soon_threadsafe(self._task.cancel)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._calls.put_nowait, None)
        asyncio.run_coroutine_threadsafe(asyncio.wait([self._task]), self._loop).result(PATIENCE)

    async def _start(self) -> asyncio.Task[None]:
        return asyncio.create_task(self._serve(), name="actor")

    async def _serve(self) -> None:
        while call := await self._calls.get():
            done, function, args, kwargs = call
            try:
                result = function(*args, **kwargs)
                done.set_result(await result if inspect.isawaitable(result) else result)
            except asyncio.CancelledError as error:
                asyncio.current_task().uncancel()
                done.set_exception(error)
            except BaseException as error:  # noqa: BLE001 - handed to whoever asked
                done.set_exception(error)


class Api:
    """Makes actors, and the locks that they call."""

    def __init__(self) -> None:
        self._actors: list[Actor] = []

    def actor(self) -> Actor:
        actor = self._new_actor()
        self._actors.append(actor)
        return actor

    def actors(self, count: int) -> list[Actor]:
        return [self.actor() for _ in range(count)]

    def close(self) -> None:
        for actor in self._actors:
            actor.close()

    def _new_actor(self) -> Actor:
        raise NotImplementedError


class BlockingApi(Api):
    name = "sync"

    def open(self, url: str, **options: Any) -> Locks:
        return Locks.from_url(url, **options)

    def shut(self, locks: Locks) -> None:
        locks.close()

    def section(self, locks: Locks, *keys: str, body: Callable[[Any], Any], **options: Any) -> Any:
        with locks.hold(*keys, **options) as lease:
            return body(lease)

    def lead(
        self, locks: Locks, key: str, body: Callable[[Any], Any], *, block: bool, **options: Any
    ) -> None:
        """Leads until ``body`` returns something true; with ``block``, in a block of each term."""
        for term in locks.lead(key, **options):
            with term if block else contextlib.nullcontext():
                if body(term):
                    break

    def serialize(self, locks: Locks, key: str, function: Callable[..., Any]) -> Any:
        return locks.serialized(key)(function)

    def work(self, function: Callable[..., Any]) -> Callable[..., Any]:
        return function

    def after(self, gate: Gate, function: Callable[..., Any]) -> Callable[..., Any]:
        """The same, which goes on when ``gate`` is set, and keeps no other actor from running."""

        def gated(*args: Any) -> Any:
            gate.arrive()
            assert gate.wait(PATIENCE)
            return function(*args)

        return gated

    def _new_actor(self) -> Actor:
        return ThreadActor()


class AsyncioApi(Api):
    name = "asyncio"

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="loop", daemon=True)
        self._thread.start()

    def open(self, url: str, **options: Any) -> AsyncLocks:
        return AsyncLocks.from_url(url, **options)

    def shut(self, locks: AsyncLocks) -> None:
        asyncio.run_coroutine_threadsafe(locks.close(), self.loop).result(PATIENCE)

    async def section(
        self, locks: AsyncLocks, *keys: str, body: Callable[[Any], Any], **options: Any
    ) -> Any:
        """Something to ``do``: ``body`` inside an ``async with`` block."""
        async with locks.hold(*keys, **options) as lease:
            return body(lease)

    async def lead(
        self,
        locks: AsyncLocks,
        key: str,
        body: Callable[[Any], Awaitable[Any]],
        *,
        block: bool,
        **options: Any,
    ) -> None:
        async for term in locks.lead(key, **options):
            async with term if block else contextlib.nullcontext():
                if await body(term):
                    break

    def serialize(self, locks: AsyncLocks, key: str, function: Callable[..., Any]) -> Any:
        return locks.serialized(key)(self.work(function))

    def work(self, function: Callable[..., Any]) -> Callable[..., Any]:
        async def awaited(*args: Any, **kwargs: Any) -> Any:
            return function(*args, **kwargs)

        awaited.__signature__ = inspect.signature(function)
        return awaited

    def after(self, gate: Gate, function: Callable[..., Any]) -> Callable[..., Any]:
        async def gated(*args: Any) -> Any:
            gate.arrive()
            until = now() + PATIENCE
            while not gate.is_set():
                assert now() < until
                await asyncio.sleep(0.002)
            return function(*args)

        return gated

    def tasks(self) -> set[asyncio.Task[Any]]:
        return asyncio.all_tasks(self.loop)

    def close(self) -> None:
        super().close()
        asyncio.run_coroutine_threadsafe(self.loop.shutdown_default_executor(), self.loop).result(
            PATIENCE
        )
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(PATIENCE)
        self.loop.close()

    def _new_actor(self) -> TaskActor:
        return TaskActor(self.loop)


APIS = {"sync": BlockingApi, "asyncio": AsyncioApi}
