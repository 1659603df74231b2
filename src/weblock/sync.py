# Generated from aio.py by scripts/generate: change that file, and run it.
"""The blocking API: locks for threads."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Generator
from types import TracebackType
from typing import Literal, ParamSpec, Self, TypeVar, TypeVarTuple, Unpack, overload

from ._adapting import AtLeast
from ._api import BaseLease, BaseLocks, HoldBlock, leaving
from ._core.table import Asked
from ._options import (
    SHORTEST_EXPIRY,
    Duration,
    HoldOptions,
    OnBusy,
    count,
    in_turn,
    refuse_async,
    refuse_async_function,
    refuse_what_cannot_be_called,
    seconds,
    skips_where_busy,
    without_waiting,
)
from ._platform.forks import enter_child, getpid, process
from ._platform.threads import phases, runs_here
from ._runtime.observing import in_background
from ._runtime.runtimes import BlockingRuntime, drive
from .caching import CacheOptions, Keeping
from .errors import LeaseLost, LockTimeout
from .inspection import KeyInfo, KeyInfos, info_of
from .keys import KeyTemplate, check_key

P = ParamSpec("P")
R = TypeVar("R")
Ts = TypeVarTuple("Ts")


class Locks(BaseLocks):
    """Locks for threads, on one engine.

    It holds no state of its leases, so one serves all threads of a process.
    Create it with ``from_url`` or ``from_client``; ``LocksOptions`` lists the options.
    """

    _runtime = BlockingRuntime

    def hold(self, *keys: str, **options: Unpack[HoldOptions]) -> Hold:
        """Hold keys for a ``with`` block, which gets the ``Lease``.

        Several keys are acquired in one fixed order, all or none.

        Args:
            *keys: What to lock: 1 to 512 characters each, such as ``"item:7"``.
            **options: Override the defaults of this ``Locks``; durations are seconds.
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
            AlreadyHeld: This thread already holds one of the keys, and would wait for itself.
            LeaseLost: When the block ends: the lease ended before the block did. Before it begins: the
                lease of one of several keys ended while this call waited for another, because of
                ``max_hold`` for example.
        """
        return Hold(self, keys, options)

    def acquire(self, *keys: str, **options: Unpack[HoldOptions]) -> Lease:
        """Acquire keys, and hold them until ``release`` is called on the lease.

        Takes the arguments of ``hold``, and raises the same errors; ``LeaseLost`` only if the lease of
        one of several keys ends while another is waited for.

        Returns:
            The lease. Without ``release`` it is renewed until no code refers to it any more.
        """
        return Lease(*drive(self._acquire(keys, options)))

    def try_acquire(self, *keys: str, **options: Unpack[HoldOptions]) -> Lease | None:
        """Return the lease if the keys are free at this moment, else ``None``. Never waits.

        Takes the arguments of ``hold`` except ``wait``.

        Raises:
            EngineUnavailable: The engine did not answer.
        """
        return self._try_acquire(keys, without_waiting(options))

    def _try_acquire(self, keys: tuple[str, ...], options: HoldOptions) -> Lease | None:
        try:
            return Lease(*drive(self._acquire(keys, options)))
        except LockTimeout:
            return None

    def take_over(self, token: str, **options: Unpack[HoldOptions]) -> Lease:
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
        return Lease(*drive(self._take_over(token, options)))

    def serialized(
        self, key: str, **options: Unpack[HoldOptions]
    ) -> Callable[[Callable[P, R]], Callable[P, R]]:
        """Decorate a function so that its calls never overlap.

        Args:
            key: The key, which may name arguments of the function: ``"item:{item_id}"``.
            **options: Override the defaults: see ``HoldOptions``.

        Raises:
            ConfigurationError: The template or an option cannot work.
            TypeError: A generator, a class or an ``async def`` is decorated, which would not be locked.
        """
        template = KeyTemplate.parse(key)
        self._options.of_call(options)  # What cannot work is refused here, not at the first call.

        def decorate(function: Callable[P, R]) -> Callable[P, R]:
            refuse_async_function(function)
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
        at_least: Duration | None = ...,
        **options: Unpack[HoldOptions],
    ) -> R: ...

    @overload
    def run(
        self,
        key: str,
        work: Callable[[*Ts], R],
        *args: *Ts,
        on_busy: Literal["skip"],
        at_least: Duration | None = ...,
        **options: Unpack[HoldOptions],
    ) -> R | None: ...

    def run(
        self,
        key: str,
        work: Callable[[*Ts], R],
        *args: *Ts,
        on_busy: OnBusy = "wait",
        at_least: Duration | None = None,
        **options: Unpack[HoldOptions],
    ) -> R | None:
        """Call ``work(*args)`` while holding the key, and return its result.

        The lease is renewed for as long as the work takes. If it is lost nevertheless, ``LeaseLost``
        is raised when the work has returned.

        Args:
            key: What to lock.
            work: A function. For its keyword arguments, use ``functools.partial``.
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
        refuse_async(work)
        skips = skips_where_busy(on_busy, options)
        least = AtLeast(self, at_least, options)
        try:
            lease = Lease(*drive(self._acquire((key,), options)))
        except LockTimeout:
            if skips:
                return None
            raise
        with lease:
            drive(least.begin(lease))
            try:
                return work(*args)
            finally:
                least.end(lease)

    def once(
        self,
        key: str,
        step: Callable[[*Ts], object],
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
        refuse_async(step)
        keep = None if expiry is None else seconds("expiry", expiry, least=SHORTEST_EXPIRY)
        if drive(self._is_done(key)):
            return False
        with self.hold(key, **in_turn(options)) as lease:
            if drive(self._is_done(key)):
                return False
            step(*args)
            name, locker = self._name(key), self._locker
            for holding in lease._leased:  # noqa: SLF001 - of one module
                # The engine says whether it is ours still.
                extending = functools.partial(locker.extend, holding, 0)
                drive(self._ask("once", name, functools.partial(locker.insist, extending)))
            marking = functools.partial(locker.store.mark, name, keep)
            drive(self._ask("once", name, functools.partial(locker.insist, marking)))
            return True

    def forget(self, key: str) -> None:
        """Forget that the step of ``once`` is done: the next caller runs it again.

        A step that is running meanwhile is recorded again when it ends.

        Raises:
            EngineUnavailable: The engine did not answer.
        """
        name, locker = self._name(key), self._locker
        drive(self._ask("forget", name, lambda: locker.insist(lambda: locker.store.mark(name, 0))))

    def lead(self, key: str, **options: Unpack[HoldOptions]) -> Generator[Term, None, None]:
        """Yield a term whenever this caller leads. Of all candidates, one leads at a time.

        ``for term in locks.lead("scheduler"):`` with a body that checks ``term.held``, or is a
        ``with term:`` block, from which the loss of the term leads back to the loop.

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

    def _terms(self, key: str, options: HoldOptions) -> Generator[Term, None, None]:
        while elected := drive(self._elect(key, options)):
            term = Term(*elected)
            try:
                while term.held and not self._closed:
                    yield term
            finally:
                with contextlib.suppress(LeaseLost):
                    term.release()

    def leader(self, key: str) -> str | None:
        """Return the label of the caller that leads, or ``None`` if nobody does.

        Raises:
            InvalidKey: The key cannot exist.
            EngineUnavailable: The engine did not answer.
        """
        info = self.inspect(key)
        return info.holder if info else None

    @overload
    def cached(self, key: str, compute: Callable[[], R], **options: Unpack[CacheOptions]) -> R: ...

    @overload
    def cached(
        self, key: str, compute: None = None, **options: Unpack[CacheOptions]
    ) -> Callable[[Callable[P, R]], Callable[P, R]]: ...

    def cached(
        self, key: str, compute: Callable[[], R] | None = None, **options: Unpack[CacheOptions]
    ) -> R | Callable[[Callable[P, R]], Callable[P, R]]:
        """Return a value from a cache; of several callers that miss it, one computes it.

        As a call: ``locks.cached("report", make_report, expiry=60, cache=cache)``. Without
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
            refuse_async(compute)
            return drive(keeping.value_of(key, compute))
        keeping.check_class()
        template = KeyTemplate.parse(key)

        def decorate(function: Callable[P, R]) -> Callable[P, R]:
            refuse_async_function(function)
            key_of = template.for_call_of(function)

            @functools.wraps(function)
            def cached(*args: P.args, **kwargs: P.kwargs) -> R:
                compute = functools.partial(function, *args, **kwargs)
                return drive(keeping.value_of(key_of(args, kwargs), compute))

            return cached

        return decorate

    def inspect(self, key: str) -> KeyInfo | None:
        """Return the holder and the waiters of a key, or ``None`` if it has neither.

        It changes nothing, and may be out of date as soon as it returns.

        Raises:
            InvalidKey: The key cannot exist.
            EngineUnavailable: The engine did not answer.
        """
        name = self._name(key)
        return info_of(
            name, drive(self._ask("inspect", name, lambda: self._locker.store.look(name)))
        )

    def list(self, prefix: str = "", *, limit: int = 1000) -> KeyInfos:
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
        return drive(self._ask("list", self._options.prefix, lambda: self._listed(start, limit)))

    def ask_release(self, key: str) -> bool:
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
        reply = drive(self._ask("ask_release", name, lambda: self._locker.store.ask_release(name)))
        return isinstance(reply.answer, Asked)

    def force_release(self, key: str, *, by: str | None = None) -> bool:
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
        return drive(self._force_release(key, by))

    def ping(self) -> float:
        """Send the engine one request that changes nothing, and return the seconds it took.

        For health checks. An engine that is recovering does answer.

        Raises:
            EngineUnavailable: The engine did not answer.
        """
        self._ensure_open()
        now, prefix = self._locker.runtime.now, self._options.prefix
        began = now()
        drive(self._ask("ping", prefix, lambda: self._locker.store.look(f"{prefix}ping")))
        return now() - began

    def close(self) -> None:
        """Close these locks, and the engine in this process unless other locks still use it.

        With the engine, leases that are still held are lost, and given back. If the engine does not answer,
        this takes up to 5 seconds, after which they end at their ttl. Where other locks still use it,
        leases go on, and are renewed, until they are released.
        """
        self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


class Lease(BaseLease):
    """Possession of one or several keys, until it is released or lost.

    ``with lease:`` releases it when the block ends, and raises ``LeaseLost`` as ``hold`` does.
    """

    __slots__ = ()

    def extend(self, by: Duration) -> None:
        """Move the deadline into the future.

        Args:
            by: By how many seconds, or a ``timedelta``.

        Raises:
            LeaseLost: The lease has ended; a lost lease stays lost.
            EngineUnavailable: The engine did not answer.
        """
        drive(self._extend(seconds("by", by)))

    def hand_over(self, *, ttl: Duration | None = None) -> str:
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
        return drive(self._hand_over(ttl))

    def release(self) -> None:
        """Give the keys back.

        A second call does nothing.

        Raises:
            LeaseLost: The lease had ended before.
        """
        if getpid() != process.pid:
            enter_child()
        if [*phases][-1] == "start" and runs_here():
            self._release_later()
        else:
            drive(self._locker.release(self._holdings))

    def __enter__(self) -> Self:
        """Return the lease, which is released when the block ends."""
        return self

    def __exit__(
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
            drive(self._locker.release(self._holdings))
        except LeaseLost as loss:
            if error is None:
                raise
            error.add_note(f"in addition, the {loss}")
        if error is None:
            for call in leaving:
                call(self)

    def on_lost(self, callback: Callable[[], None]) -> None:
        """Call a function once, in a background thread, when the lease is lost.

        One thread calls all such functions, one after the other.
        """
        refuse_what_cannot_be_called(callback)
        self._when("on_lost", in_background(callback))

    def on_ask_release(self, callback: Callable[[], None]) -> None:
        """Call a function once, in a background thread, when another caller asks for the key.

        At once if one has asked before: see ``Locks.ask_release``.
        """
        refuse_what_cannot_be_called(callback)
        self._when("on_ask_release", in_background(callback))


Locks._lease = Lease  # noqa: SLF001 - either class names the other


class Hold(HoldBlock[Lease]):
    """A ``with`` block that holds keys."""

    __slots__ = ()

    _locks: Locks
    _block = "with"

    def __enter__(self) -> Lease:
        self._entered = True
        acquired = drive(self._locks._acquire(self._keys, self._options))  # noqa: SLF001 - of one module
        return self._enter(Lease(*acquired))

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._leave().__exit__(exc_type, error, traceback)


class Term(Lease):
    """The lease of a caller that leads.

    ``with term:`` releases it when the block ends.
    Unlike other leases, its loss is no error there: the loop of ``lead`` goes on.
    """

    __slots__ = ()

    def __exit__(  # type: ignore[override]  # Only a term suppresses an error.
        self,
        exc_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        try:
            super().__exit__(exc_type, error, traceback)
        except LeaseLost:
            return True
        return self._is_own_loss(error)
