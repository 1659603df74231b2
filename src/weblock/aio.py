"""The asyncio face: the same methods under the same names, awaitable."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import ParamSpec, Self, TypeVar, Unpack

from ._face import BaseLease, Duration, Face, HoldOptions, Inside, seconds
from ._runtime.aio import AsyncioRuntime
from .errors import LeaseLost, LockTimeout
from .inspection import KeyInfo, KeyInfos
from .keys import KeyTemplate

P = ParamSpec("P")
R = TypeVar("R")


class AsyncLocks(Face):
    """Locks for tasks, on one engine.

    A lock is only a description: nothing of a holder lives here, so one ``AsyncLocks`` serves all
    tasks of a process, and all of its event loops. ``LocksOptions`` lists the options.
    """

    _runtime = AsyncioRuntime

    def hold(self, *keys: str, **options: Unpack[HoldOptions]) -> AsyncHold:
        """Holds the keys, all or none, for an ``async with`` block, which gets the ``AsyncLease``.

        Raises ``LockTimeout`` if they were not free within ``wait`` seconds, ``EngineUnavailable``
        if the engine did not answer, and, when the block ends, ``LeaseLost`` if the lease ended
        before the block did.
        """
        return AsyncHold(self, keys, options)

    async def acquire(self, *keys: str, **options: Unpack[HoldOptions]) -> AsyncLease:
        """Holds the keys until ``release`` is called on the lease. Raises as ``hold`` does."""
        return AsyncLease(self._locker, await self._acquire(keys, options))

    async def try_acquire(self, *keys: str, **options: Unpack[HoldOptions]) -> AsyncLease | None:
        """The lease if the keys are free at this moment, else ``None``. Never waits."""
        options["wait"] = 0
        try:
            return await self.acquire(*keys, **options)
        except LockTimeout:
            return None

    def serialized(
        self, key: str, **options: Unpack[HoldOptions]
    ) -> Callable[[Callable[P, Awaitable[R]]], Callable[P, Awaitable[R]]]:
        """Decorates a coroutine function so that its calls never overlap.

        ``key`` may name arguments of the function, as in ``"item:{item_id}"``.
        """
        template = KeyTemplate.parse(key)
        self._options.of_call(options)  # What cannot work is refused here, not at the first call.

        def decorate(function: Callable[P, Awaitable[R]]) -> Callable[P, Awaitable[R]]:
            if not inspect.iscoroutinefunction(function):
                raise TypeError(f"{function!r} is not a coroutine function: decorate it with Locks")
            key_of = template.for_call_of(function)

            @functools.wraps(function)
            async def serialized(*args: P.args, **kwargs: P.kwargs) -> R:
                async with self.hold(key_of(args, kwargs), **options):
                    return await function(*args, **kwargs)

            return serialized

        return decorate

    async def inspect(self, key: str) -> KeyInfo | None:
        """Who holds the key and who waits for it; ``None`` if nobody does either.

        It is a look: it neither waits nor changes anything, and is out of date at once. Raises
        ``InvalidKey``, or ``EngineUnavailable`` if the engine did not answer.
        """
        return await self._inspect(key)

    async def list(self, prefix: str = "", *, limit: int = 1000) -> KeyInfos:
        """The keys that somebody holds or waits for, in the order of their names.

        Those that begin with ``prefix``, in our namespace; no more than ``limit``, and it is not
        said which ones if there are more. They are looked at one after the other, so the whole is
        no picture of a single moment. Raises ``InvalidKey`` for a prefix that no key can have, or
        ``EngineUnavailable`` if the engine did not answer.
        """
        return await self._list(prefix, limit)

    async def force_release(self, key: str) -> bool:
        """Takes the lease of the key away from whoever has it; whether there was one.

        For a holder that hangs, say. The key passes to the first waiter at once. The former holder
        is not asked, and learns of it when it next hears from the engine: at its renewal, a third
        of its ttl later at most, or when it extends or releases; without renewal, perhaps not
        before its ttl has passed. **Until then both may be at work**; the larger fence of the new
        lease tells them apart. Then it gets ``LeaseLost``, with the reason ``taken``.

        A lease that is taken away is logged as a warning. Raises ``InvalidKey``, or
        ``EngineUnavailable`` if the engine did not answer: whether it took the lease is not known
        then, and to ask again may take another, which came in between.
        """
        return await self._force_release(key)

    async def close(self) -> None:
        """Frees what the engine has in this process, if nobody else in it uses the engine."""
        await asyncio.to_thread(self._close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()


class AsyncLease(BaseLease):
    """Possession of one or several keys, until it is released or lost."""

    __slots__ = ()

    async def extend(self, by: Duration) -> None:
        """Pushes the deadline out by so many seconds.

        Raises ``LeaseLost`` (a lease that is lost stays lost) or ``EngineUnavailable``.
        """
        for holding in self._leased:
            await self._locker.extend(holding, seconds("by", by))

    async def release(self) -> None:
        """Gives the keys back, even if the caller is cancelled meanwhile.

        A second time it does nothing. Raises ``LeaseLost`` if the lease had ended before.
        """
        await self._locker.release(self._leased)

    def on_lost(self, callback: Callable[[], None]) -> None:
        """Calls ``callback`` once, in the running event loop, when the lease is lost."""
        loop = asyncio.get_running_loop()

        def tell() -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(callback)

        self._on_lost(tell)


class AsyncHold:
    """An ``async with`` block that holds keys."""

    __slots__ = ("_inside", "_keys", "_locks", "_options")

    def __init__(self, locks: AsyncLocks, keys: tuple[str, ...], options: HoldOptions) -> None:
        self._locks = locks
        self._keys = keys
        self._options = options
        self._inside: Inside[AsyncLease] = Inside()

    async def __aenter__(self) -> AsyncLease:
        return self._inside.enter(await self._locks.acquire(*self._keys, **self._options))

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            await self._inside.leave().release()
        except LeaseLost as loss:
            if error is None:
                raise
            error.add_note(f"meanwhile, the {loss}")
