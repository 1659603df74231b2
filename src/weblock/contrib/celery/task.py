"""``LockedTask``: the base class of tasks that run under a lock, and one run of such a task.

A descriptor takes the place of ``run``, since applications override ``__call__``. What Celery does around
``run`` is then outside of the lock: a task that waits for its next attempt holds nothing, and one
that lost its lease fails before its result is stored.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, Literal, get_args
from weakref import WeakKeyDictionary

from celery import Celery, Task
from celery.app.task import Context
from celery.exceptions import Ignore, Retry
from celery.utils import uuid
from kombu.exceptions import EncodeError

from ..._adapting import AtLeast, give_up, key_space_of, take_over, terms_of
from ..._options import Duration, HoldOptions, Options, seconds
from ..._platform.logs import logger, printable
from ..._runtime.runtimes import drive, part_of
from ...errors import ConfigurationError, EngineUnavailable, LeaseLost, LockTimeout
from ...keys import CheckedKey, KeyTemplate, signature_of
from ...sync import Lease, Locks
from ..kit import (
    LONGEST_LABEL,
    Book,
    KeyFunction,
    LockSpec,
    RequestLeases,
    current_book,
    innermost,
    name_of,
    required_by,
    wanted_by,
)
from . import unique
from .unique import Unique, Until

OnBusy = Literal["wait", "skip", "retry"]
LockOption = str | KeyFunction | Sequence[str | KeyFunction] | None

MARGIN: Final = 5.0
"""Seconds beyond its ttl in which a busy machine notices that the lease of a dead worker has ended."""

LEAST_COUNTDOWN: Final = 1.0

_CANVAS: Final = ("chain", "chord", "group_id", "parent_id", "root_id")
"""Options with which Celery sends a member of a canvas, or a callback."""

_OF_TAKE_OVER: Final = ("ttl", "max_hold", "renew", "label")
"""The options of ``Locks.take_over``."""

installed: Final[WeakKeyDictionary[Celery, Callable[[], Locks]]] = WeakKeyDictionary()
"""What returns the locks of an application, which are opened when the first task needs them."""


def locks_for(task: Task) -> Locks:
    """Return the locks of a task's application. Raises ``ConfigurationError`` if it has none."""
    if task.app not in installed:
        raise ConfigurationError(
            f"task {task.name} has a lock, and its application {task.app.main!r:.80} has no"
            ' locks: call weblock.contrib.celery.WebLock(app, "redis://...") where the app is made',
            code="installation",
        )
    return installed[task.app]()


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
    ends the task as ignored, with the result ``None``, and does not run what follows it in its chain;
    or ``"retry"``, which runs it again later by Celery's own ``retry``.

    The last two do not wait, unless the task says ``wait=``.
    """
    busy_countdown: Duration | None = None
    """Seconds until the next attempt with ``on_busy="retry"``; by default, as the queue moves."""
    at_least: Duration | None = None
    """For how many seconds the key stays taken, also if the task ends before: see ``Locks.run``."""
    lock_shared: bool | None = None
    """The option ``shared`` of ``HoldOptions``, for Celery has a ``shared=`` of its own in ``@app.task``."""
    unique: Unique | None = None
    """What ``delay`` and ``apply_async`` do if a task with this key is queued or running: ``"raise"``
    raises ``AlreadyQueued``, ``"join"`` returns the ``AsyncResult`` of that task, ``"drop"`` returns
    ``None``. ``None`` sends the task; then ``on_busy`` says what happens when it runs.
    """
    unique_for: Duration | None = None
    """For how many seconds the task may wait in its queue, after its countdown or ETA. Then its key
    becomes free, whether or not it has run.
    """
    until: Until = "end"
    """Until when the key is held: ``"end"`` of the run, or its ``"start"``."""
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
        if cls.lock is None or not isinstance(run, LockedRun):
            return
        if cls.on_busy not in get_args(OnBusy):
            raise ConfigurationError(
                f"on_busy={cls.on_busy!r:.80} must be 'wait', 'skip' or 'retry' (task"
                f" {cls.__name__})"
            )
        work = run.unlocked(object(), cls)
        late = inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction
        if any(is_late(work) for is_late in late):
            raise TypeError(
                f"{cls.__name__} is async or a generator, which would run after the lock is"
                " released"
            )
        for name in ("busy_countdown", "at_least"):
            if (value := getattr(cls, name)) is not None:
                seconds(name, value)
        spec = spec_of(cls)
        unique.check(cls, Options().of_call(spec.options)[0].limit)
        refuse_unfillable(spec, work)

    def apply_async(
        self,
        args: Any = None,
        kwargs: Any = None,
        task_id: str | None = None,
        *given: Any,
        **options: Any,
    ) -> Any:
        """Send the task, as Celery does; with ``unique``, its key is acquired before that.

        A duplicate that is a member of a canvas is sent, and skipped when it would run, since the rest
        of the canvas waits for it.

        Raises:
            AlreadyQueued: With ``unique="raise"``: a task with this key is queued or running.
            EngineUnavailable: The engine did not answer. The task was not sent.
        """
        send = super().apply_async
        if self.unique is None:
            return send(args, kwargs, task_id, *given, **options)
        unique.check(self)  # Without a lock, there is no spec.
        spec, locks, task_id = spec_of(self), locks_for(self), task_id or uuid()
        unique.check(self, terms_of(locks, spec.options).limit)
        run = inspect.getattr_static(type(self), "run").unlocked(self, type(self))
        keys = keys_of_call(spec, run, args or (), kwargs or {})
        if not keys:  # Its functions have made none.
            return send(args, kwargs, task_id, *given, **options)
        try:
            length = unique.length_of(self.app, self.unique_for, options)
            label = _label(locks, spec.options, self, task_id)
            held: HoldOptions = {**spec.options, "label": label, "wait": 0}
            token = self._token_for(task_id, keys, held, length)
        except unique.AlreadyQueued as duplicate:
            if any(options.get(name) for name in _CANVAS):
                token = unique.DUPLICATE
            elif self.unique == "join" and duplicate.task_id:
                return self.AsyncResult(duplicate.task_id)
            elif self.unique == "drop":
                logger.info("task %s was not sent: %s", self.name, printable(str(duplicate)))
                return None
            else:
                raise
        headers = {**(options.pop("headers", None) or {}), unique.HEADER: token}
        try:
            return send(args, kwargs, task_id, *given, headers=headers, **options)
        except (EncodeError, LookupError, TypeError, ValueError):
            # There is no message for these arguments and options. After another error there may be one.
            unique.give_back(locks, headers)
            raise

    def _token_for(
        self, task_id: str, keys: tuple[CheckedKey, ...], options: HoldOptions, length: float
    ) -> str:
        """Return a token of the keys; an empty one for a next attempt that cannot have it now.

        That attempt acquires its keys when it runs, and must not be lost.
        """
        locks, current, running = locks_for(self), self.app.current_task, innermost(Running)
        # By ``retry`` or ``replace``.
        is_next_attempt = current is not None and current.request.id == task_id
        lease = running.lease if is_next_attempt and running and running.task is current else None
        # Of the message of this attempt, if no run has taken it: a hook may retry the task before.
        headers = dict(current.request.headers or {}) if is_next_attempt else {}
        unused = headers.pop(unique.HEADER, "")
        if unused == unique.DUPLICATE:
            return unique.DUPLICATE
        try:
            with suppress(LeaseLost):
                if lease and lease.keys == keys:
                    return lease.hand_over(ttl=length)
                if unused and current.app is self.app:
                    with locks.take_over(unused, label=options["label"]) as lease:
                        current.request.headers = headers
                        if lease.keys == keys:
                            return lease.hand_over(ttl=length)
            return unique.token_for(locks, keys, options, length)
        except (unique.AlreadyQueued, EngineUnavailable):
            if is_next_attempt:
                return ""
            raise


def _label(locks: Locks, options: HoldOptions, task: Task, task_id: str | None) -> str:
    """Return the label of a task's lease, which ends with the task as Celery's log names it."""
    name = f"{task.name}[{task_id}]" if task_id else task.name
    return f"{options.get('label', locks.label)} {name}"[-LONGEST_LABEL:]


def spec_of(task: LockedTask | type[LockedTask]) -> LockSpec:
    """Return what a task locks, with its options; unless it says so, only ``on_busy="wait"`` waits.

    Raises ``ConfigurationError`` for what cannot work.
    """
    names = HoldOptions.__annotations__
    options: Any = {name: getattr(task, name) for name in names if hasattr(task, name)}
    if task.lock_shared is not None:
        options["shared"] = task.lock_shared
    if task.on_busy != "wait":
        options.setdefault("wait", 0)
    lock: Any = task.lock
    if inspect.ismethod(lock):  # A class makes one of a function that is its option.
        plain = lock.__func__
        lock = lock if next(iter(signature_of(plain).parameters), "") == "self" else plain
    keys = lock if isinstance(lock, list | tuple) else [lock]
    return LockSpec.of([key if callable(key) else KeyTemplate.parse(key) for key in keys], options)


def refuse_unfillable(spec: LockSpec, work: Callable[..., Any]) -> None:
    """Raise ``ConfigurationError`` for a key that no call of ``work``, the ``run`` of a task, can fill in."""
    for template in spec.templates:
        template.for_call_of(work)
    there = signature_of(work).parameters
    for function in spec.functions:
        for name in required_by(function):
            if name not in ("self", *there):  # A class has no task yet, whose method it may be.
                raise ConfigurationError(
                    f"key function {name_of(function)} needs {name!r}, which is not a parameter of"
                    f" {name_of(work)}; available: {', '.join(there) or 'none'}",
                    code="missing_value",
                )


def keys_of_call(
    spec: LockSpec, run: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[CheckedKey, ...]:
    """Return the keys for the arguments of a call of ``run``, by name and by place, with its defaults."""
    if not spec.functions and not any(template.names for template in spec.templates):
        # A decorator may pass the task other arguments than it is called with.
        return spec.made_of(lambda _template: {}, str)
    call = signature_of(run).bind(*args, **kwargs)
    call.apply_defaults()
    values = {**call.arguments, **{str(place): each for place, each in enumerate(call.args)}}
    return spec.made_of(
        lambda _template: values, lambda function: function(**wanted_by(function, call.arguments))
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
            outer = innermost(Running)
            # A class may call the ``run`` that it has overridden.
            inner = outer and outer.task is task and outer.code is not self
            if inner or task.lock is None:
                return run(*args, **kwargs)
            return Running(task, self).run(run, args, kwargs)

        return locked


class Running(RequestLeases[Lease]):
    """What one run of a task holds. A run inside another, or inside a request, holds what that one does, too."""

    lease: Lease | None = None

    def __init__(self, task: LockedTask, code: object) -> None:
        # Not the book around it: several tasks may run at once in one request, in threads.
        super().__init__(Book("task", task.name or "", current_book()))
        self._locks = locks_for(task)
        self.task: Final = task
        self.code: Final = code
        """What identifies the function that runs: a class may have overridden another's."""
        self._token: str | None = None
        """The token of its message, if its key was acquired when the task was sent."""

    def run(self, work: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Return what the work returns, which runs while its keys are held.

        If the keys are busy, the task waits, is skipped or tries again, as it says. Raises ``LeaseLost``
        if a lease was lost and the work raises nothing.
        """
        spec = spec_of(self.task)
        keys = keys_of_call(spec, work, args, kwargs)
        part = part_of.set(self.book.flow)
        try:
            result = self._work(functools.partial(work, *args, **kwargs), keys, spec.options)
        except BaseException as error:
            if loss := drive(self.release()):
                error.add_note(f"in addition, the {loss}")
            raise
        else:
            if loss := drive(self.release()):
                raise loss
            return result
        finally:
            part_of.reset(part)

    def _work(
        self, work: Callable[[], Any], keys: Sequence[CheckedKey], options: HoldOptions
    ) -> Any:
        if not keys:  # Its functions have made none.
            return work()
        request = self.task.request
        headers = dict(request.headers or {})
        self._token = headers.pop(unique.HEADER, None)
        if self._token is not None:
            request.headers = headers  # What is still there when the task has ended is given back.
        if self._token == unique.DUPLICATE:
            return self._skip("its key was taken when it was sent")
        try:
            self.lease = self._acquire(keys, options)
        except LockTimeout as busy:
            # Celery repeats an eager task at once, so that fails instead.
            if self._on_busy == "retry" and not request.is_eager:
                # Not all tasks at once, unless the task says when.
                countdown = max(LEAST_COUNTDOWN, busy.retry_after or 0.0) * random.uniform(1.0, 1.5)
                if self.task.busy_countdown is not None:
                    countdown = seconds("busy_countdown", self.task.busy_countdown)
                raise self.task.retry(exc=busy, countdown=countdown) from busy
            if self._on_busy != "skip":
                raise
            return self._skip(str(busy))
        if self.task.until == "start":
            drive(self.release())
            # It goes on without a lease: a class may call the ``run`` that it has overridden.
            self.lease, self.over = None, False
        if not self.leases:  # What is around it holds them.
            return work()
        (own,) = self.leases
        if self.task.on_lost is not None:
            own.on_lost(functools.partial(self.task.on_lost, own))
        least = AtLeast(self._locks, self.task.at_least, options)
        drive(least.begin(own))
        try:
            return work()
        except BaseException as error:
            if self.task.unique is not None and self._is_sent_again_after(error):
                with suppress(LeaseLost, EngineUnavailable):
                    # ``_token_for`` finds it there.
                    request.headers = {**headers, unique.HEADER: own.hand_over()}
            raise
        finally:
            least.end(own)

    def _is_sent_again_after(self, error: BaseException) -> bool:
        """Return whether ``autoretry_for`` retries the task after an error, outside of its run."""
        task, request = self.task, self.task.request
        retried, others = (
            tuple(getattr(task, name, ())) for name in ("autoretry_for", "dont_autoretry_for")
        )
        limit = getattr(task, "retry_kwargs", {}).get("max_retries", task.max_retries)
        return (
            isinstance(error, retried)
            and not isinstance(error, (Ignore, Retry, *others))
            and not request.called_directly
            and not request.is_eager
            and (limit is None or request.retries < limit)
        )

    def _acquire(self, keys: Sequence[CheckedKey], given: HoldOptions) -> Lease:
        """Acquire the keys; wait for an earlier delivery, or attempt, of this very task.

        Either its worker was killed, and the broker has delivered the task again; or it is ending, and
        has sent its next attempt. A delivery that was skipped now would be lost. But if the earlier one
        goes on, the broker has delivered a task that runs: the earlier one will store the result.
        """
        task, locks, options = self.task, self._locks, given.copy()
        options["label"] = _label(locks, given, task, task.request.id)
        if self._token is not None:
            options["wait"] = 0
        if self._token and (lease := self._taken_over(self._token, keys, options)):
            return lease

        def runs_already() -> bool:
            mark = f" {task.name}[{task.request.id}]"
            infos = map(locks.inspect, self.book.missing(locks, keys))
            return any(each.label.endswith(mark) for info in infos if info for each in info.holders)

        try:
            return drive(self.take(locks, keys, options))
        except LockTimeout:
            if self._on_busy == "retry" or not task.request.id or not runs_already():
                raise
        options["wait"] = terms_of(locks, options).ttl + MARGIN
        try:
            return drive(self.take(locks, keys, options))
        except LockTimeout as busy:
            if runs_already():
                raise Ignore(f"it runs already: {busy}") from busy
            raise

    def _taken_over(
        self, token: str, keys: Sequence[CheckedKey], options: HoldOptions
    ) -> Lease | None:
        terms: Any = {name: options[name] for name in _OF_TAKE_OVER if name in options}
        try:
            acquired = drive(take_over(self._locks, token, terms))
        except LeaseLost:
            return None  # Another delivery has it, or it has ended.
        except BaseException as error:
            give_up(self._locks, token)
            if not isinstance(error, EngineUnavailable):
                raise
            if not terms_of(self._locks, options).fail_open:
                raise
            return None
        lease = self.new_lease(self._locks, acquired)
        if lease.keys != tuple(keys):  # The task has another ``lock`` than when it was sent.
            lease.release()
            return None
        for each in acquired[1]:
            each.control = self.book.flow  # As of what a request acquires.
        self.leases.append(lease)
        place = key_space_of(self._locks)
        self.book.keys.update({(place, key): lease for key in lease.keys})
        return lease

    @property
    def _on_busy(self) -> OnBusy:
        return self.task.on_busy if self._token is None else "skip"

    def _skip(self, why: str) -> None:
        """End a task that is not to run."""
        task, request = self.task, self.task.request
        logger.info("task %s[%s] is skipped: %s", task.name, request.id, printable(why))
        if request.called_directly:
            return
        if not request.is_eager:  # Groups, chords and callers wait for a result of each task.
            backend = task.backend
            backend.mark_as_done(request.id, None, request, not task.ignore_result)
            for part in itertools.chain.from_iterable(map(_tasks_in, request.chain or ())):
                options = part["options"]
                context = Context(options, id=options["task_id"], group=options.get("group_id"))
                backend.mark_as_done(context.id, None, context)
        raise Ignore(why)


def _tasks_in(step: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the tasks whose results are the result of a step of a chain."""
    kind, kwargs = step["subtask_type"], step["kwargs"]
    if kind == "chord":
        return _tasks_in(kwargs["body"])
    if kind not in ("chain", "group"):
        return [step]
    return [part for each in kwargs["tasks"] for part in _tasks_in(each)]


def lease_of() -> Lease:
    """Return the lease of the running task.

    Raises ``ConfigurationError`` where no task holds a lock.
    """
    current = innermost(Running)
    if current is None or current.lease is None:
        raise ConfigurationError(
            'no task holds a lock here: give the task one, @app.task(lock="invoice:{0}")',
            code="no_lease",
        )
    return current.lease
