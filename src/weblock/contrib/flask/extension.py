"""``WebLock``: the locks of a Flask application."""

from __future__ import annotations

import getpass
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Literal, TypeVar, Unpack
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

import click
from flask import Flask, Response, has_request_context, request

from ... import operating
from ..._options import Duration, HoldOptions, LocksOptions, seconds
from ..._platform.forks import enter_child, getpid, process
from ...errors import ConfigurationError, WeblockError
from ...keys import in_order
from ...sync import Lease, Locks
from ..kit import (
    BODY_WAIT,
    Asked,
    KeyFunction,
    Locked,
    LockSpec,
    answers,
    configured,
    methods_of,
    name_of,
    opened,
    refuse_other_application,
)
from ..kit.guarding import DATABASE_GUARD, LEASE_GUARD, GuardKind, refuse_guard
from ..kit.idempotency import IdempotencyOptions, IdempotencySpec
from ..kit.sql import LOCK_WAIT
from ..wsgi import RequestLayer, Rewrite
from ..wsgi.layer import Respond, respond_with
from .database import Database
from .views import (
    GIVEN,
    NAME,
    PREFIX,
    Installed,
    acquire,
    decorated,
    decorated_once,
    faults_of,
    installed,
    locks_of,
)

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

    Args:
        app: The application.
        locks: A ``Locks``, or an engine's URL and the options of ``LocksOptions``; ``file://`` by default.
        rewrite: ``rewrite(problem, error)`` returns the problem with another status, body or
            headers.
        body_wait: For how many seconds (5), at most, a request that locks waits for the end of its body,
            or for each 64 KiB of it. ``None`` sets no limit, and reads nothing before the lock is acquired.

    Raises:
        ConfigurationError: A setting or an option cannot work.
    """

    def __init__(
        self,
        app: Flask | None = None,
        locks: Locks | str | Sequence[str] = "file://",
        *,
        rewrite: Rewrite | None = None,
        body_wait: Duration | None = BODY_WAIT,
        **options: Unpack[LocksOptions],
    ) -> None:
        self._given = locks, options, rewrite, body_wait
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
                f"weblock is already installed in the application {app.name!r:.80}: install it once",
                code="installation",
            )
        if "WEBLOCK" in app.config:  # As in Django's settings; it would be ignored.
            raise ConfigurationError(
                "WEBLOCK in app.config is not a setting: each setting has its own name, such as"
                ' WEBLOCK_URL = "redis://..."'
            )
        settings, given = app.config.get_namespace(PREFIX), self._given
        locks, options, rewrite, body_wait = given
        locks, options = configured(
            locks,
            options,
            settings,
            spell=lambda name: PREFIX + name.upper(),
            others=("rewrite", "guard", "guard_wait", "body_wait"),
        )
        guard: GuardKind = settings.get("guard", LEASE_GUARD)
        refuse_guard(guard, {})
        wait = seconds("WEBLOCK_GUARD_WAIT", settings.get("guard_wait", LOCK_WAIT), least=0.001)
        answer = _answers(app, settings.get("rewrite", rewrite))
        locks, _ = opened(Locks, locks, options)
        database = Database(app, guard, wait)
        found = Installed(app, locks, database, settings, self._views)
        app.extensions[NAME] = found
        app.before_request(partial(_begin, found))
        layered: Any = app  # Flask documents the assignment, which no type checker takes.
        layered.wsgi_app = RequestLayer(
            database.around(app.wsgi_app),
            locks,
            body_wait=settings.get("body_wait", body_wait),
            answer=answer,
        )
        app.cli.add_command(commands(locks))

    @property
    def locks(self) -> Locks:
        """The locks of the current application, for work outside of a request.

        Raises ``RuntimeError`` outside of an application's context.
        """
        return installed().locks

    def lock(
        self,
        *keys: str | KeyFunction,
        guard: GuardKind | None = None,
        methods: Iterable[str] | None = None,
        **options: Unpack[HoldOptions],
    ) -> Callable[[F], F]:
        """Decorate a view so that it runs under a lock: ``@locks.lock("item:{item_id}")``.

        It stands below the decorator of the route, on functions and methods of a ``MethodView``, plain
        or async, or in the ``decorators`` of a class. ``lease_of()`` returns the lease.

        Args:
            *keys: Templates, into which the arguments of the view are filled, and ``{query.name}``,
                ``{header.name}`` and ``{cookie.name}``; or functions that return a key or several, or ``None`` to lock nothing. A
                function is called with those arguments of the view that it names. Several keys are held
                together, all or none.
            guard: ``"database"``: the database refuses the commits of ``db.session`` once another holder
                has followed. ``"lease"``: only the lease is checked. By default, as ``WEBLOCK_GUARD``
                says. A key that several locks of a request name is guarded if one of them says so.
            methods: Requests by other methods lock nothing; ``GET`` includes ``HEAD``. All by default.
            **options: Override those of the application: see ``HoldOptions``.

        Raises:
            ConfigurationError: A key template or an option cannot work.
        """
        wanted = LockSpec.of(keys, options, guard, methods=methods_of(methods))

        def decorate(view: F) -> F:
            found = decorated(view, wanted)
            self._views.append(found)
            return found

        setattr(decorate, GIVEN, keys)
        return decorate

    def idempotent(
        self,
        *,
        caller: Callable[[], Any] | str,
        store: Literal["database", "engine"] = "database",
        **options: Unpack[IdempotencyOptions],
    ) -> Callable[[F], F]:
        """Decorate a view so that each request is executed once: ``@locks.idempotent(caller=user_id)``.

        A request that is sent again with the same ``Idempotency-Key`` gets the stored answer to the first
        one, marked ``Idempotency-Replayed: true``. The answer is stored in the transaction of Flask-SQLAlchemy's
        ``db.session``: weblock commits both when the view has returned, and what the view commits is a
        savepoint. An exception that leaves the view, and a response with 409, 429 or from 500 on, roll
        everything back. The decorator stands below the decorator of the route.

        Args:
            caller: A function that returns the id of the user who sends the request: a string, an int or a
                UUID. ``"anonymous"`` if all clients share their keys, and may read the answers of one another.
            store: ``"engine"`` stores the answer in the engine of the locks, for work in another kind of
                database. It is stored when the work was committed, so that **a request is executed again if
                its worker dies in between**. A response of more than ``max_body`` bytes (64 KiB) is sent, and not stored.
            **options: ``wait``, ``keep``, ``max_answers`` and ``max_body``: see
                ``IdempotencyOptions``.

        Raises:
            ConfigurationError: An option cannot work.
        """
        spec = IdempotencySpec.written(caller, store=store, **options)  # type: ignore[call-arg]

        def decorate(view: F) -> F:
            found = decorated_once(view, spec)
            self._views.append(found)
            return found

        return decorate

    def acquire(
        self, *keys: str, guard: GuardKind | None = None, **options: Unpack[HoldOptions]
    ) -> Lease:
        """Acquire keys for the running request, hold them until its work is done, and return the lease.

        For service functions that learn their key late. Rows that ``db.session`` has read are read
        again afterwards, and the request waits without a database connection. A key that the request
        holds is not acquired again. ``guard`` and ``options`` are those of ``lock``.

        Raises:
            ConfigurationError: No request is running, a key or an option is invalid, or ``db.session``
                has uncommitted writes.
            LockTimeout: The keys were not free within ``wait`` seconds.
            EngineUnavailable: The engine did not answer.
        """
        if not (keys and has_request_context()):
            raise ConfigurationError(
                f"acquire{keys!r:.80} needs at least one key and a running request. Outside a request,"
                " use locks.locks.hold(...).",
                code="installation",
            )
        lease = acquire({LockSpec.of([lambda: keys], options, guard): in_order(keys)})
        assert lease is not None
        return lease


def _answers(app: Flask, rewrite: Rewrite | None) -> Respond:
    """Make ``app`` answer errors of weblock with problems, unless it has a handler of its own.

    Returns a function that answers an error that leaves the application: one that a teardown function
    raises, or a loss that was noticed after it.
    """
    response_of = answers(lambda each: Response(each.body, each.status, each.fields), rewrite)
    answer_of = answers(respond_with, rewrite)

    def handle(error: Exception) -> Response:
        response = response_of(error)
        if response is None:  # A mistake in the program is nothing to a client.
            raise error
        return response

    if WeblockError not in app.error_handler_spec[None][None]:
        app.register_error_handler(WeblockError, handle)

    def answer(error: BaseException) -> WSGIApplication | None:
        handlers = (
            handler
            for by_code in app.error_handler_spec.values()
            for by_kind in by_code.values()
            for kind, handler in by_kind.items()
            if isinstance(error, kind) and issubclass(kind, WeblockError)
        )
        ours = answer_of(error)
        if ours is None or all(each is handle for each in handlers):
            return ours

        def handled(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
            with app.request_context(environ):
                own = app.make_response(app.handle_user_exception(error))  # type: ignore[arg-type]
                found: Iterable[bytes] = own(environ, start_response)
                return found

        return handled

    return answer


def _begin(found: Installed) -> None:
    """Do, before the first request, what cannot be done yet when the extension is installed."""
    if found.has_begun:
        return
    if getpid() != process.pid:
        enter_child()
    with found.beginning.lock:  # Sessions must not be in use while listeners are added to them.
        if not found.has_begun:
            for fault in faults_of(found):
                raise fault
            found.database.watch()
            found.has_begun = True


def locked_in(app: object, asked: Asked | None) -> Iterator[Locked | ConfigurationError]:
    """List the views that lock, and what is wrong; of a request, its view: see ``kit.application``."""
    found = app.extensions.get(NAME) if isinstance(app, Flask) else None
    if not isinstance(found, Installed):
        return
    app = found.app
    found.database.watch()
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
            view = app.view_functions.get(rule.endpoint)
            for lock in locks_of(view, asked.method if asked else None):
                guard = DATABASE_GUARD if found.database.guards(lock.guard) else LEASE_GUARD
                yield Locked(what, lock.keys, lock.said, found.locks, guard, order)
    except ConfigurationError as error:
        yield error
    yield from faults_of(found)


# Commands: ``flask weblock list``, ``show KEY``, ``release KEY``.


class _StillHeld(click.ClickException):
    exit_code = operating.STILL_HELD


class _Group(click.Group):
    """Reports the errors of weblock as click does."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except (WeblockError, operating.NotReleased) as error:
            still = isinstance(error, operating.NotReleased) and error.still_held
            raise (_StillHeld if still else click.ClickException)(str(error)) from error


def commands(locks: Locks) -> click.Group:
    """Return the commands of an application with these locks."""
    as_json = click.option("--json", "as_json", is_flag=True, help="Write JSON, for programs.")

    @click.group("weblock", cls=_Group)
    def group() -> None:
        """Show the holders and waiters of keys, and release keys by force."""

    @group.command("list")
    @click.argument("prefix", default="")
    @click.option(
        "--limit", default=operating.MOST, show_default=True, help="Maximum number of keys."
    )
    @as_json
    def listing(prefix: str, limit: int, *, as_json: bool) -> None:
        """List the keys that are held or waited for; with PREFIX, only keys that start with it."""
        infos = locks.list(prefix, limit=limit)
        click.echo(operating.listed(infos, as_json=as_json))
        if len(infos) == limit:
            click.echo(operating.more_than(limit), err=True)

    @group.command("show")
    @click.argument("key")
    @as_json
    def show(key: str, *, as_json: bool) -> None:
        """Show the holders of KEY, and its waiters in the order of the queue."""
        click.echo(operating.shown(key, locks.inspect(key), as_json=as_json))

    @group.command("release")
    @click.argument("key")
    @click.option("--force", is_flag=True, help="Do not ask for confirmation.")
    @click.option(
        "--gently", is_flag=True, help="Ask the holder to release it, and wait until it has."
    )
    @click.option("--timeout", default=operating.GENTLY, help="Seconds to wait with --gently.")
    def release(key: str, *, force: bool, gently: bool, timeout: float) -> None:
        """Release KEY by force, from a holder that hangs."""
        by, agrees = f"{getpass.getuser()} (flask)", None if force else _agrees
        wait = timeout if gently else None
        click.echo(operating.release(locks, key, by=by, agrees=agrees, gently=wait)[0])

    return group


def _agrees(question: str) -> bool:
    if not sys.stdin.isatty():
        raise operating.NotReleased(operating.NO_TERMINAL)
    click.echo(question)
    return click.confirm(operating.CONFIRM)
