"""One run of a task under its lock, from the first key until everything is released."""

from __future__ import annotations

import random
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast

from celery.exceptions import Ignore

from ..._face import BaseLease, Face
from ..._options import HoldOptions, seconds
from ..._platform.logs import logger, printable
from ..._runtime.blocking import drive
from ..._runtime.clock import part_of
from ...errors import ConfigurationError, LockTimeout
from ...keys import CheckedKey
from ...sync import Lease, Locks
from ..request import LONGEST_LABEL, RequestLeases, current_book
from .options import hold_options

if TYPE_CHECKING:
    from .task import LockedTask

MARGIN: Final = 5.0
"""Seconds beyond its ttl in which a busy machine notices that the lease of a dead worker has ended."""

LEAST_COUNTDOWN: Final = 1.0


class Running(RequestLeases[Lease]):
    """What one run of a task holds. A run inside another, or inside a request, holds what that one does, too."""

    __slots__ = ("_locks", "_task", "code", "lease")

    beside_others = True

    def __init__(self, task: LockedTask, locks: Locks, code: object) -> None:
        around: Any = current_book()
        super().__init__("task", task.name or "", around.of_application() if around else None)
        self._task = task
        self._locks = locks
        self.code: Final = code
        """What identifies the function that runs: a class may have overridden another's."""
        self.lease: Lease | None = None

    def is_of(self, task: object) -> bool:
        """Return whether this is an unfinished run of the task."""
        return self._task is task and not self.over

    def lease_of(self, locks: Face, keys: Sequence[str]) -> Lease:
        """Return the lease of keys that are held: one that blocks, although a request may have another."""
        found: BaseLease = super().lease_of(locks, keys)
        if type(found) is not Lease:
            found = locks._joined([found], keys)  # noqa: SLF001 - adapters know the face
        return cast("Lease", found)

    def run(
        self, work: Callable[..., Any], keys: Sequence[CheckedKey], *args: Any, **kwargs: Any
    ) -> Any:
        """Return what the work returns, which runs while the keys are held.

        If the keys are busy, the task waits, is skipped or tries again, as it says.
        """
        with self._entered():
            try:
                self.lease = self._acquire_for_task(keys)
            except LockTimeout as busy:
                return self._find_busy(busy)
            if not self.leases:
                return work(*args, **kwargs)
            (own,) = self.leases
            locks, task = self._locks, self._task
            if task.on_lost is not None:
                own.on_lost(partial(task.on_lost, own))
            least = locks._at_least(task.at_least, hold_options(task))  # noqa: SLF001 - as Locks.run
            until = drive(locks._keep_for(own, least))  # noqa: SLF001
            try:
                return work(*args, **kwargs)
            finally:
                locks._leave_taken(own, until)  # noqa: SLF001

    @contextmanager
    def _entered(self) -> Generator[None]:
        """Release when the block ends. Raise ``LeaseLost`` if a lease was lost and nothing else is."""
        part, outer = part_of.set(self.flow), running.set(self)
        try:
            yield
        except BaseException as error:
            if loss := drive(self.release()):
                error.add_note(f"meanwhile, the {loss}")
            raise
        else:
            if loss := drive(self.release()):
                raise loss
        finally:
            running.reset(outer)
            part_of.reset(part)

    def _acquire_for_task(self, keys: Sequence[CheckedKey]) -> Lease:
        options = hold_options(self._task)
        mark = self._mark()
        options["label"] = f"{options.get('label', self._locks.label)}{mark}"[-LONGEST_LABEL:]
        try:
            return self._take(keys, options)
        except LockTimeout:
            if self._task.on_busy == "retry" or not self._is_behind_itself(keys, mark):
                raise
        terms, _ = self._locks._options.of_call(options)  # noqa: SLF001 - adapters know the face
        options["wait"] = terms.ttl + MARGIN
        return self._take(keys, options)

    def _take(self, keys: Sequence[CheckedKey], options: HoldOptions) -> Lease:
        return drive(self.take(self._locks, keys, options))

    def _mark(self) -> str:
        """Return what a label ends with: the task, as Celery's log names it."""
        task = self._task
        return f" {task.name}[{task.request.id}]" if task.request.id else f" {task.name}"

    def _is_behind_itself(self, keys: Sequence[CheckedKey], mark: str) -> bool:
        """Return whether the keys are held by an earlier delivery, or attempt, of this very task.

        Its worker was killed, and the broker has delivered it again; or it is just ending, and has
        enqueued its next attempt. To skip it now would be to lose it.
        """
        if not self._task.request.id:
            return False
        infos = map(self._locks.inspect, self.missing(self._locks, keys))
        return any(each.label.endswith(mark) for info in infos if info for each in info.holders)

    def _find_busy(self, busy: LockTimeout) -> None:
        """End or postpone a task whose keys are busy."""
        task = self._task
        if task.on_busy == "retry":
            raise task.retry(exc=busy, countdown=self._countdown(busy))
        if task.on_busy != "skip":
            raise busy
        request = task.request
        logger.info("task %s[%s] is skipped: %s", task.name, request.id, printable(str(busy)))
        if request.called_directly or request.chord:
            return  # A chord waits for each of its tasks, and an ignored one would never be done.
        raise Ignore(str(busy))

    def _countdown(self, busy: LockTimeout) -> float:
        """Return after how many seconds to try again: not all tasks at once, unless it was said when."""
        if self._task.busy_countdown is not None:
            return seconds("busy_countdown", self._task.busy_countdown)
        return max(LEAST_COUNTDOWN, busy.retry_after or 0.0) * random.uniform(1.0, 1.5)


running: Final[ContextVar[Running | None]] = ContextVar("weblock_celery_running", default=None)
"""The innermost run of a locked task."""


def lease_of() -> Lease:
    """Return the lease of the running task.

    Raises ``ConfigurationError`` where no task holds a lock.
    """
    current = running.get()
    if current is None or current.over or current.lease is None:
        raise ConfigurationError(
            'no task holds a lock here: give the task one, @app.task(lock="invoice:{0}")'
        )
    return current.lease
