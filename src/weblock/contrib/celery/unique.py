"""Unique jobs: the key of a task is held from the moment at which it is sent.

1. ``apply_async`` acquires the key, hands the lease over to a token (``Lease.hand_over``), and sends the
   token with the message. Nobody renews that lease: it lasts for ``unique_for``, after the task's ETA.
2. The run takes the lease over, and renews it until the task ends (or gives it back at once, with
   ``until="start"``). ``self.retry`` hands it over again.
3. If the lease cannot be taken over, another delivery has it, or it has ended. Then the run acquires the key
   like any other task, without waiting: it is skipped if another task has the key.

The label of each lease ends with the id of its task, by which a duplicate finds the task that is queued.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final, Literal, get_args

from celery import Celery, Task
from celery.backends.base import DisabledBackend
from celery.utils.time import maybe_iso8601, maybe_make_aware

from ..._options import SHORTEST_TTL, Duration, HoldOptions, seconds
from ..._platform.logs import logger, printable
from ...errors import ConfigurationError, LeaseLost, LockTimeout, WeblockError
from ...keys import CheckedKey
from ...sync import Locks

Unique = Literal["raise", "join", "drop"]
Until = Literal["start", "end"]

HEADER: Final = "weblock_unique"
"""The header of a message that has the token, or ``DUPLICATE``."""

DUPLICATE: Final = "duplicate"
"""What stands there in a message of a canvas whose task is not to run: the rest of the canvas waits for it."""

_ID: Final = re.compile(r" \S+\[([^\[\]]+)\]$")
"""The end of the label of a task's lease."""

_CANVAS: Final = ("chain", "chord", "group_id", "parent_id", "root_id")
"""Options with which Celery sends a member of a canvas, or a callback."""

_ATTEMPTS: Final = 3
"""How often a sender asks for a key that was free whenever it looked who has it."""


class AlreadyQueued(WeblockError):
    """A task with the same key is queued or running, so this one was not sent.

    Attributes:
        key: The key.
        task_id: The id of that task; ``None`` if something else than a task has the key.
        remaining: Seconds until the key is free at the latest, unless a worker renews its lease.
    """

    def __init__(self, key: str, *, task_id: str | None, remaining: float) -> None:
        by = f"task {task_id}" if task_id else "something else than a task"
        super().__init__(
            f"a task with the key {key!r:.200} was not sent: {by} has the key, for {remaining:.0f} s at"
            " most unless it is renewed"
        )
        self.key = key
        self.task_id = task_id
        self.remaining = remaining


def check(task: Any, options: HoldOptions) -> None:
    """Raise ``ConfigurationError`` if the options of a task for its uniqueness cannot work."""
    if task.unique is None:
        if task.unique_for is not None or task.until != "end":
            raise ConfigurationError(
                f"unique_for= and until= of task {task.__name__} need unique='raise', 'join' or 'drop'"
            )
        return
    for name, values in (("unique", Unique), ("until", Until)):
        if getattr(task, name) not in get_args(values):
            raise ConfigurationError(
                f"{name}={getattr(task, name)!r:.80} must be one of {get_args(values)} (task"
                f" {task.__name__})"
            )
    if task.lock is None or task.unique_for is None:
        raise ConfigurationError(
            f"unique={task.unique!r} of task {task.__name__} needs lock=, the key, and unique_for=: for"
            " how many seconds the task may wait in its queue"
        )
    seconds("unique_for", task.unique_for, least=SHORTEST_TTL)
    if options.get("limit", 1) != 1 or options.get("shared"):
        raise ConfigurationError(
            f"unique={task.unique!r} of task {task.__name__} needs an exclusive lock, without limit= and"
            " shared="
        )


def refuse_what_cannot_work(task: Any) -> None:
    """Raise ``ConfigurationError`` for a task without a key, or which wants results that nobody stores."""
    if task.lock is None:
        check(type(task), {})
    if task.unique == "join" and isinstance(task.backend, DisabledBackend):
        raise ConfigurationError(
            f"unique='join' of task {task.name} returns the result of the queued task, and the"
            " application has no result backend: set result_backend, or write unique='drop'"
        )


def in_canvas(options: Mapping[str, Any]) -> bool:
    """Return whether Celery sends a task as a part of a canvas, or as a callback."""
    return any(options.get(name) for name in _CANVAS)


def length_of(app: Celery, unique_for: Duration, options: Mapping[str, Any]) -> float:
    """Return for how many seconds the key of a task stays taken that nobody runs."""
    delay = float(options.get("countdown") or 0)
    eta: Any = options.get("eta")
    if eta and not delay:
        moment: datetime = maybe_make_aware(maybe_iso8601(eta), app.timezone)
        delay = (moment - app.now()).total_seconds()
    return seconds("unique_for", seconds("unique_for", unique_for) + max(0.0, delay))


def token_for(
    locks: Locks, keys: Sequence[CheckedKey], options: HoldOptions, length: float
) -> str | None:
    """Return a token for the keys, which stay taken for ``length`` seconds.

    Return ``None`` where the engine does not answer and ``on_unavailable="open"`` allows to go on. Raises
    ``AlreadyQueued`` for a key that another task has.
    """
    options = {**options, "wait": 0}
    for attempt in range(_ATTEMPTS):
        try:
            lease = locks.acquire(*keys, **options)
        except LockTimeout:
            if found := _queued(locks, keys):
                raise found from None
            if attempt == _ATTEMPTS - 1:
                raise
            continue
        with lease:
            return lease.hand_over(ttl=length) if lease.held else None
    return None


def _queued(locks: Locks, keys: Sequence[CheckedKey]) -> AlreadyQueued | None:
    for key in keys:
        if (info := locks.inspect(key)) and info.holder:
            found = _ID.search(info.holder)
            task_id = found[1] if found else None
            return AlreadyQueued(key, task_id=task_id, remaining=info.remaining)
    return None


def told(task: Task, duplicate: AlreadyQueued) -> Any:
    """Return what the sender of a duplicate gets. Raises ``AlreadyQueued`` if it wants that."""
    if task.unique == "drop":
        logger.info("task %s was not sent: %s", task.name, printable(str(duplicate)))
        return None
    if task.unique == "join" and duplicate.task_id:
        return task.AsyncResult(duplicate.task_id)
    raise duplicate


def give_back(locks: Locks, token: str | None) -> None:
    """Release the keys of a task that never runs."""
    if token and token != DUPLICATE:
        try:
            locks.take_over(token).release()
        except LeaseLost:
            pass  # The task is running, or the time is over.
        except WeblockError as error:
            logger.warning("the key of a task that does not run stays taken: %s", error)
