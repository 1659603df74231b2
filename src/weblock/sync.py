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
from .inspection import KeyInfo, KeyInfos
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
        return Lease(self._locker, drive(self._acquire(keys, options)))

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

    def force_release(self, key: str) -> bool:
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
        return drive(self._force_release(key))

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
        for holding in self._leased:
            drive(self._locker.extend(holding, seconds("by", by)))

    def release(self) -> None:
        """Gives the keys back; a second time it does nothing.

        Raises ``LeaseLost`` if the lease had ended before.
        """
        drive(self._locker.release(self._leased))

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
