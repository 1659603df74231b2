"""The asyncio API: the methods of ``Locks`` under the same names, awaitable."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator
from types import TracebackType
from typing import Any, Literal, NoReturn, ParamSpec, Self, TypeVar, TypeVarTuple, Unpack, overload

from ._adapting import AtLeast
from ._api import BaseLease, BaseLocks, HoldBlock, leaving
from ._core.table import Asked
from ._options import (
    SHORTEST_EXPIRY,
    Duration,
    HoldOptions,
    OnBusy,
    OnLost,
    cancels_when_lost,
    count,
    in_turn,
    refuse_blocking_function,
    refuse_coroutine,
    refuse_what_cannot_be_called,
    seconds,
    skips_where_busy,
    without_waiting,
)
from ._platform.forks import enter_child, getpid, process
from ._platform.threads import beside_loop, phases, runs_here
from ._runtime.runtimes import AsyncioRuntime, in_running_loop
from .caching import CacheOptions, Keeping
from .errors import LeaseLost, LockTimeout
from .inspection import KeyInfo, KeyInfos, info_of
from .keys import KeyTemplate, check_key

P = ParamSpec("P")
R = TypeVar("R")
Ts = TypeVarTuple("Ts")


class AsyncLocks(BaseLocks):
    """Locks for tasks of asyncio, on one engine.

    It holds no state of its leases, so one serves all tasks and event loops of a process.
    Create it with ``from_url`` or ``from_client``; ``LocksOptions`` lists the options.
    """

    _runtime = AsyncioRuntime

    def hold(
        self,
        *keys: str,
        on_lost: OnLost = "continue",  # asyncio only
        **options: Unpack[HoldOptions],
    ) -> AsyncHold:
        """Hold keys for an ``async with`` block, which gets the ``AsyncLease``.

        Several keys are acquired in one fixed order, all or none.

        Args:
            *keys: What to lock: 1 to 512 characters each, such as ``"item:7"``.
            on_lost: ``"cancel"`` cancels the block when the lease is lost, and raises ``LeaseLost``.
                ``"continue"`` (the default) raises it when the block ends.
            **options: Override the defaults of this ``AsyncLocks``; durations are seconds.
                ``ttl`` (10): how long the lease lasts unless it is renewed;
                ``wait`` (5): how long to wait, 0 for not at all, ``None`` without limit;
                ``max_hold`` (``None``): after how long it is no longer renewed, and is lost;
                ``renew`` (``True``): whether it is renewed while its holder lives;
                ``max_waiters`` (1000): how many callers may wait for a key;
                ``limit`` (1): how many may hold a key at once;
                ``shared`` (``False``): whether any number of shared holders have it together, and no other;
                ``label`` (host name and process id): what others see of the holder;
                ``on_unavailable`` (``"raise"``): with ``"open"``, run without a lease while the engine
                does not answer.

        Raises:
            LockTimeout: The keys were not free within ``wait`` seconds (5 by default).
            EngineUnavailable: The engine did not answer.
            AlreadyHeld: This task already holds one of the keys, and would wait for itself.
            LeaseLost: When the block ends: the lease ended before the block did. Before it begins: the
                lease of one of several keys ended while this call waited for another, because of
                ``max_hold`` for example.
        """
        if cancels_when_lost(on_lost):  # asyncio only
            return _CancellingHold(self, keys, options)
        return AsyncHold(self, keys, options)

    async def acquire(self, *keys: str, **options: Unpack[HoldOptions]) -> AsyncLease:
        """Acquire keys, and hold them until ``release`` is called on the lease.

        Takes the arguments of ``hold``, and raises the same errors; ``LeaseLost`` only if the lease of
        one of several keys ends while another is waited for.

        Returns:
            The lease. Without ``release`` it is renewed until no code refers to it any more.
        """
        return AsyncLease(*await self._acquire(keys, options))

    def try_acquire(
        self, *keys: str, **options: Unpack[HoldOptions]
    ) -> Coroutine[Any, Any, AsyncLease | None]:
        """Return the lease if the keys are free at this moment, else ``None``. Never waits.

        Takes the arguments of ``hold`` except ``wait``.

        Raises:
            EngineUnavailable: The engine did not answer.
            TypeError: The result was used as a condition without ``await``.
        """
        return _Trial(self._try_acquire(keys, without_waiting(options)))

    async def _try_acquire(self, keys: tuple[str, ...], options: HoldOptions) -> AsyncLease | None:
        try:
            return AsyncLease(*await self._acquire(keys, options))
        except LockTimeout:
            return None

    async def take_over(self, token: str, **options: Unpack[HoldOptions]) -> AsyncLease:
        """Continue the lease that a token from ``hand_over`` stands for.

        It has the keys and the fence of the lease that was handed over, is renewed here, and is lost
        as any other. Never waits.

        Args:
            token: The string that ``lease.hand_over()`` returned.
            **options: ``ttl``, ``max_hold``, ``renew`` and ``label``, as of ``hold``.

        Raises:
            LeaseLost: Another caller has taken it over, or it has ended.
            EngineUnavailable: The engine did not answer. If the lease was taken over nevertheless, it
                is given back.
            ConfigurationError: It is no token, is damaged, or belongs to another namespace.
        """
        return AsyncLease(*await self._take_over(token, options))

    def serialized(
        self, key: str, **options: Unpack[HoldOptions]
    ) -> Callable[[Callable[P, Awaitable[R]]], Callable[P, Coroutine[Any, Any, R]]]:
        """Decorate a coroutine function so that its calls never overlap.

        Args:
            key: The key, which may name arguments of the function: ``"item:{item_id}"``.
            **options: Override the defaults: see ``HoldOptions``.

        Raises:
            ConfigurationError: The template or an option cannot work.
            TypeError: Anything but an ``async def`` is decorated, or one that yields.
        """
        template = KeyTemplate.parse(key)
        self._options.of_call(options)  # What cannot work is refused here, not at the first call.

        def decorate(
            function: Callable[P, Awaitable[R]],
        ) -> Callable[P, Coroutine[Any, Any, R]]:
            refuse_blocking_function(function)
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
        at_least: Duration | None = ...,
        **options: Unpack[HoldOptions],
    ) -> R: ...

    @overload
    async def run(
        self,
        key: str,
        work: Callable[[*Ts], Awaitable[R]],
        *args: *Ts,
        on_busy: Literal["skip"],
        at_least: Duration | None = ...,
        **options: Unpack[HoldOptions],
    ) -> R | None: ...

    async def run(
        self,
        key: str,
        work: Callable[[*Ts], Awaitable[R]],
        *args: *Ts,
        on_busy: OnBusy = "wait",
        at_least: Duration | None = None,
        **options: Unpack[HoldOptions],
    ) -> R | None:
        """Call ``work(*args)`` while holding the key, and return its result.

        The lease is renewed for as long as the work takes. If it is lost nevertheless, the work is
        cancelled and ``LeaseLost`` is raised.

        Args:
            key: What to lock.
            work: A coroutine function. For its keyword arguments, use ``functools.partial``.
            *args: The arguments of the work.
            on_busy: ``"wait"`` (the default) waits for a busy key and then raises ``LockTimeout``.
                ``"skip"`` returns ``None`` without calling the work; it does not wait, unless
                ``wait`` is given.
            at_least: For how many seconds the key stays taken, also if the work ends before, so
                that a machine whose clock is late does not run it again. The lease stays in the
                engine meanwhile, up to one ``ttl`` longer; with ``file://`` and ``memory://``, as
                long as this process has its locks open. ``max_hold`` is the upper limit.
            **options: Override the defaults: see ``HoldOptions``.

        Raises:
            LockTimeout: The key was busy, with ``on_busy="wait"``.
            EngineUnavailable: The engine did not answer.
            LeaseLost: The lease ended before the work did.
        """
        refuse_coroutine(work)
        skips = skips_where_busy(on_busy, options)
        least = AtLeast(self, at_least, options)
        try:
            lease = CancellingLease(*await self._acquire((key,), options))
        except LockTimeout:
            if skips:
                return None
            raise
        async with lease:
            await least.begin(lease)
            try:
                return await call(work, args)
            finally:
                least.end(lease)

    async def once(
        self,
        key: str,
        step: Callable[[*Ts], Awaitable[object]],
        *args: *Ts,
        expiry: Duration | None = None,
        **options: Unpack[HoldOptions],
    ) -> bool:
        """Run a step once for all processes, and return whether it ran here.

        While another caller runs the step, this one waits, without limit unless ``wait`` is given,
        and then returns ``False``. If the process that runs it dies, the step raises, or its lease
        is lost, the next caller runs it. So a step runs at least once: write a step that can be
        repeated.

        The engine remembers that the step is done, whatever becomes of what the step has made. A step
        that creates what may be gone tomorrow, such as tables, and does nothing where they exist,
        belongs into a ``hold`` instead.

        Args:
            key: Names the step. A new version of the step needs a new key: ``"init:v43"``.
            step: What to run.
            *args: The arguments of the step.
            expiry: For how many seconds the step stays done; ``None`` (the default) is forever, or
                as long as the engine keeps its data.
            **options: Override the defaults: see ``HoldOptions``. It never fails open.

        Raises:
            LockTimeout: Another caller ran the step for longer than ``wait``.
            EngineUnavailable: The engine did not answer, or could not record that the step is done.
            LeaseLost: The lease ended before the step did.
        """
        refuse_coroutine(step)
        keep = None if expiry is None else seconds("expiry", expiry, least=SHORTEST_EXPIRY)
        if await self._is_done(key):
            return False
        async with self.hold(key, on_lost="cancel", **in_turn(options)) as lease:
            if await self._is_done(key):
                return False
            await call(step, args)
            name, locker = self._name(key), self._locker
            for holding in lease._leased:  # noqa: SLF001 - of one module
                # The engine says whether it is ours still.
                extending = functools.partial(locker.extend, holding, 0)
                await self._ask("once", name, functools.partial(locker.insist, extending))
            marking = functools.partial(locker.store.mark, name, keep)
            await self._ask("once", name, functools.partial(locker.insist, marking))
            return True

    async def forget(self, key: str) -> None:
        """Forget that the step of ``once`` is done: the next caller runs it again.

        A step that is running meanwhile is recorded again when it ends.

        Raises:
            EngineUnavailable: The engine did not answer.
        """
        name, locker = self._name(key), self._locker
        await self._ask("forget", name, lambda: locker.insist(lambda: locker.store.mark(name, 0)))

    def lead(self, key: str, **options: Unpack[HoldOptions]) -> AsyncGenerator[AsyncTerm, None]:
        """Yield a term whenever this caller leads. Of all candidates, one leads at a time.

        ``async for term in locks.lead("scheduler"):`` with a body that checks ``term.held``, or,
        better, is an ``async with term:`` block: that is cancelled when the term is lost, and the
        loop goes on.

        The same term is yielded again for as long as its lease lasts, so a body may do one round of
        work. When the term is lost, or the body has released it, the caller stands for election
        again, in the queue. Leaving the loop releases the term. The loop ends when these locks are
        closed; while the engine does not answer, it keeps trying.

        Args:
            key: What the candidates lock: ``"scheduler"``.
            **options: Override the defaults: see ``HoldOptions``. Elections have no limit of time
                unless ``wait`` is given, and nobody leads without a lease. ``max_hold`` limits a
                term.

        Raises:
            LockTimeout: Others led for longer than ``wait``, or ``max_waiters`` were waiting.
            InvalidKey: The key cannot exist.
        """
        self._name(key)
        options = in_turn(options)
        self._options.of_call(options)  # What cannot work is refused here, not in the loop.
        return self._terms(key, options)

    async def _terms(self, key: str, options: HoldOptions) -> AsyncGenerator[AsyncTerm, None]:
        while elected := await self._elect(key, options):
            term = AsyncTerm(*elected)
            try:
                while term.held and not self._closed:
                    yield term
            finally:
                with contextlib.suppress(LeaseLost):
                    await term.release()

    async def leader(self, key: str) -> str | None:
        """Return the label of the caller that leads, or ``None`` if nobody does.

        Raises:
            InvalidKey: The key cannot exist.
            EngineUnavailable: The engine did not answer.
        """
        info = await self.inspect(key)
        return info.holder if info else None

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
        """Return a value from a cache; of several callers that miss it, one computes it.

        As a call: ``await locks.cached("report", make_report, expiry=60, cache=cache)``. Without
        ``compute`` it decorates a function, and the key may name its arguments: ``"report:{day}"``.
        The cache has the value under the namespace, a colon and the key, such as ``default:report``:
        delete it there, and the value is computed again.

        The other callers wait for the value, or, within ``stale`` seconds of the expiry, get the
        old one. ``None`` is cached like any other value. If ``compute`` raises, its caller gets the
        error, nothing is cached, and the next caller computes. A value whose lease was lost is
        returned but not cached.

        Args:
            key: The key of the lock and, after the namespace, in the cache.
            compute: What computes the value.
            **options: ``expiry`` and ``cache`` are required: see ``CacheOptions``.

        Raises:
            LockTimeout: Another caller computed for longer than ``wait``.
            EngineUnavailable: The engine did not answer.
            ConfigurationError: The cache cannot store the value.
        """
        keeping = Keeping(self, options)
        if compute is not None:
            refuse_coroutine(compute)
            return keeping.value_of(key, compute)  # asyncio only
            # blocking: return drive(keeping.value_of(key, compute))
        keeping.check_class()
        template = KeyTemplate.parse(key)

        def decorate(
            function: Callable[P, Awaitable[R]],
        ) -> Callable[P, Coroutine[Any, Any, R]]:
            refuse_blocking_function(function)
            key_of = template.for_call_of(function)

            @functools.wraps(function)
            async def cached(*args: P.args, **kwargs: P.kwargs) -> R:
                compute = functools.partial(function, *args, **kwargs)
                return await keeping.value_of(key_of(args, kwargs), compute)

            return cached

        return decorate

    async def inspect(self, key: str) -> KeyInfo | None:
        """Return the holder and the waiters of a key, or ``None`` if it has neither.

        It changes nothing, and may be out of date as soon as it returns.

        Raises:
            InvalidKey: The key cannot exist.
            EngineUnavailable: The engine did not answer.
        """
        name = self._name(key)
        return info_of(
            name, await self._ask("inspect", name, lambda: self._locker.store.look(name))
        )

    async def list(self, prefix: str = "", *, limit: int = 1000) -> KeyInfos:
        """Return the keys that have a holder or waiters, in alphabetical order.

        Keys are read one after the other, so the list is not a picture of one moment.

        Args:
            prefix: What the keys begin with; all keys of the namespace by default.
            limit: How many keys to return at most. Which ones, if there are more, is not defined.

        Raises:
            InvalidKey: No key can begin with the prefix.
            EngineUnavailable: The engine did not answer.
        """
        self._ensure_open()
        start = self._options.prefix + ("" if prefix == "" else check_key(prefix))
        limit = count("limit", limit)
        return await self._ask("list", self._options.prefix, lambda: self._listed(start, limit))

    async def ask_release(self, key: str) -> bool:
        """Ask the holders of a key to release it, and return whether there is one.

        The key stays theirs: each may stop at a good point and release, or go on. A holder learns it
        with its next renewal, a third of its ttl later at most, by ``lease.asked_to_release``, by
        ``lease.on_ask_release(callback)`` and by the event ``ReleaseAsked``. A holder without renewal
        (``renew=False``) learns it when it extends. Later holders of the key are not asked.

        Args:
            key: The key that is wanted.

        Raises:
            InvalidKey: The key cannot exist.
            EngineUnavailable: The engine did not answer. Asking again is harmless.
        """
        name = self._name(key)
        reply = await self._ask("ask_release", name, lambda: self._locker.store.ask_release(name))
        return isinstance(reply.answer, Asked)

    async def force_release(self, key: str, *, by: str | None = None) -> bool:
        """Take the lease of a key away from its holder, and return whether there was one.

        For a holder that hangs. The key passes to the first waiter at once. The former holder is
        not asked: it gets ``LeaseLost`` with the reason ``taken`` at its next renewal, a third of
        its ttl later at most, or when it extends or releases; without renewal, after its ttl at the
        latest. **Until then both may be running**, and only the fence tells them apart. The logger
        ``weblock.audit`` gets a warning.

        Args:
            key: The key to release.
            by: The user or program that takes the lease, for the log; the label by default.

        Raises:
            InvalidKey: The key cannot exist.
            EngineUnavailable: The engine did not answer, and it is unknown whether the lease was
                taken. Calling again may take the lease of the next holder.
        """
        return await self._force_release(key, by)

    async def ping(self) -> float:
        """Send the engine one request that changes nothing, and return the seconds it took.

        For health checks. An engine that is recovering does answer.

        Raises:
            EngineUnavailable: The engine did not answer.
        """
        self._ensure_open()
        now, prefix = self._locker.runtime.now, self._options.prefix
        began = now()
        await self._ask("ping", prefix, lambda: self._locker.store.look(f"{prefix}ping"))
        return now() - began

    async def close(self) -> None:
        """Close these locks, and the engine in this process unless other locks still use it.

        With the engine, leases that are still held are lost, and given back. If the engine does not answer,
        this takes up to 5 seconds, after which they end at their ttl. Where other locks still use it,
        leases go on, and are renewed, until they are released.
        """
        if [*phases][-1] != "start" or not runs_here():  # asyncio only
            await beside_loop(self._close)
            return
        self._close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()


class _Trial(Coroutine[Any, Any, R]):  # asyncio only
    """The coroutine of ``try_acquire``. Any other would be true, and its caller would hold nothing."""

    __slots__ = ("__weakref__", "_work")

    def __init__(self, work: Coroutine[Any, Any, R]) -> None:
        self._work = work

    def __bool__(self) -> NoReturn:
        raise TypeError(
            "try_acquire was not awaited, so it locked nothing: write 'await' before it"
        )

    def __await__(self) -> Generator[Any, Any, R]:
        return self._work.__await__()

    def send(self, value: Any) -> Any:
        """Continue it, as asyncio does."""
        return self._work.send(value)

    def throw(self, *error: Any) -> Any:
        """Raise an error in it."""
        return self._work.throw(*error)

    def close(self) -> None:
        """End it."""
        self._work.close()


class AsyncLease(BaseLease):
    """Possession of one or several keys, until it is released or lost.

    ``async with lease:`` releases it when the block ends, and raises ``LeaseLost`` as ``hold`` does.
    """

    __slots__ = ()

    async def extend(self, by: Duration) -> None:
        """Move the deadline into the future.

        Args:
            by: By how many seconds, or a ``timedelta``.

        Raises:
            LeaseLost: The lease has ended; a lost lease stays lost.
            EngineUnavailable: The engine did not answer.
        """
        await self._extend(seconds("by", by))

    async def hand_over(self, *, ttl: Duration | None = None) -> str:
        """End this lease here without releasing the keys, and return a token that continues it.

        ``locks.take_over(token)``, in this process or another, continues it with the same fence. The
        token is a secret string that any queue can carry. It works once: of several callers that have
        it, one gets the lease. Until then **nobody renews the lease**: it ends by itself after ``ttl``
        seconds, whether or not this process still lives.

        Commit before you call it: from then on ``check`` raises ``LeaseLost``. ``release``, and the
        end of a ``with`` block, do nothing.

        Args:
            ttl: For how many seconds the token can be taken over: how long a job may wait in its
                queue. By default, the ``ttl`` of the lease.

        Raises:
            LeaseLost: The lease has ended; a lost lease stays lost.
            EngineUnavailable: The engine did not answer. The keys are given back as soon as it does,
                and the lease has ended.
        """
        return await self._hand_over(ttl)

    async def release(self) -> None:
        """Give the keys back, even if the caller is cancelled meanwhile.

        A second call does nothing.

        Raises:
            LeaseLost: The lease had ended before.
        """
        if getpid() != process.pid:
            enter_child()
        if [*phases][-1] == "start" and runs_here():
            self._release_later()
        else:
            await self._locker.release(self._holdings)

    async def __aenter__(self) -> Self:
        """Return the lease, which is released when the block ends."""
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if getpid() != process.pid:
            enter_child()
        if [*phases][-1] == "start" and runs_here():
            self._release_later()
            return
        try:
            await self._locker.release(self._holdings)
        except LeaseLost as loss:
            if error is None:
                raise
            error.add_note(f"in addition, the {loss}")
        if error is None:
            for call in leaving:
                call(self)

    def on_lost(self, callback: Callable[[], None]) -> None:
        """Call a function once, in the running event loop, when the lease is lost."""
        refuse_what_cannot_be_called(callback)
        self._when("on_lost", in_running_loop(callback))

    def on_ask_release(self, callback: Callable[[], None]) -> None:
        """Call a function once, in the running event loop, when another caller asks for the key.

        At once if one has asked before: see ``AsyncLocks.ask_release``.
        """
        refuse_what_cannot_be_called(callback)
        self._when("on_ask_release", in_running_loop(callback))


AsyncLocks._lease = AsyncLease  # noqa: SLF001 - either class names the other


class AsyncHold(HoldBlock[AsyncLease]):
    """An ``async with`` block that holds keys."""

    __slots__ = ()

    _locks: AsyncLocks
    _block = "async with"

    async def __aenter__(self) -> AsyncLease:
        self._entered = True
        acquired = await self._locks._acquire(self._keys, self._options)  # noqa: SLF001 - of one module
        return self._enter(AsyncLease(*acquired))

    def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> Coroutine[Any, Any, None]:
        return self._leave().__aexit__(exc_type, error, traceback)  # asyncio only
        # blocking: self._leave().__exit__(exc_type, error, traceback)


class CancellingLease(AsyncLease):  # asyncio only
    """A lease whose ``async with`` block is cancelled when it is lost, and then raises ``LeaseLost``."""

    __slots__ = ("_cancelled_before", "_cancels", "_task", "_timer")

    async def __aenter__(self) -> Self:
        """Return the lease, which is released when the block ends."""
        self._task = asyncio.current_task()
        self._timer: asyncio.TimerHandle | None = None
        self._cancels = False
        self._cancelled_before = self._task.cancelling() if self._task else 0
        self.on_lost(self._cancel)
        self._look()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        task, self._task = self._task, None
        if self._timer:
            self._timer.cancel()
        if task and self._cancels:
            others_cancel_too = task.uncancel() > self._cancelled_before
            if isinstance(error, asyncio.CancelledError) and not others_cancel_too:
                exc_type = error = traceback = None  # The loss is raised instead.
        await super().__aexit__(exc_type, error, traceback)

    def _look(self) -> None:
        """Notice the loss in time, even while the keeper waits for an engine."""
        if self.held:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self.remaining(), self._look)
        else:
            with contextlib.suppress(LeaseLost):
                self.check()

    def _cancel(self) -> None:
        if self._task:
            self._cancels = True
            self._task.cancel()


class _CancellingHold(AsyncHold):  # asyncio only
    """An ``async with`` block that holds keys, and is cancelled when one of them is lost."""

    __slots__ = ()

    async def __aenter__(self) -> AsyncLease:
        self._entered = True
        acquired = await self._locks._acquire(self._keys, self._options)  # noqa: SLF001 - of one module
        return self._enter(await CancellingLease(*acquired).__aenter__())


class AsyncTerm(CancellingLease):
    """The lease of a caller that leads.

    ``async with term:`` cancels its block when the term is lost, and releases it at the end.
    Unlike other leases, its loss is no error there: the loop of ``lead`` goes on.
    """

    __slots__ = ()

    async def __aexit__(  # type: ignore[override]  # Only a term suppresses an error.
        self,
        exc_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        try:
            await super().__aexit__(exc_type, error, traceback)
        except LeaseLost:
            return True
        return self._is_own_loss(error)


async def call(  # asyncio only
    work: Callable[[*Ts], Awaitable[R]], args: tuple[*Ts]
) -> R:
    """Call a coroutine function, and raise ``TypeError`` if it is none."""
    coming = work(*args)
    if not inspect.isawaitable(coming):
        raise TypeError(f"{work!r:.200} is not a coroutine function: give it to Locks")
    return await coming
