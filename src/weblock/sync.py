"""The blocking face."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import Literal, ParamSpec, Self, TypeVar, TypeVarTuple, Unpack, overload

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
from ._platform.threads import callbacks
from ._runtime.blocking import BlockingRuntime, drive
from .caching import CacheOptions, Keeping, Turns, of_hold, value_of
from .errors import LeaseLost, LockTimeout
from .inspection import KeyInfo, KeyInfos
from .keys import KeyTemplate

P = ParamSpec("P")
R = TypeVar("R")
Ts = TypeVarTuple("Ts")


class Locks(Face):
    """Locks for threads, on one engine.

    A lock is only a description: nothing of a holder lives here, so one ``Locks`` serves all
    threads of a process. ``LocksOptions`` lists the options.
    """

    _runtime = BlockingRuntime

    def hold(self, *keys: str, **options: Unpack[HoldOptions]) -> Hold:
        """Holds the keys, all or none, for a ``with`` block, which gets the ``Lease``.

        Raises ``LockTimeout`` if they were not free within ``wait`` seconds, ``EngineUnavailable``
        if the engine did not answer, and, when the block ends, ``LeaseLost`` if the lease ended
        before the block did.
        """
        return Hold(self, keys, options)

    def acquire(self, *keys: str, **options: Unpack[HoldOptions]) -> Lease:
        """Holds the keys until ``release`` is called on the lease. Raises as ``hold`` does."""
        return Lease(*drive(self._acquire(keys, options)))

    def try_acquire(self, *keys: str, **options: Unpack[HoldOptions]) -> Lease | None:
        """The lease if the keys are free at this moment, else ``None``. Never waits.

        Takes the options of ``acquire`` but for ``wait``.
        """
        options = without_waiting(options)
        try:
            return self.acquire(*keys, **options)
        except LockTimeout:
            return None

    def serialized(
        self, key: str, **options: Unpack[HoldOptions]
    ) -> Callable[[Callable[P, R]], Callable[P, R]]:
        """Decorates a function so that its calls never overlap.

        ``key`` may name arguments of the function, as in ``"item:{item_id}"``.
        """
        template = KeyTemplate.parse(key)
        self._options.of_call(options)  # What cannot work is refused here, not at the first call.

        def decorate(function: Callable[P, R]) -> Callable[P, R]:
            if inspect.iscoroutinefunction(function):
                raise TypeError(f"{function.__qualname__} is async: decorate it with AsyncLocks")
            key_of = template.for_call_of(function)

            @functools.wraps(function)
            def serialized(*args: P.args, **kwargs: P.kwargs) -> R:
                with self.hold(key_of(args, kwargs), **options):
                    return function(*args, **kwargs)

            return serialized

        return decorate

    @overload
    def run(
        self,
        key: str,
        work: Callable[[*Ts], R],
        *args: *Ts,
        on_busy: Literal["wait"] = ...,
        **options: Unpack[HoldOptions],
    ) -> R: ...

    @overload
    def run(
        self,
        key: str,
        work: Callable[[*Ts], R],
        *args: *Ts,
        on_busy: Literal["skip"],
        **options: Unpack[HoldOptions],
    ) -> R | None: ...

    def run(
        self,
        key: str,
        work: Callable[[*Ts], R],
        *args: *Ts,
        on_busy: OnBusy = "wait",
        **options: Unpack[HoldOptions],
    ) -> R | None:
        """Runs ``work(*args)`` while it holds the key, and returns what it returns.

        The lease is renewed for as long as the work takes. If it is lost nevertheless,
        ``LeaseLost`` is raised when the work has ended.

        ``on_busy="skip"`` gives up at once where the key is busy (or after ``wait`` seconds, if
        that is given), does not call ``work``, and returns ``None``. Keyword arguments are the
        options of ``hold``; for those of the work there is ``functools.partial``. Raises what the
        work raises, and as ``hold`` does.
        """
        refuse_async(work)
        skips = skips_where_busy(on_busy, options)
        try:
            lease = self.acquire(key, **options)
        except LockTimeout:
            if skips:
                return None
            raise
        with lease:
            return work(*args)

    def once(
        self,
        key: str,
        step: Callable[[*Ts], object],
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
        refuse_async(step)
        keep = kept_for(expiry)

        async def the_step() -> None:
            step(*args)

        if drive(self._is_done(key)):
            return False
        with self.hold(key, **in_turn(options)) as lease:
            return drive(self._unless_done(lease, the_step, keep))

    def forget(self, key: str) -> None:
        """Takes back that the step of ``once`` has been done: the next one to come runs it again.

        One that is running meanwhile notes it anew at its end. Raises ``EngineUnavailable``.
        """
        drive(self._forget(key))

    @overload
    def cached(self, key: str, compute: Callable[[], R], **options: Unpack[CacheOptions]) -> R: ...

    @overload
    def cached(
        self, key: str, compute: None = None, **options: Unpack[CacheOptions]
    ) -> Callable[[Callable[P, R]], Callable[P, R]]: ...

    def cached(
        self, key: str, compute: Callable[[], R] | None = None, **options: Unpack[CacheOptions]
    ) -> R | Callable[[Callable[P, R]], Callable[P, R]]:
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
        keeping = Keeping(options, suspends=False)
        turns = Turns(self._take, self._give_back, of_hold(options))
        self._options.of_call(turns.options)

        def value(key: str, compute: Callable[[], R]) -> R:
            async def computed() -> R:
                return compute()

            return drive(value_of(key, computed, keeping, turns))

        if compute is not None:
            refuse_async(compute)
            return value(key, compute)
        template = KeyTemplate.parse(key)

        def decorate(function: Callable[P, R]) -> Callable[P, R]:
            refuse_async(function)
            key_of = template.for_call_of(function)

            @functools.wraps(function)
            def cached(*args: P.args, **kwargs: P.kwargs) -> R:
                return value(key_of(args, kwargs), lambda: function(*args, **kwargs))

            return cached

        return decorate

    def inspect(self, key: str) -> KeyInfo | None:
        """Who holds the key and who waits for it; ``None`` if nobody does either.

        It is a look: it neither waits nor changes anything, and is out of date at once. Raises
        ``InvalidKey``, or ``EngineUnavailable`` if the engine did not answer.
        """
        return drive(self._inspect(key))

    def list(self, prefix: str = "", *, limit: int = 1000) -> KeyInfos:
        """The keys that somebody holds or waits for, in the order of their names.

        Those that begin with ``prefix``, in our namespace; no more than ``limit``, and it is not
        said which ones if there are more. They are looked at one after the other, so the whole is
        no picture of a single moment. Raises ``InvalidKey`` for a prefix that no key can have, or
        ``EngineUnavailable`` if the engine did not answer.
        """
        return drive(self._list(prefix, limit))

    def force_release(self, key: str, *, by: str | None = None) -> bool:
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
        return drive(self._force_release(key, by))

    def ping(self) -> float:
        """Asks the engine something that changes nothing, once. Returns the seconds it took.

        For health checks. Raises ``EngineUnavailable`` if the engine did not answer; one that
        recovers does answer.
        """
        return drive(self._ping())

    def close(self) -> None:
        """Frees what the engine has in this process, if nobody else in it uses the engine."""
        self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


def refuse_async(work: object) -> None:
    """Raises for work that only asyncio can do."""
    refuse_coroutine(work)
    if inspect.iscoroutinefunction(work):
        raise TypeError(f"{work!r:.200} is async: give it to AsyncLocks")


class Lease(BaseLease):
    """Possession of one or several keys, until it is released or lost.

    ``with lease:`` releases at the end of the block, and raises ``LeaseLost`` there as ``hold`` does.
    """

    __slots__ = ()

    def extend(self, by: Duration) -> None:
        """Pushes the deadline out by so many seconds.

        Raises ``LeaseLost`` (a lease that is lost stays lost) or ``EngineUnavailable``.
        """
        drive(self._extend(seconds("by", by)))

    def release(self) -> None:
        """Gives the keys back; a second time it does nothing.

        Raises ``LeaseLost`` if the lease had ended before.
        """
        drive(self._locker.release(self._holdings))

    def __enter__(self) -> Self:
        """For a block at whose end it is released."""
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            self.release()
        except LeaseLost as loss:
            if error is None:
                raise
            error.add_note(f"meanwhile, the {loss}")

    def on_lost(self, callback: Callable[[], None]) -> None:
        """Calls ``callback`` once, from a background thread, when the lease is lost.

        That thread calls all such callbacks, one after the other.
        """
        self._on_lost(partial(callbacks.call, callback))


Locks._lease = Lease  # noqa: SLF001 - either class names the other


class Hold:
    """A ``with`` block that holds keys."""

    __slots__ = ("_inside", "_keys", "_locks", "_options")

    def __init__(self, locks: Locks, keys: tuple[str, ...], options: HoldOptions) -> None:
        self._locks = locks
        self._keys = keys
        self._options = options
        self._inside: Inside[Lease] = Inside()

    def __enter__(self) -> Lease:
        return self._inside.enter(self._locks.acquire(*self._keys, **self._options))

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._inside.leave().__exit__(exc_type, error, traceback)
