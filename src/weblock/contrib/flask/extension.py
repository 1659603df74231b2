"""``WebLock``: the locks of a Flask application."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, TypeVar, Unpack

from flask import Flask, current_app, has_request_context, request

from ..._options import HoldOptions, LocksOptions
from ..._platform.forks import Mutex, enter_child, getpid, process
from ...errors import ConfigurationError
from ...keys import in_order
from ...sync import Lease, Locks
from ..kit import Asked, Locked, LockSpec, name_of
from ..kit.guarding import DATABASE_GUARD, LEASE_GUARD, GuardKind
from ..kit.settings import opened, refuse_other_application
from ..kit.values import KeyFunction
from ..wsgi import RequestLayer, Rewrite
from .answers import answer_errors
from .commands import commands
from .database import Database
from .settings import Settings, settings_in
from .views import GIVEN, acquire_one, decorated, locks_of, refuse_unlocked

NAME: Final = "weblock"
"""Under which Flask keeps the extension."""

F = TypeVar("F", bound=Callable[..., Any])


class WebLock:
    """The locks of Flask applications: ``locks = WebLock(app, "redis://...")``.

    In an application factory, ``locks = WebLock()`` and later ``locks.init_app(app)``. Settings in
    ``app.config`` override what is given here: ``WEBLOCK_URL``, ``WEBLOCK_TTL``, ``WEBLOCK_WAIT`` and
    so on.

    A lock that a view acquires is released when the request's teardown functions have run and its response
    is closed, so after every commit of the request. A response of up to 1 MiB is sent after that.

    A request that does not get its lock in time is answered with 409, and one whose engine is down or whose
    lease was lost with 503, as problem details, unless the application has an error handler for
    ``LockTimeout``, ``EngineUnavailable``, ``LeaseLost``, ``InvalidKey`` or ``WeblockError``.

    Where Flask-SQLAlchemy is used, ``db.session`` does not commit once a lease is lost. With
    ``WEBLOCK_GUARD = "database"``, or ``guard="database"`` for one lock, the database itself refuses a
    holder whose key has passed to another.

    Args:
        app: The application.
        locks: A ``Locks``, or an engine's URL and the options of ``LocksOptions``; ``file://`` by default.
        rewrite: ``rewrite(problem, error)`` returns the problem with another status, body or
            headers.

    Raises:
        ConfigurationError: A setting or an option cannot work.
    """

    def __init__(
        self,
        app: Flask | None = None,
        locks: Locks | str | Sequence[str] | None = None,
        *,
        rewrite: Rewrite | None = None,
        **options: Unpack[LocksOptions],
    ) -> None:
        self._settings = Settings(locks, options, rewrite)
        self._views: list[Callable[..., Any]] = []
        if app is not None:
            self.init_app(app)

    def init_app(self, app: Flask) -> None:
        """Make ``lock`` work in ``app``. Raises ``ConfigurationError`` for what cannot work.

        Middleware that commits is put around ``app.wsgi_app`` before, so that it is inside the lock.
        """
        refuse_other_application(app, Flask)
        if NAME in app.extensions:
            raise ConfigurationError(
                f"weblock is installed in the application {app.name!r:.80} already: install it once"
            )
        settings = self._settings.with_config(app.config)
        locks = opened(settings.locks, settings.options)
        database = Database(app, settings.guard)
        installed = app.extensions[NAME] = _Installed(
            app, locks, database, settings_in(app.config), self._views
        )
        app.before_request(partial(self._begin, installed))
        answer = answer_errors(app, settings.rewrite)
        layered: Any = app  # Flask documents the assignment, which no type checker takes.
        layered.wsgi_app = RequestLayer(database.around(app.wsgi_app), locks, answer=answer)
        app.cli.add_command(commands(locks))

    @property
    def locks(self) -> Locks:
        """The locks of the current application, for work outside of a request.

        Raises ``RuntimeError`` outside of an application's context.
        """
        return _installed().locks

    def lock(
        self,
        *keys: str | KeyFunction,
        guard: GuardKind | None = None,
        **options: Unpack[HoldOptions],
    ) -> Callable[[F], F]:
        """Decorate a view so that it runs under a lock: ``@locks.lock("item:{item_id}")``.

        It stands below the decorator of the route, on functions and methods of a ``MethodView``, plain
        or async, or in the ``decorators`` of a class. ``lease_of()`` returns the lease.

        Args:
            *keys: Templates, into which the arguments of the view are filled, and ``{query.name}`` and
                ``{header.name}``; or functions that return a key or several. A function is called with
                those arguments of the view that it names. Several keys are held together, all or none.
            guard: ``"database"``: the database refuses the commits of ``db.session`` once another holder
                has followed. ``"lease"``: only the lease is checked. By default, as ``WEBLOCK_GUARD``
                says. A key that several locks of a request name is guarded if one of them says so.
            **options: Override those of the application: see ``HoldOptions``.

        Raises:
            ConfigurationError: A key template or an option cannot work.
        """
        wanted = LockSpec.of(keys, options, guard)

        def decorate(view: F) -> F:
            found = decorated(view, wanted, _installed)
            self._views.append(found)
            return found

        setattr(decorate, GIVEN, keys)
        return decorate

    def acquire(
        self, *keys: str, guard: GuardKind | None = None, **options: Unpack[HoldOptions]
    ) -> Lease:
        """Acquire keys for the running request, and hold them until its work is done.

        For service functions that learn their key late. Rows that ``db.session`` has read are read
        again afterwards, and the request waits without a database connection. A key that the request
        holds is not acquired again.

        Args:
            *keys: The keys themselves, such as ``f"wallet:{wallet.id}"``.
            guard: See ``lock``.
            **options: Override those of the application: see ``HoldOptions``.

        Returns:
            The lease. ``release`` ends it before the request ends.

        Raises:
            ConfigurationError: No request is running, a key or an option is invalid, or ``db.session``
                has uncommitted writes.
            LockTimeout: The keys were not free within ``wait`` seconds.
            EngineUnavailable: The engine did not answer.
        """
        if not (keys and has_request_context()):
            raise ConfigurationError(
                f"acquire{keys!r:.80} needs at least one key and a running request. Outside a request,"
                " use locks.locks.hold(...)."
            )
        wanted = LockSpec.of([lambda: keys], options, guard)
        return acquire_one(wanted, in_order(keys), _installed().database)

    def _begin(self, installed: _Installed) -> None:
        """Do, before the first request, what cannot be done yet when the extension is installed."""
        if installed.has_begun:
            return
        if getpid() != process.pid:
            enter_child()
        with (
            installed.beginning.lock
        ):  # Sessions must not be in use while listeners are added to them.
            if not installed.has_begun:
                _refuse_late_settings(installed)
                refuse_unlocked(installed.app, installed.views)
                installed.database.watch()
                installed.has_begun = True


@dataclass
class _Installed:
    """What an application has."""

    app: Flask
    locks: Locks
    database: Database
    settings: Mapping[str, Any]
    """Our settings in its ``config`` when the extension was installed, which are those that count."""
    views: Sequence[Callable[..., Any]]
    """What ``lock`` has decorated."""
    has_begun: bool = False
    beginning: Mutex = field(default_factory=Mutex)


def _refuse_late_settings(installed: _Installed) -> None:
    """Raise ``ConfigurationError`` for settings that came after the extension, which has not read them.

    Such a ``WEBLOCK_URL`` would leave each machine with locks of its own.
    """
    now = settings_in(installed.app.config)
    late = [name for name in now if name not in installed.settings]
    late += [name for name, read in installed.settings.items() if now.get(name) != read]
    if late:
        raise ConfigurationError(
            f"{', '.join(late)} changed in app.config after weblock was installed, and has no effect:"
            " set it before WebLock(app) or locks.init_app(app)"
        )


def _installed() -> _Installed:
    found = current_app.extensions.get(NAME)
    if not isinstance(found, _Installed):
        raise ConfigurationError(
            f"weblock is not installed in the application {current_app.name!r:.80}: call"
            " locks.init_app(app) where it is made"
        )
    return found


def locked_in(app: object, asked: Asked | None) -> Iterator[Locked | ConfigurationError]:
    """List the views that lock, and what is wrong; of a request, its view: see ``kit.listing``."""
    installed = app.extensions.get(NAME) if isinstance(app, Flask) else None
    if not isinstance(installed, _Installed):
        return
    app = installed.app
    installed.database.watch()
    rules = list(app.url_map.iter_rules())
    if asked:
        with app.test_request_context(asked.path, method=asked.method):
            rules = [request.url_rule] if request.url_rule else []
    before = app.before_request_funcs.get(None, ())
    names = [name_of(each) for each in before if not isinstance(each, partial)]  # Ours is one.
    order = f"after {', '.join([*names, 'the decorators above @locks.lock'])}"
    try:
        for rule in rules:
            what = f"{', '.join(sorted(rule.methods or ()))} {rule.rule}"
            for lock in locks_of(app.view_functions[rule.endpoint]):
                guarded = installed.database.is_wanted(lock.guard)
                guard = DATABASE_GUARD if guarded else LEASE_GUARD
                yield Locked(what, lock.keys, lock.options, installed.locks, guard, order)
        _refuse_late_settings(installed)
        refuse_unlocked(app, installed.views)
    except ConfigurationError as error:
        yield error
