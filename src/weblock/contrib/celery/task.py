"""``LockedTask``: the base class of tasks that run under a lock, and one run of such a task.

A descriptor takes the place of ``run``, since applications override ``__call__``. What Celery does around
``run`` is then outside of the lock: a task that waits for its next attempt holds nothing, and one
that lost its lease fails before its result is stored.
"""

from __future__ import annotations

import functools
import inspect
import random
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, Final, Literal, Protocol, get_args
from weakref import WeakKeyDictionary

from celery import Celery, Task
from celery.exceptions import Ignore

from ..._adapting import AtLeast, terms_of
from ..._options import Duration, HoldOptions, seconds
from ..._platform.logs import logger, printable
from ..._runtime.blocking import drive
from ..._runtime.clock import part_of
from ...errors import ConfigurationError, LockTimeout
from ...keys import CheckedKey, KeyTemplate
from ...sync import Lease, Locks
from ..kit import LockSpec
from ..kit.book import LONGEST_LABEL, RequestLeases, current_book
from ..kit.values import KeyFunction, wanted_by

OnBusy = Literal["wait", "skip", "retry"]
LockOption = str | KeyFunction | Sequence[str | KeyFunction] | None

MARGIN: Final = 5.0
"""Seconds beyond its ttl in which a busy machine notices that the lease of a dead worker has ended."""

LEAST_COUNTDOWN: Final = 1.0


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

    lock: LockOption = None
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
        """Put the lock around ``run``. Raises ``ConfigurationError`` or ``TypeError`` for what cannot work."""
        super().__init_subclass__(**kwargs)
        run = inspect.getattr_static(cls, "run")
        if not isinstance(run, LockedRun) and run is not inspect.getattr_static(Task, "run"):
            run = cls.run = LockedRun(run)
        if cls.lock is not None and isinstance(run, LockedRun):
            cls._check(run.unlocked(object(), cls))

    @classmethod
    def _check(cls, run: Callable[..., Any]) -> None:
        if cls.on_busy not in get_args(OnBusy):
            raise ConfigurationError(
                f"on_busy={cls.on_busy!r:.80} must be 'wait', 'skip' or 'retry' (task {cls.__name__})"
            )
        if inspect.iscoroutinefunction(run):
            raise TypeError(
                f"{cls.__name__} is async: its coroutine would run after the lock is released"
            )
        if inspect.isgeneratorfunction(run) or inspect.isasyncgenfunction(run):
            raise TypeError(
                f"{cls.__name__} is a generator, which would run after the lock is released, if at all"
            )
        for name in ("busy_countdown", "at_least"):
            if (value := getattr(cls, name)) is not None:
                seconds(name, value)
        for template in TaskSpec.of_task(cls).templates:
            template.for_call_of(run)


class TaskSpec(LockSpec):
    """What a task locks. Its templates name arguments of a call, by name or by place."""

    @classmethod
    def of_task(cls, task: LockedTask | type[LockedTask]) -> TaskSpec:
        """Return the spec of a task's options; unless it says so, only ``on_busy="wait"`` waits.

        Raises ``ConfigurationError`` for options that cannot work.
        """
        names = HoldOptions.__annotations__
        options: Any = {name: getattr(task, name) for name in names if hasattr(task, name)}
        if task.lock_shared is not None:
            options["shared"] = task.lock_shared
        if task.on_busy != "wait":
            options.setdefault("wait", 0)
        lock = task.lock
        keys: Any = lock if isinstance(lock, list | tuple) else [lock]
        if not keys or not all(isinstance(key, str) or callable(key) for key in keys):
            raise ConfigurationError(
                f"lock={lock!r:.80} must be a key, a function that returns one, or several in a list;"
                " lock=None does not lock"
            )
        return cls.of(keys, options)

    @staticmethod
    def parsed(key: str | KeyFunction) -> KeyTemplate | KeyFunction:
        """Return a key function as the application has written it, and a key as a template."""
        if not callable(key):
            return KeyTemplate.parse(key)
        # A class makes a method of a function that is its option. One that takes ``self`` is meant as one.
        plain: KeyFunction = getattr(key, "__func__", key)
        is_method = next(iter(inspect.signature(plain).parameters), "") == "self"
        return key if is_method else plain

    def keys_of_call(
        self, run: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[CheckedKey, ...]:
        """Return the keys for the arguments of a call of ``run``, with its defaults."""
        call = inspect.signature(run).bind(*args, **kwargs)
        call.apply_defaults()
        values = {**call.arguments, **{str(place): each for place, each in enumerate(call.args)}}
        return self.made_of(
            lambda _template: values,
            lambda function: function(**wanted_by(function, call.arguments)),
        )


class LockedRun:
    """The ``run`` of a task, which is called while the lock is held."""

    def __init__(self, run: Any) -> None:
        self._run = run

    def unlocked(self, task: object, owner: type) -> Callable[..., Any]:
        """Return ``run`` as it was written: a function, or a method of the task."""
        found: Callable[..., Any] = self._run.__get__(task, owner)
        return found

    def __get__(self, task: LockedTask | None, owner: type) -> Callable[..., Any]:
        run = self.unlocked(task, owner)
        if task is None:
            return run

        @functools.wraps(run)
        def locked(*args: Any, **kwargs: Any) -> Any:
            outer = running.get()
            of_this = outer is not None and outer.task is task and not outer.over
            # A class may call the ``run`` that it has overridden.
            if task.lock is None or (of_this and outer and outer.code is not self):
                return run(*args, **kwargs)
            return Running(task, self).run(run, args, kwargs)

        return locked


class Running(RequestLeases[Lease]):
    """What one run of a task holds. A run inside another, or inside a request, holds what that one does, too."""

    beside_others = True
    lease: Lease | None = None

    def __init__(self, task: LockedTask, code: object) -> None:
        web = installed.get(task.app)
        if web is None:
            raise ConfigurationError(
                f"task {task.name} has a lock, and its application {task.app.main!r:.80} has no"
                ' locks: call weblock.contrib.celery.WebLock(app, "redis://...") where the app is made'
            )
        around: Any = current_book()
        super().__init__("task", task.name or "", around.of_application() if around else None)
        self._locks = web.locks
        self.task: Final = task
        self.code: Final = code
        """What identifies the function that runs: a class may have overridden another's."""

    def run(self, work: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Return what the work returns, which runs while its keys are held.

        If the keys are busy, the task waits, is skipped or tries again, as it says. Raises ``LeaseLost``
        if a lease was lost and the work raises nothing.
        """
        spec = TaskSpec.of_task(self.task)
        keys = spec.keys_of_call(work, args, kwargs)
        part, outer = part_of.set(self.flow), running.set(self)
        try:
            result = self._work(functools.partial(work, *args, **kwargs), keys, spec.options)
        except BaseException as error:
            if loss := drive(self.release()):
                error.add_note(f"meanwhile, the {loss}")
            raise
        else:
            if loss := drive(self.release()):
                raise loss
            return result
        finally:
            running.reset(outer)
            part_of.reset(part)

    def _work(
        self, work: Callable[[], Any], keys: Sequence[CheckedKey], options: HoldOptions
    ) -> Any:
        try:
            self.lease = self._acquire(keys, options)
        except LockTimeout as busy:
            return self._find_busy(busy)
        if not self.leases:  # What is around it holds them.
            return work()
        (own,) = self.leases
        if self.task.on_lost is not None:
            own.on_lost(functools.partial(self.task.on_lost, own))
        least = AtLeast(self._locks, self.task.at_least, options)
        drive(least.begin(own))
        try:
            return work()
        finally:
            least.end(own)

    def _acquire(self, keys: Sequence[CheckedKey], given: HoldOptions) -> Lease:
        """Acquire the keys; wait for an earlier delivery, or attempt, of this very task.

        That one's worker was killed, and the broker has delivered it again; or it is just ending, and
        has enqueued its next attempt. To skip it now would be to lose it.
        """
        task, locks, options = self.task, self._locks, given.copy()
        # A label ends with the task as Celery's log names it.
        mark = f" {task.name}[{task.request.id}]" if task.request.id else f" {task.name}"
        options["label"] = f"{options.get('label', locks.label)}{mark}"[-LONGEST_LABEL:]
        try:
            return drive(self.take(locks, keys, options))
        except LockTimeout:
            if task.on_busy == "retry" or not task.request.id:
                raise
            infos = map(locks.inspect, self.missing(locks, keys))
            if not any(
                each.label.endswith(mark) for info in infos if info for each in info.holders
            ):
                raise
        options["wait"] = terms_of(locks, options).ttl + MARGIN
        return drive(self.take(locks, keys, options))

    def _find_busy(self, busy: LockTimeout) -> None:
        """End or postpone a task whose keys are busy."""
        task = self.task
        if task.on_busy == "retry":
            # Not all tasks at once, unless the task says when.
            countdown = max(LEAST_COUNTDOWN, busy.retry_after or 0.0) * random.uniform(1.0, 1.5)
            if task.busy_countdown is not None:
                countdown = seconds("busy_countdown", task.busy_countdown)
            raise task.retry(exc=busy, countdown=countdown)
        if task.on_busy != "skip":
            raise busy
        request = task.request
        logger.info("task %s[%s] is skipped: %s", task.name, request.id, printable(str(busy)))
        if request.called_directly or request.chord:
            return  # A chord waits for each of its tasks, and an ignored one would never be done.
        raise Ignore(str(busy))


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
