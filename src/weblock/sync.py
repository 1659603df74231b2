"""The blocking face."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from types import TracebackType
from typing import ParamSpec, Self, TypeVar, Unpack

from ._face import BaseLease, Duration, Face, HoldOptions, Inside, seconds
from ._runtime.blocking import BlockingRuntime, drive
from .errors import LeaseLost, LockTimeout
from .keys import KeyTemplate

P = ParamSpec("P")
R = TypeVar("R")


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
        terms, wait = self._options.of_call(options)
        acquiring = self._locker.acquire(self._keys(keys), terms, wait)
        return Lease(self._locker, drive(acquiring))

    def try_acquire(self, *keys: str, **options: Unpack[HoldOptions]) -> Lease | None:
        """The lease if the keys are free at this moment, else ``None``. Never waits."""
        options["wait"] = 0
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

    def close(self) -> None:
        """Frees what the engine has in this process, if nobody else in it uses the engine."""
        self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


class Lease(BaseLease):
    """Possession of one or several keys, until it is released or lost."""

    __slots__ = ()

    def extend(self, by: Duration) -> None:
        """Pushes the deadline out by so many seconds.

        Raises ``LeaseLost`` (a lease that is lost stays lost) or ``EngineUnavailable``.
        """
        for holding in self._holdings:
            drive(self._locker.extend(holding, seconds("by", by)))

    def release(self) -> None:
        """Gives the keys back; a second time it does nothing.

        Raises ``LeaseLost`` if the lease had ended before.
        """
        drive(self._locker.release(self._holdings))

    def on_lost(self, callback: Callable[[], None]) -> None:
        """Calls ``callback`` once, from a background thread, when the lease is lost."""
        self._on_lost(callback)


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
        try:
            self._inside.leave().release()
        except LeaseLost as loss:
            if error is None:
                raise
            error.add_note(f"meanwhile, the {loss}")
