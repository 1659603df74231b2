"""The errors of weblock, each named after what happened to the caller.

They know no HTTP status and no driver. Facts are attributes, every error can be pickled, and no
message contains a password of a URL. The text of an error ends with its code, which is a heading of
docs/troubleshooting.md. Log lines and warnings end with such a code, too.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any


class WeblockError(Exception):
    """The base class of the errors that weblock raises.

    Attributes:
        code: What happened, as a stable name for programs: ``"lease_lost"``. Troubleshooting explains
            each code under a heading of the same name.
        args: What the class makes an equal error of, for programs that keep errors as JSON.
    """

    code: str = "error"

    def __init__(self, message: object = "", *facts: object) -> None:
        super().__init__(message)
        self.message = str(message)
        self.args = facts or (message,)

    @cached_property
    def message(self) -> str:
        """The text without the code; of a subclass that does not call ``__init__``, its arguments."""
        return Exception.__str__(self)

    def __str__(self) -> str:
        return f"{self.message} [weblock.{self.code}]"

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.message!r})"

    @property
    def for_operators(self) -> str:
        """The text together with the notes, which name what a client must not see."""
        text = "; ".join([self.message, *getattr(self, "__notes__", ())])
        return f"{text} [weblock.{self.code}]"

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self).__new__, (type(self),), {**self.__dict__, "args": self.args}


class LockTimeout(WeblockError, TimeoutError):
    """The key was busy for as long as the caller was ready to wait.

    Attributes:
        key: The key.
        wait: How long the caller was ready to wait, in seconds; ``None`` is without limit.
        retry_after: Suggested delay before the next attempt, in seconds. Estimated from the speed of the
            queue; else, how long the last caller has waited that acquired the key in this process. If
            neither is known, the rest of the current lease, at most 10 s if it is renewed.
        place: How many callers were in front of this one when it last asked.
        waiters: The length of the queue, if the caller was rejected because it is full.
        attempts: How often the caller asked, with ``Attempts``.
        holder: The label of the holder then; ``None`` if the engine did not report it. The message
            does not contain it, because servers send messages to their clients; a note of the error
            does, which tracebacks show.
    """

    code = "lock_timeout"

    def __init__(
        self,
        key: str,
        wait: float | None = None,
        retry_after: float | None = None,
        waiters: int | None = None,
        attempts: int | None = None,
        place: int | None = None,
        holder: str | None = None,
    ) -> None:
        if attempts is not None:
            tries = "the only attempt" if attempts == 1 else f"each of {attempts} attempts"
            reason = f"it was busy at {tries}: retry later"
        elif waiters is not None:
            others = "1 other is" if waiters == 1 else f"{waiters} others are"
            reason = f"{others} waiting already: retry later, or raise max_waiters="
        elif wait == 0:
            reason = "it is busy, and wait=0 does not wait: retry later, or raise wait="
        else:
            others = "1 other" if place == 1 else f"{place} others"
            ahead = f", with {others} ahead in the queue" if place else ""
            within = f"it was not free within wait={wait:g} s{ahead}" if wait else "it is busy"
            reason = f"{within}: retry later, or raise wait="
        super().__init__(
            f"lock {key!r} was not acquired: {reason}",
            *(key, wait, retry_after, waiters, attempts, place, holder),
        )
        if holder:
            self.add_note(f"lock {key!r} is held by {holder!r}")
        self.key = key
        self.wait = wait
        self.retry_after = retry_after
        self.waiters = waiters
        self.attempts = attempts
        self.place = place
        self.holder = holder


class LeaseLost(WeblockError):
    """The lease ended before its holder released it: another caller may hold the key now.

    Attributes:
        key: The key.
        fence: The fence of the lost lease.
        reason: ``expired`` (it was not renewed in time), ``taken`` (the engine no longer knows the
            lease: a forced release, or lost data), ``max_hold``, ``forked`` (the lease belongs to the
            parent process), ``closed`` (its ``Locks`` was closed), ``released`` (its holder released
            it), ``handed_over`` (its holder called ``hand_over``), or ``unprotected`` (the section
            runs without a lease, so ``hand_over`` has none).
    """

    code = "lease_lost"

    def __init__(self, key: str, fence: int, reason: str) -> None:
        super().__init__(
            f"lease of {key!r} (fence {fence}) was lost: {LOSSES.get(reason, reason)}",
            *(key, fence, reason),
        )
        self.key = key
        self.fence = fence
        self.reason = reason


LOSSES = {
    "expired": "it was not renewed in time",
    "taken": "the engine no longer knows it",
    "max_hold": "it was held for longer than max_hold allows",
    "closed": "its Locks was closed while it was held",
    "released": "it was released by its holder: commit before release()",
    "unprotected": "there is none, because the engine did not answer (on_unavailable='open')",
    "handed_over": "it was handed over by its holder: commit before hand_over()",
    "forked": "it belongs to the parent of this process",
}


class EngineUnavailable(WeblockError, ConnectionError):
    """The engine did not answer, or answered that it cannot serve.

    Whether the key is free is unknown: this is not ``LockTimeout``. The driver's own error is
    ``__cause__``.

    Attributes:
        engine: The URL of the engine, without secrets.
        reason: What went wrong.
    """

    code = "engine_unavailable"

    def __init__(self, engine: str, reason: str) -> None:
        super().__init__(f"lock engine {engine} is unavailable: {reason}", engine, reason)
        self.engine = engine
        self.reason = reason


class EngineRecovering(EngineUnavailable):
    """The engine may have forgotten leases, and grants none until these have ended.

    This lasts for a while after a server was started, emptied or promoted. A caller whose ``wait``
    lasts long enough gets the key afterwards.

    Attributes:
        retry_after: How many seconds are left, as far as that is known.
    """

    code = "engine_recovering"

    def __init__(self, engine: str, reason: str, retry_after: float) -> None:
        super().__init__(
            engine,
            f"{reason}, and might have lost leases that are still held: it grants none for"
            f" another {retry_after:.3g} s (recovery)",
        )
        self.args = engine, reason, retry_after
        self.retry_after = retry_after


class ConfigurationError(WeblockError, ValueError):
    """A setting, a URL or an argument cannot work; the message names the value and the remedy."""

    code = "invalid_setting"

    def __init__(self, message: object = "", code: str | None = None) -> None:
        super().__init__(message, *((message, code) if code else ()))
        if code:
            self.code = code


class InvalidKey(ConfigurationError):
    """A key is empty, too long, or has characters that no key may have.

    If the key is made from a request, the request is at fault: the adapters answer 400.
    """

    code = "invalid_key"


class StrangePath(InvalidKey):
    """Routers may read the path of a request in more than one way, and rules would differ.

    The adapters answer 400 before anything runs.
    """

    code = "strange_path"


class BodyTimeout(WeblockError):
    """A request that locks did not receive its body in time: its client could hold a key without limit.

    The adapters answer 408. ``body_wait`` is the limit in seconds, for each 64 KiB. It is not a
    ``TimeoutError``, because frameworks treat each ``OSError`` of a body as a client that has left.
    """

    code = "body_timeout"

    def __init__(self, body_wait: float) -> None:
        super().__init__(
            f"the client sent neither 64 KiB nor the end of its request body within"
            f" body_wait={body_wait:g} s: raise body_wait=, or have a proxy buffer request bodies",
            body_wait,
        )
        self.body_wait = body_wait


class BodyTooLong(WeblockError):
    """The body of an idempotent request is longer than the middleware reads before it runs the request.

    The adapters answer 413. Nothing has run.

    Attributes:
        max_request: How many bytes it reads.
    """

    code = "body_too_long"

    def __init__(self, max_request: int) -> None:
        super().__init__(
            f"the body of an idempotent request has more than max_request={max_request} bytes:"
            " raise max_request=, or send less",
            max_request,
        )
        self.max_request = max_request


class CallerUnknown(WeblockError):
    """The function ``caller`` of a rule has returned ``None`` for an idempotent request.

    The adapters answer 403. Nothing has run.
    """

    code = "caller_unknown"

    def __init__(self, function: str) -> None:
        super().__init__(
            f"{function}, the caller= of idempotent=, returned None: no user is logged in",
            function,
        )


class IdempotencyKeyInvalid(WeblockError):
    """A request that must carry an idempotency key has none, or one that is malformed.

    The adapters answer 400. Nothing has run.

    Attributes:
        header: The name of the header.
        missing: Whether there is no such header.
    """

    code = "idempotency_key_invalid"

    def __init__(self, header: str, reason: str, missing: bool = False) -> None:
        super().__init__(
            f"the request has no usable {header} header: {reason}",
            header,
            reason,
            missing,
        )
        if missing:
            self.code = "idempotency_key_missing"
        self.header = header
        self.missing = missing


class IdempotencyKeyReused(WeblockError):
    """The caller has used this idempotency key before, for a request with another query or body.

    The adapters answer 422. Nothing has run.
    """

    code = "idempotency_key_reused"


class TooManyAnswers(WeblockError):
    """As many answers are stored for the caller as ``max_answers`` allows.

    The adapters answer 429. Nothing has run.

    Attributes:
        retry_after: In how many seconds the oldest of them expires.
    """

    code = "too_many_answers"

    def __init__(self, most: int, retry_after: float) -> None:
        super().__init__(
            f"max_answers={most} answers are stored for this caller: raise max_answers=, or lower"
            " keep=",
            most,
            retry_after,
        )
        self.retry_after = retry_after


class AnswersUnavailable(WeblockError, ConnectionError):
    """The database did not answer when the stored answer to a request was looked up.

    The adapters answer 503. Nothing has run. The driver's error is ``__cause__``.
    """

    code = "answers_unavailable"


class AnswerNotStored(WeblockError):
    """A response cannot be stored: it is a stream, or longer than ``max_body`` bytes.

    It is raised inside the transaction, so that the work of the request is rolled back.
    """

    code = "answer_not_stored"


class AlreadyHeld(WeblockError, RuntimeError):
    """The caller would wait for itself, because its own task, thread or request holds the key.

    The same error is raised if blocking code on an event loop would wait for another task of that loop,
    and if a task would wait for a key that its thread holds outside the loop.

    Attributes:
        key: The key.
        upgrade: Whether it is held with others, and was to be held with fewer or alone.
        waits: Whether a task of the event loop that this call would block is ahead in the queue.
        inherited: Whether the request that this task or thread belongs to holds it.
    """

    code = "already_held"

    def __init__(
        self, key: str, upgrade: bool = False, waits: bool = False, inherited: bool = False
    ) -> None:
        held = f"Lock {key!r} is already held by this task, thread or request"
        if upgrade:
            reason = (
                f"{held}, together with other holders, and cannot change to a smaller limit: two"
                " callers that tried would wait for each other forever. Release it and acquire it"
                " again, or acquire it with the smaller limit from the start."
            )
        elif waits:
            reason = (
                f"Lock {key!r} has another task of this event loop ahead in its queue, and this"
                " blocking call would stop that task. Use AsyncLocks, or call this in a thread:"
                " await asyncio.to_thread(...)."
            )
        elif inherited:
            reason = (
                f"Lock {key!r} is already held by the request that this code belongs to. Acquiring"
                " it again would wait forever. Use the existing lease, or"
                " request_locks().acquire(...). A task that outlives the request needs its own"
                " context: asyncio.create_task(work(), context=contextvars.Context())."
            )
        else:
            reason = (
                f"{held}, or by another task of the event loop that this call would block."
                " Acquiring it again would wait forever. Use the existing lease. In tasks, use"
                " AsyncLocks."
            )
        super().__init__(reason, key, upgrade, waits, inherited)
        self.key = key
        self.upgrade = upgrade
        self.waits = waits
        self.inherited = inherited
