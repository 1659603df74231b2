"""``WebLock``: what an application needs for its locks, once."""

from __future__ import annotations

import re
import threading
from collections.abc import Sequence
from typing import Any, Final, NoReturn, Unpack

from celery import Celery, Task

from ..._options import LocksOptions, Options
from ..._platform.forks import heed_forks
from ...errors import ConfigurationError
from ...sync import Locks
from ..settings import Wanted, configured, opened
from .task import LockedTask, installed

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
        locks: Locks | str | Sequence[str] | None = None,
        **options: Unpack[LocksOptions],
    ) -> None:
        self._given: Wanted = locks
        self._options = options
        self._app: Celery | None = None
        self._opened: Locks | None = None
        self.after_fork()
        heed_forks(self)
        if app is not None:
            self.init_app(app)

    def init_app(self, app: Celery) -> None:
        """Make ``lock`` work in the tasks of ``app``. Call it before the tasks are defined.

        Raises:
            ConfigurationError: The application has locks already, or these locks an application.
        """
        if self._app is not None or app in installed:
            raise ConfigurationError(
                f"weblock is installed in the application {app.main!r:.80} already: install it once, and"
                " give each application a WebLock of its own"
            )
        self._app = app
        installed[app] = self
        base = app.Task
        if not issubclass(base, LockedTask):
            body = {"abstract": True, "__module__": base.__module__}
            app.Task = type(base.__name__, (LockedTask, base), body)
        app.on_after_finalize.connect(self._check, weak=False)
        if app.finalized:
            self._check()

    @property
    def locks(self) -> Locks:
        """The locks, for work outside of tasks.

        Raises ``ConfigurationError`` for a setting that cannot work.
        """
        if self._opened is None:
            with self._opening:
                if self._opened is None:
                    self._opened = opened(*self._configured())
        return self._opened

    def after_fork(self) -> None:
        """Replace the mutex, which another thread of the parent may have held."""
        self._opening = threading.Lock()

    def _configured(self) -> tuple[Wanted, LocksOptions]:
        if self._app is None:
            raise ConfigurationError("this WebLock has no application: call locks.init_app(app)")
        conf: Any = self._app.conf
        names = [found[1].lower() for name in conf if (found := _SETTING.fullmatch(name))]
        given = {name: conf[f"weblock_{name}"] for name in names}
        return configured(self._given, self._options, given, spell="weblock_{}".format)

    def _check(self, **_signal: object) -> None:
        """Refuse what would run without its lock. Celery logs what is raised here, and goes on."""
        assert self._app is not None
        for task in self._app.tasks.values():
            if not isinstance(task, LockedTask) and _names_lock(task):
                task.run = _refusing(task)
        _, options = self._configured()
        Options(**options)


def _names_lock(task: Task) -> bool:
    """Return whether a task has the option ``lock``.

    A function counts only where ``@app.task(lock=...)`` puts it, in the task's own class: on a base
    class, it may be a method that has nothing to do with weblock.
    """
    lock = getattr(task, "lock", None)
    return isinstance(lock, str | list | tuple) or (callable(lock) and "lock" in vars(type(task)))


def _refusing(task: Task) -> Any:
    lock: Any = task.lock
    shown = getattr(lock, "__qualname__", None) or repr(lock)

    def run(*_args: object, **_kwargs: object) -> NoReturn:
        raise ConfigurationError(
            f"task {task.name} has lock={shown:.80}, which its base class"
            f" {type(task).__mro__[1].__qualname__} would ignore: derive that from"
            " weblock.contrib.celery.LockedTask"
        )

    return run
