"""``LockedTask``: the base class of tasks that run under a lock."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol
from weakref import WeakKeyDictionary

from celery import Celery, Task

from ..._options import Duration
from ...errors import ConfigurationError
from ...sync import Locks
from .options import KeyFunction, Keys, OnBusy, check
from .running import Running, running


class Installed(Protocol):
    """What an application has of weblock."""

    @property
    def locks(self) -> Locks:
        """The locks of its tasks."""


installed: Final[WeakKeyDictionary[Celery, Installed]] = WeakKeyDictionary()
"""By application."""


class LockedTask(Task):
    """The base class of tasks that run under a lock.

    ``WebLock(app)`` makes it the base of all tasks of the application; a base class of your own is
    derived from it. The options of ``HoldOptions`` are options of the task, too: ``ttl=30``.

    The lock is acquired before the task runs, and released when it has returned or raised, whatever
    the pool and ``acks_late``. A task whose lease was lost meanwhile fails with ``LeaseLost``.
    """

    abstract = True

    lock: str | KeyFunction | Sequence[str | KeyFunction] | None = None
    """The key, which may name arguments, by name or by place: ``"invoice:{invoice_id}"``, or
    ``"invoice:{0}"``; a function of the arguments that returns the key; or a list of several.
    """
    on_busy: OnBusy = "wait"
    """What to do if the key is busy: ``"wait"``, and then fail with ``LockTimeout``; ``"skip"``, which
    ends the task as ignored; or ``"retry"``, which runs it again later by Celery's own ``retry``.

    The last two do not wait, unless the task says ``wait=``.
    """
    busy_countdown: Duration | None = None
    """Seconds until the next attempt with ``on_busy="retry"``; by default, as the queue moves."""
    at_least: Duration | None = None
    """For how many seconds the key stays taken, also if the task ends before: see ``Locks.run``."""
    lock_shared: bool | None = None
    """The option ``shared`` of ``HoldOptions``, for Celery has a ``shared=`` of its own in ``@app.task``."""
    on_lost: Callable[..., None] | None = None
    """A method, or a function of the task and the lease, that is called once, in a background thread,
    when the lease is lost while the task runs.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Put the lock around ``run``. Raises ``ConfigurationError`` for what cannot work."""
        super().__init_subclass__(**kwargs)
        run = inspect.getattr_static(cls, "run")
        if not isinstance(run, Locked) and run is not inspect.getattr_static(Task, "run"):
            run = cls.run = Locked(run)
        if cls.lock is not None and isinstance(run, Locked):
            check(cls, run.unlocked(object(), cls))


class Locked:
    """The ``run`` of a task, which is called while the lock is held."""

    def __init__(self, run: Any) -> None:
        self._run = run

    def unlocked(self, task: object, owner: type) -> Callable[..., Any]:
        """Return ``run`` as it was written: a function, or a method of the task."""
        found: Callable[..., Any] = self._run.__get__(task, owner)
        return found

    def __get__(self, task: LockedTask | None, owner: type) -> Callable[..., Any]:
        if task is None:
            return self.unlocked(None, owner)
        run = self.unlocked(task, owner)
        keys = Keys(task, run)

        @functools.wraps(run)
        def locked(*args: Any, **kwargs: Any) -> Any:
            if task.lock is None or self._is_inside(task):
                return run(*args, **kwargs)
            found = keys.of_call(args, kwargs)
            return Running(task, _locks_of(task), self).run(run, found, *args, **kwargs)

        return locked

    def _is_inside(self, task: LockedTask) -> bool:
        """Return whether a class calls the ``run`` that it has overridden."""
        current = running.get()
        return current is not None and current.is_of(task) and current.code is not self


def _locks_of(task: LockedTask) -> Locks:
    found = installed.get(task.app)
    if found is None:
        raise ConfigurationError(
            f"task {task.name} has a lock, and its application {task.app.main!r:.80} has no locks:"
            ' call weblock.contrib.celery.WebLock(app, "redis://...") where the app is made'
        )
    return found.locks
