"""The asyncio face: the same methods under the same names, awaitable."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
from collections.abc import Awaitable, Callable, Coroutine
from types import TracebackType
from typing import Any, Literal, ParamSpec, Self, TypeVar, TypeVarTuple, Unpack, overload

from ._face import BaseLease, Face, Inside
from ._options import (
    Duration,
    HoldOptions,
    OnBusy,
    in_turn,
    kept_for,
    refuse_coroutine,
    seconds,
    skips_where_busy,
    without_waiting,
)
from ._runtime.aio import AsyncioRuntime
from .caching import CacheOptions, Keeping, Turns, of_hold, value_of
from .errors import LeaseLost, LockTimeout
from .inspection import KeyInfo, KeyInfos
from .keys import KeyTemplate

P = ParamSpec("P")
R = TypeVar("R")
Ts = TypeVarTuple("Ts")


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
        return AsyncLease(*await self._acquire(keys, options))

    async def try_acquire(self, *keys: str, **options: Unpack[HoldOptions]) -> AsyncLease | None:
        """The lease if the keys are free at this moment, else ``None``. Never waits.

        Takes the options of ``acquire`` but for ``wait``.
        """
        options = without_waiting(options)
        try:
            return await self.acquire(*keys, **options)
        except LockTimeout:
            return None

    def serialized(
        self, key: str, **options: Unpack[HoldOptions]
    ) -> Callable[[Callable[P, Awaitable[R]]], Callable[P, Coroutine[Any, Any, R]]]:
        """Decorates a coroutine function so that its calls never overlap.

        ``key`` may name arguments of the function, as in ``"item:{item_id}"``.
        """
        template = KeyTemplate.parse(key)
        self._options.of_call(options)  # What cannot work is refused here, not at the first call.

        def decorate(
            function: Callable[P, Awaitable[R]],
        ) -> Callable[P, Coroutine[Any, Any, R]]:
            if not inspect.iscoroutinefunction(function):
                raise TypeError(f"{function!r} is not a coroutine function: decorate it with Locks")
            key_of = template.for_call_of(function)

            @functools.wraps(function)
            async def serialized(*args: P.args, **kwargs: P.kwargs) -> R:
                async with self.hold(key_of(args, kwargs), **options):
                    return await function(*args, **kwargs)

            return serialized

        return decorate

    @overload
    async def run(
        self,
        key: str,
        work: Callable[[*Ts], Awaitable[R]],
        *args: *Ts,
        on_busy: Literal["wait"] = ...,
        **options: Unpack[HoldOptions],
    ) -> R: ...

    @overload
    async def run(
        self,
        key: str,
        work: Callable[[*Ts], Awaitable[R]],
        *args: *Ts,
        on_busy: Literal["skip"],
        **options: Unpack[HoldOptions],
    ) -> R | None: ...

    async def run(
        self,
        key: str,
        work: Callable[[*Ts], Awaitable[R]],
        *args: *Ts,
        on_busy: OnBusy = "wait",
        **options: Unpack[HoldOptions],
    ) -> R | None:
        """Runs ``work(*args)`` while it holds the key, and returns what it returns.

        The lease is renewed for as long as the work takes. If it is lost nevertheless, the work is
        cancelled, and ``LeaseLost`` raised.

        ``on_busy="skip"`` gives up at once where the key is busy (or after ``wait`` seconds, if
        that is given), does not call ``work``, and returns ``None``. Keyword arguments are the
        options of ``hold``; for those of the work there is ``functools.partial``. Raises what the
        work raises, and as ``hold`` does.
        """
        refuse_coroutine(work)
        skips = skips_where_busy(on_busy, options)
        try:
            lease = await self.acquire(key, **options)
        except LockTimeout:
            if skips:
                return None
            raise
        async with lease, CancelledWhenLost(lease):
            return await call(work, args)

    async def once(
        self,
        key: str,
        step: Callable[[*Ts], Awaitable[object]],
        *args: *Ts,
        expiry: Duration | None = None,
        **options: Unpack[HoldOptions],
    ) -> bool:
        """Runs a step once for all processes, for good or for ``expiry`` seconds; whether it ran here.

        ``False`` says that another has done it, to the end. While another is at it we wait, without
        end unless ``wait`` is given. When the process that runs the step dies, the next one takes
        over; a step that raises, or that loses its lease, is not noted as done, and the next one
        runs it again. So it runs at least once, and never again while the engine remembers it:
        ``memory://`` and ``noop://`` do for as long as their process lives.

        Raises what the step raises, and as ``hold`` does; ``EngineUnavailable`` also if the step
        ran and could not be noted. It never fails open.
        """
        refuse_coroutine(step)
        keep = kept_for(expiry)
        if await self._is_done(key):
            return False
        async with self.hold(key, **in_turn(options)) as lease, CancelledWhenLost(lease):
            return await self._unless_done(lease, lambda: call(step, args), keep)

    async def forget(self, key: str) -> None:
        """Takes back that the step of ``once`` has been done: the next one to come runs it again.

        One that is running meanwhile notes it anew at its end. Raises ``EngineUnavailable``.
        """
        await self._forget(key)

    @overload
    def cached(
        self, key: str, compute: Callable[[], Awaitable[R]], **options: Unpack[CacheOptions]
    ) -> Coroutine[Any, Any, R]: ...

    @overload
    def cached(
        self, key: str, compute: None = None, **options: Unpack[CacheOptions]
    ) -> Callable[[Callable[P, Awaitable[R]]], Callable[P, Coroutine[Any, Any, R]]]: ...

    def cached(
        self,
        key: str,
        compute: Callable[[], Awaitable[R]] | None = None,
        **options: Unpack[CacheOptions],
    ) -> (
        Coroutine[Any, Any, R]
        | Callable[[Callable[P, Awaitable[R]]], Callable[P, Coroutine[Any, Any, R]]]
    ):
        """The value that ``compute`` makes, from a cache; of all who miss it at once, one computes it.

        For a value: ``locks.cached("report", make_report, expiry=60, cache=cache)``. Without
        ``compute`` it decorates a function, and the key may name its arguments, as in
        ``"report:{day}"``. ``CacheOptions`` lists the options. The key is also that of the cache:
        to delete it there has the value computed anew.

        The others wait for the one who computes, or, within ``stale`` seconds of the expiry, are
        served the former value. ``None`` is a value like any other. An error of ``compute`` reaches
        who called it, nothing is kept, and the next one in turn computes. One that takes longer
        than ``wait`` leaves the others with ``LockTimeout``; it keeps its lease meanwhile, and if
        that is lost its value is returned but not kept. Raises also ``EngineUnavailable``, and what
        the cache raises.
        """
        keeping = Keeping(options, suspends=True)
        turns = Turns(self._take, self._give_back, of_hold(options))
        self._options.of_call(turns.options)

        if compute is not None:
            refuse_coroutine(compute)
            return value_of(key, compute, keeping, turns)
        template = KeyTemplate.parse(key)

        def decorate(
            function: Callable[P, Awaitable[R]],
        ) -> Callable[P, Coroutine[Any, Any, R]]:
            if not inspect.iscoroutinefunction(function):
                raise TypeError(f"{function!r} is not a coroutine function: decorate it with Locks")
            key_of = template.for_call_of(function)

            @functools.wraps(function)
            async def cached(*args: P.args, **kwargs: P.kwargs) -> R:
                compute = functools.partial(function, *args, **kwargs)
                return await value_of(key_of(args, kwargs), compute, keeping, turns)

            return cached

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

    async def force_release(self, key: str, *, by: str | None = None) -> bool:
        """Takes the lease of the key away from whoever has it; whether there was one.

        For a holder that hangs, say. The key passes to the first waiter at once. The former holder
        is not asked, and learns of it when it next hears from the engine: at its renewal, a third
        of its ttl later at most, or when it extends or releases; without renewal, perhaps not
        before its ttl has passed. **Until then both may be at work**; the larger fence of the new
        lease tells them apart. Then it gets ``LeaseLost``, with the reason ``taken``.

        A lease that is taken away is logged as a warning by ``weblock.audit``, with who took it:
        ``by``, or else the label. Raises ``InvalidKey``, or ``EngineUnavailable`` if the engine did
        not answer: whether it took the lease is not known then, and to ask again may take another,
        which came in between.
        """
        return await self._force_release(key, by)

    async def ping(self) -> float:
        """Asks the engine something that changes nothing, once. Returns the seconds it took.

        For health checks. Raises ``EngineUnavailable`` if the engine did not answer; one that
        recovers does answer.
        """
        return await self._ping()

    async def close(self) -> None:
        """Frees what the engine has in this process, if nobody else in it uses the engine."""
        await asyncio.to_thread(self._close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()


class AsyncLease(BaseLease):
    """Possession of one or several keys, until it is released or lost.

    ``async with lease:`` releases at the end of the block, and raises ``LeaseLost`` there as
    ``hold`` does.
    """

    __slots__ = ()

    async def extend(self, by: Duration) -> None:
        """Pushes the deadline out by so many seconds.

        Raises ``LeaseLost`` (a lease that is lost stays lost) or ``EngineUnavailable``.
        """
        await self._extend(seconds("by", by))

    async def release(self) -> None:
        """Gives the keys back, even if the caller is cancelled meanwhile.

        A second time it does nothing. Raises ``LeaseLost`` if the lease had ended before.
        """
        await self._locker.release(self._holdings)

    async def __aenter__(self) -> Self:
        """For a block at whose end it is released."""
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            await self.release()
        except LeaseLost as loss:
            if error is None:
                raise
            error.add_note(f"meanwhile, the {loss}")

    def on_lost(self, callback: Callable[[], None]) -> None:
        """Calls ``callback`` once, in the running event loop, when the lease is lost."""
        loop = asyncio.get_running_loop()

        def tell() -> None:
            with contextlib.suppress(RuntimeError):  # The loop is closed.
                loop.call_soon_threadsafe(callback)

        if len(self._holdings) == 1:
            self._holdings[0].on_lost(tell)
        else:
            self._on_lost(tell)


AsyncLocks._lease = AsyncLease  # noqa: SLF001 - either class names the other


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
        await self._inside.leave().__aexit__(exc_type, error, traceback)


class CancelledWhenLost:
    """An ``async with`` block that is cancelled when a lease is lost, and raises ``LeaseLost``."""

    __slots__ = ("_cancelled_before", "_cancels", "_lease", "_task", "_timer")

    def __init__(self, lease: AsyncLease) -> None:
        self._lease = lease
        self._task: asyncio.Task[Any] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._cancels = False

    async def __aenter__(self) -> None:
        self._task = asyncio.current_task()
        self._cancelled_before = self._task.cancelling() if self._task else 0
        self._lease.on_lost(self._cancel)
        self._look()

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        task, self._task = self._task, None
        if self._timer:
            self._timer.cancel()
        if not (task and self._cancels):
            return
        others_cancel_too = task.uncancel() > self._cancelled_before
        if isinstance(error, asyncio.CancelledError) and not others_cancel_too:
            self._lease.check()

    def _look(self) -> None:
        """Has the loss noticed in time, also while the keeper waits for an engine that is silent."""
        if self._lease.held:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._lease.remaining(), self._look)
        else:
            with contextlib.suppress(LeaseLost):
                self._lease.check()

    def _cancel(self) -> None:
        if self._task:
            self._cancels = True
            self._task.cancel()


async def call(work: Callable[[*Ts], Awaitable[R]], args: tuple[*Ts]) -> R:
    """Calls what should be a coroutine function."""
    coming = work(*args)
    if not inspect.isawaitable(coming):
        raise TypeError(f"{work!r:.200} is not a coroutine function: give it to Locks")
    return await coming
