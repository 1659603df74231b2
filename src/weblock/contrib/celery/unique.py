"""Unique jobs: the key of a task is held from the moment at which it is sent.

1. ``apply_async`` acquires the key, hands the lease over to a token (``Lease.hand_over``), and sends the
   token with the message. No process renews that lease: it lasts for ``unique_for``, after the task's ETA.
2. The run takes the lease over, and renews it until the task ends (or releases it at once, with
   ``until="start"``). ``self.retry``, ``self.replace`` and ``autoretry_for`` hand it over again, also
   before the run has taken it.
3. If the lease cannot be taken over, another delivery has it, or it has ended. Then the run acquires the key
   like any other task, without waiting: it is skipped if another task has the key.
4. A task that ends before its run has taken the token (it was revoked, it expired, or it failed before its
   function was called) releases the key by the token.

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

from ..._adapting import give_up
from ..._options import SHORTEST_TTL, Duration, HoldOptions, seconds
from ...errors import ConfigurationError, LockTimeout, WeblockError
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


class AlreadyQueued(WeblockError):
    """A task with the same key is queued or running, so this one was not sent.

    Attributes:
        key: The key.
        task_id: The id of that task; ``None`` if something other than a task has the key.
        remaining: Seconds until the key is free at the latest, unless a worker renews its lease.
    """

    code = "already_queued"

    def __init__(self, key: str, task_id: str | None, remaining: float) -> None:
        by = f"task {task_id}" if task_id else "something other than a task"
        super().__init__(
            f"a task with the key {key!r:.200} was not sent: {by} has the key, for at most"
            f" {remaining:.0f} s unless it is renewed",
            *(key, task_id, remaining),
        )
        self.key = key
        self.task_id = task_id
        self.remaining = remaining


def check(task: Any, limit: int = 1) -> None:
    """Raise ``ConfigurationError`` if the options of a task, or of its class, for its uniqueness cannot work.

    ``limit`` is how many may hold its key at once.
    """
    name = task.name or task.__name__
    if task.unique is None:
        if task.unique_for is not None or task.until != "end":
            raise ConfigurationError(
                f"unique_for= and until= of task {name} need unique='raise', 'join' or 'drop'"
            )
        return
    for option, values in (("unique", Unique), ("until", Until)):
        if getattr(task, option) not in get_args(values):
            raise ConfigurationError(
                f"{option}={getattr(task, option)!r:.80} must be one of {get_args(values)} (task"
                f" {name})"
            )
    if task.lock is None or task.unique_for is None:
        raise ConfigurationError(
            f"unique={task.unique!r} of task {name} needs lock=, the key, and unique_for=: for how"
            " many seconds the task may wait in its queue"
        )
    seconds("unique_for", task.unique_for, least=SHORTEST_TTL)
    if limit != 1:
        raise ConfigurationError(
            f"unique={task.unique!r} of task {name} needs an exclusive lock, without limit= and"
            " shared="
        )
    # A class has no application yet.
    if (
        task.unique == "join"
        and isinstance(task, Task)
        and isinstance(task.backend, DisabledBackend)
    ):
        raise ConfigurationError(
            f"unique='join' of task {name} returns the result of the queued task, and the"
            " application has no result backend: set result_backend, or write unique='drop'"
        )


def length_of(app: Celery, unique_for: Duration | None, options: Mapping[str, Any]) -> float:
    """Return for how many seconds the key of a task stays taken that no worker runs."""
    delay = float(options.get("countdown") or 0)
    eta: Any = options.get("eta")
    if eta and not delay:
        moment: datetime = maybe_make_aware(maybe_iso8601(eta), app.timezone)
        delay = (moment - app.now()).total_seconds()
    return seconds("unique_for", seconds("unique_for", unique_for) + max(0.0, delay))


def token_for(locks: Locks, keys: Sequence[CheckedKey], options: HoldOptions, length: float) -> str:
    """Return a token for the keys, which stay taken for ``length`` seconds; ``options`` do not wait.

    It is empty if the engine does not answer and ``on_unavailable="open"`` allows to continue. Raises
    ``AlreadyQueued`` for a key that another task has.
    """
    attempts = 3
    while True:
        attempts -= 1
        try:
            lease = locks.acquire(*keys, **options)
        except LockTimeout as busy:
            # A quorum may reject all senders that ask at the same time. Then the key is free again.
            info = locks.inspect(busy.key)
            if attempts and not (info and info.holder):
                continue
            found = _ID.search(info.holder or "") if info else None
            raise AlreadyQueued(
                busy.key,
                task_id=found[1] if found else None,
                remaining=info.remaining if info else 0.0,
            ) from None
        with lease:
            return lease.hand_over(ttl=length) if lease.held else ""


def give_back(locks: Locks, headers: Mapping[str, Any]) -> None:
    """Release in the background the keys of a message whose task does not take them over."""
    if headers[HEADER] not in ("", DUPLICATE):
        give_up(locks, headers[HEADER])
