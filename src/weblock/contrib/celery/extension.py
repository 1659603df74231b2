"""``WebLock``: what an application needs for its locks, once."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Sequence
from typing import Any, Final, NoReturn, Unpack

from celery import Celery, Task
from celery.app.annotations import resolve_all
from celery.app.registry import TaskRegistry
from celery.signals import task_postrun, task_revoked

from ..._adapting import terms_of
from ..._options import LocksOptions, Options
from ..._platform.forks import Mutex, enter_child, getpid, process
from ...errors import ConfigurationError
from ...sync import Locks
from ..kit import (
    Asked,
    Locked,
    Wanted,
    configured,
    name_of,
    opened,
    refuse_engine,
    refuse_other_application,
)
from . import unique
from .task import LockedTask, installed, locks_for, refuse_unfillable, spec_of

_SETTING: Final = re.compile(r"(?:weblock|[A-Z][A-Z0-9_]*_WEBLOCK)_(\w+)")
"""A setting of ours in ``app.conf``; Celery keeps the prefix of ``namespace=`` in its spelling."""


class WebLock:
    """The locks of a Celery application: ``WebLock(app, "redis://...")``.

    Tasks of the application then take the option ``lock``, and those of ``LockedTask``. Where the
    application is made later, ``locks = WebLock()`` and ``locks.init_app(app)``. Settings in
    ``app.conf`` override what is given here: ``weblock_url``, ``weblock_ttl`` and so on, which are read
    when the first task locks.

    Args:
        app: The application.
        locks: A ``Locks``, or an engine's URL and the options of ``LocksOptions``; ``file://`` by default.
    """

    def __init__(
        self,
        app: Celery | None = None,
        locks: Locks | str | Sequence[str] = "file://",
        **options: Unpack[LocksOptions],
    ) -> None:
        refuse_engine(options)
        self._given: Wanted = locks
        self._options = options
        self._app: Celery | None = None
        self._opened: Locks | None = None
        self._opening = Mutex()
        if app is not None:
            self.init_app(app)

    def init_app(self, app: Celery) -> None:
        """Make ``lock`` work in the tasks of ``app``. Call it before the tasks are defined.

        Raises:
            ConfigurationError: The application has locks already, or these locks an application.
        """
        refuse_other_application(app, Celery)
        if self._app is not None or app in installed:
            raise ConfigurationError(
                f"weblock is already installed in the application {app.main!r:.80}: install it"
                " once, and give each application its own WebLock",
                code="installation",
            )
        self._app = app
        installed[app] = lambda: self.locks
        base = app.Task
        if not issubclass(base, LockedTask):
            body = {"abstract": True, "__module__": base.__module__}
            app.Task = type(base.__name__, (LockedTask, base), body)
        _refuse_unlocked(app)
        # Celery logs what it raises.
        app.on_after_finalize.connect(self._configured, weak=False)
        if app.finalized:
            self._configured()
        for ends in (task_revoked, task_postrun):
            # Before 5.7, Celery takes the methods of two instances for one receiver.
            ends.connect(self._ended, weak=False, dispatch_uid=f"weblock:{id(self)}")

    @property
    def locks(self) -> Locks:
        """The locks, for work outside of tasks.

        Raises ``ConfigurationError`` for a setting that cannot work.
        """
        if self._opened is None:
            if getpid() != process.pid:
                enter_child()
            with self._opening.lock:
                if self._opened is None:
                    self._opened, _ = opened(Locks, *self._configured())
        return self._opened

    def _ended(self, sender: Task, request: Any = None, **_facts: object) -> None:
        """Give the key of a unique task back that was revoked, has expired, or failed before it ran."""
        headers = (request or sender.request).headers or {}
        if sender.app is self._app and unique.HEADER in headers:
            unique.give_back(self.locks, headers)

    def _configured(self, **_signal: object) -> tuple[Wanted, LocksOptions]:
        """Return what to open. Raises ``ConfigurationError`` for a setting or an option that cannot work."""
        if self._app is None:
            raise ConfigurationError(
                "this WebLock has no application: call locks.init_app(app)", code="installation"
            )
        conf: Any = self._app.conf
        names = [found[1].lower() for name in conf if (found := _SETTING.fullmatch(name))]
        given = {name: conf[f"weblock_{name}"] for name in names}
        wanted, options = configured(self._given, self._options, given, spell="weblock_{}".format)
        Options(**options)
        return wanted, options


def _refuse_unlocked(app: Celery) -> None:
    """Have each task fail that would ignore its lock: those that the application has or ever gets.

    Tasks come into being in several ways, before and after the application is finalized, but each of
    them is put into the registry before it can run. Celery has no signal for that.
    """
    tasks = registry_of(app)

    class Registry(type(tasks)):  # type: ignore[misc] # An application may have one of its own.
        def __setitem__(self, name: str, task: Task) -> None:
            if refusal := _refusal(app, task):

                def run(*_args: object, **_kwargs: object) -> NoReturn:
                    raise ConfigurationError(refusal, code="not_locked")

                task.run = run
            super().__setitem__(name, task)

    tasks.__class__ = Registry
    for name, task in tasks.items():
        tasks[name] = task


def _refusal(app: Celery, task: Task) -> str | None:
    """Return why a task must not run that has a ``lock``, whatever its base class means by that."""
    if isinstance(task, LockedTask):
        return None
    # Celery applies the annotations afterwards. A property of the class is not called.
    annotated = (settings.get("lock") for settings in resolve_all(app.annotations, task))
    given = (*annotated, inspect.getattr_static(task, "lock", None))
    lock = next((each for each in given if each is not None), None)
    if lock is None:
        return None
    return (
        f"task {task.name} has lock={name_of(lock):.80}, which its base class"
        f" {type(task).__mro__[1].__qualname__} would ignore: derive that from"
        " weblock.contrib.celery.LockedTask. If it is something else that the class calls its"
        " lock, give it another name"
    )


def locked_in(app: object, asked: Asked | None) -> Iterator[Locked | ConfigurationError]:
    """List the tasks that lock, and those that cannot run: see ``kit.application``."""
    if not isinstance(app, Celery) or asked:
        return
    app.loader.import_default_modules()  # As a worker does.
    for name, task in sorted(app.tasks.items()):
        if refusal := _refusal(app, task):
            yield ConfigurationError(refusal, code="not_locked")
        elif isinstance(task, LockedTask) and task.lock is not None:
            try:
                spec, locks = spec_of(task), locks_for(task)
                unique.check(task, terms_of(locks, spec.options).limit)
                refuse_unfillable(spec, task.run)
            except ConfigurationError as error:
                yield error
            else:
                options = {**spec.options, "on_busy": task.on_busy}
                if task.unique is not None:
                    options |= {"unique": task.unique, "unique_for": task.unique_for}
                order = "before the task runs"
                yield Locked(f"task {name}", spec.keys, options, locks, order=order)


def registry_of(app: Celery) -> TaskRegistry:
    """Return the tasks that an application has so far.

    ``app.tasks`` finalizes the application, and with it the order in which its tasks are made.
    """
    return app._tasks  # noqa: SLF001
