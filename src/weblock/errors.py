"""The errors of weblock, each named after what happened to the caller.

They know no HTTP status and no driver. Facts are attributes, every error pickles, and no message
carries a password of a URL.
"""

from __future__ import annotations

from typing import Any


class WeblockError(Exception):
    """The base of every error that weblock raises on purpose."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.args, self.__dict__.copy())


def _rebuild(cls: type[WeblockError], args: tuple[Any, ...], facts: dict[str, Any]) -> WeblockError:
    error = cls.__new__(cls)
    error.args = args
    error.__dict__.update(facts)
    return error


class LockTimeout(WeblockError, TimeoutError):
    """The key was busy for as long as the caller was ready to wait.

    ``retry_after`` is a hint in seconds: where the queue has moved, how long it would have taken the
    caller to have its turn at that pace; else what is left of the present lease, where it is known.
    ``place`` is how many waited in front of the caller when it was last told, ``waiters`` the length
    of the queue, where the caller was refused because it is full, and ``attempts`` how often the
    caller has asked, where it did not queue (``Attempts``).
    """

    def __init__(
        self,
        key: str,
        *,
        wait: float | None,
        retry_after: float | None = None,
        waiters: int | None = None,
        attempts: int | None = None,
        place: int | None = None,
    ) -> None:
        if attempts is not None:
            reason = f"it was busy each of the {attempts} times"
        elif waiters is not None:
            reason = f"{waiters} others are waiting already (max_waiters)"
        elif wait == 0:
            reason = "it is held, and wait=0 does not wait"
        else:
            reason = f"it was not free within wait={wait:g} s" if wait else "it is held"
        super().__init__(f"lock {key!r} was not acquired: {reason}")
        self.key = key
        self.wait = wait
        self.retry_after = retry_after
        self.waiters = waiters
        self.attempts = attempts
        self.place = place


class LeaseLost(WeblockError):
    """The lease ended before its holder released it: someone else may hold the key now.

    ``reason`` says how: ``expired``, ``taken`` (the engine no longer knows the lease),
    ``max_hold``, ``forked`` (it belongs to the parent process), ``closed`` (its ``Locks`` was) or
    ``released``, for one that its holder has released itself.
    """

    def __init__(self, key: str, *, fence: int, reason: str) -> None:
        super().__init__(
            f"lease of {key!r} (fence {fence}) was lost: {_LOSSES.get(reason, reason)}"
        )
        self.key = key
        self.fence = fence
        self.reason = reason


_LOSSES = {
    "expired": "it was not renewed in time",
    "taken": "the engine no longer knows it",
    "max_hold": "it was held for longer than max_hold allows",
    "closed": "its Locks was closed while it was held",
    "released": "it has been released",
    "forked": "it belongs to the parent of this process",
}


class EngineUnavailable(WeblockError, ConnectionError):
    """The engine that keeps the leases did not answer, or answered that it cannot serve.

    Whether the key is free is unknown: this is not ``LockTimeout``. ``engine`` is its URL without
    secrets. The driver's error is chained as ``__cause__``.
    """

    def __init__(self, engine: str, reason: str) -> None:
        super().__init__(f"lock engine {engine} is unavailable: {reason}")
        self.engine = engine
        self.reason = reason


class EngineRecovering(EngineUnavailable):
    """The engine may have lost leases, and grants none until those that it has forgotten have ended.

    So it is for a while after a server was started, emptied, or put in the place of another. Nobody
    is known to hold the key. ``retry_after`` is how many seconds are left, as far as that is known;
    a caller whose ``wait`` lasts that long gets the key then.
    """

    def __init__(self, engine: str, reason: str, *, retry_after: float) -> None:
        super().__init__(
            engine,
            f"{reason}, and may have forgotten leases that are still held: it grants none for"
            f" {retry_after:.3g} s more (recovery)",
        )
        self.retry_after = retry_after


class ConfigurationError(WeblockError, ValueError):
    """A setting, a URL or an argument cannot work; the message names the value and the remedy."""


class InvalidKey(ConfigurationError):
    """A key is empty, too long, or has characters that no key may have.

    Where keys are filled in from a request, this is the requester's fault: adapters answer 4xx.
    """


class AlreadyHeld(WeblockError, RuntimeError):
    """This task, thread or request holds the key: waiting for it would be waiting for itself."""

    def __init__(self, key: str) -> None:
        super().__init__(
            f"lock {key!r} is already held by this very task or thread, or by the request that it"
            " serves, and would wait for itself without end; pass the lease down instead of acquiring"
            " the key again"
        )
        self.key = key
