"""``@locks.lock("item:{item_id}")`` and ``@locks.idempotent(caller=...)``: how a view is called that they decorate."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeVar

from flask import Flask, Response, current_app, request

from ..._platform.forks import Mutex
from ..._runtime.runtimes import drive
from ...errors import ConfigurationError, LockTimeout
from ...keys import CheckedKey, signature_of
from ...sync import Lease, Locks
from ..kit import Execution, LockSpec, lacking, name_of, request_values, required_by, wanted_by
from ..kit.idempotency import (
    BodyDigest,
    IdempotencySpec,
    Replay,
    body_consumed,
    form_parts,
    refuse_safe,
)
from ..wsgi import request_locks
from ..wsgi.request import Body, headers_of, query_of
from .database import JOINED, Database

if TYPE_CHECKING:
    from ..sqlalchemy.idempotency import OneTransaction

F = TypeVar("F", bound=Callable[..., Any])

PREFIX: Final = "WEBLOCK_"
"""How our settings begin in ``app.config``."""

NAME: Final = "weblock"
"""Under which Flask keeps the extension."""

LEASE_KEY: Final = "weblock.lease"
"""Where in ``environ`` the lease of the view is."""

_MARK: Final = "weblock_locks"

ONCE: Final = "weblock_once"
"""The attribute of a view that is executed once for each idempotency key: its ``IdempotencySpec``."""

GIVEN: Final = "weblock_keys"
"""The attribute of a decorator that has not got its view yet: what it was given for keys."""


@dataclass
class Installed:
    """What an application has of weblock."""

    app: Flask
    locks: Locks
    database: Database
    settings: Mapping[str, Any]
    """Our settings in its ``config`` when the extension was installed, which are those that count."""
    views: list[Callable[..., Any]]
    """What ``lock`` has decorated."""
    has_begun: bool = False
    beginning: Mutex = field(default_factory=Mutex)


def installed() -> Installed:
    """Return what the current application has. Raises ``ConfigurationError`` if that is nothing."""
    found = current_app.extensions.get(NAME)
    if not isinstance(found, Installed):
        raise ConfigurationError(
            f"weblock is not installed in the application {current_app.name!r:.80}: call"
            " locks.init_app(app) where it is made",
            code="installation",
        )
    return found


def decorated(view: F, lock: LockSpec) -> F:
    """Return a view that runs under a lock."""
    if isinstance(view, type):
        raise TypeError(
            f"@locks.lock decorates functions: in the class {view.__qualname__}, write"
            " decorators = [locks.lock(...)], or decorate its methods"
        )
    if not callable(view):
        raise TypeError('@locks.lock needs a key: write @locks.lock("create_item")')
    # Those of decorators below are acquired along with it, in one order.
    together: tuple[LockSpec, ...] = (lock, *getattr(view, _MARK, ()))
    parameters = signature_of(view).parameters.values()
    defaults = {each.name: each.default for each in parameters if each.default is not each.empty}

    @functools.wraps(view)
    def held(*args: Any, **kwargs: Any) -> Any:
        wanted = [each for each in together if not each.methods or request.method in each.methods]
        if lock in wanted:  # Else those of decorators below lock by themselves.
            values = {**defaults, **(request.view_args or {}), **kwargs}
            query, headers = query_of(request.environ), headers_of(request.environ)
            values_for = functools.partial(
                request_values, path=values, query=query, headers=headers, of_view=True
            )
            keys = {
                each: each.made_of(
                    values_for,
                    lambda function: current_app.ensure_sync(function)(
                        **wanted_by(function, values)
                    ),
                )
                for each in wanted
            }
            request.environ[LEASE_KEY] = acquire(keys)
        return current_app.ensure_sync(view)(*args, **kwargs)

    setattr(held, _MARK, together)
    return held  # type: ignore[return-value]


def acquire(wanted: Mapping[LockSpec, tuple[CheckedKey, ...]]) -> Lease | None:
    """Acquire what the request does not hold yet of these locks; return the lease of the first, if it has keys.

    All keys are acquired in one order: requests that lock the same keys by several decorators would
    otherwise wait for one another.
    """
    database, held = installed().database, request_locks(request.environ)
    guarded = [lock for lock, keys in wanted.items() if keys and database.guards(lock.guard)]
    each_of = [(lock, held.locks, keys) for lock, keys in wanted.items()]
    lease = None
    for lock, _, keys in held.book.in_turn(each_of) if len(each_of) > 1 else each_of:
        if not keys:
            break
        if held.book.missing(held.locks, keys):
            database.end_reading()
        lease = held.hold(keys, lock.options)
    for lock in guarded:
        database.guard(held.lease_of(held.locks, wanted[lock]))
    if len(each_of) > 1:
        first = each_of[0][2]
        lease = held.lease_of(held.locks, first) if first else None
        held.book.check()  # Some may have been lost while we waited for others.
    return lease


def lease_of() -> Lease:
    """Return the lease of the decorator that stands nearest to the running view.

    Raises ``ConfigurationError`` where no lock is held, also because its key function returned ``None``.
    """
    lease = request.environ.get(LEASE_KEY)
    if not isinstance(lease, Lease):
        raise ConfigurationError(
            f"the request to {request.path!r:.100} holds no lock: put @locks.lock on its view",
            code="no_lease",
        )
    return lease


def locks_of(view: Any, method: str | None = None) -> tuple[LockSpec, ...]:
    """Return the locks of a view, and of the methods of its class: of that of one HTTP method, if it is given."""
    cls = getattr(view, "view_class", None)
    names = (getattr(cls, "methods", None) or ()) if method is None else (method,)
    if method == "HEAD" and not hasattr(cls, "head"):
        names = ("GET",)
    methods = [getattr(cls, name.lower(), None) for name in names]
    found = dict.fromkeys(lock for each in (view, *methods) for lock in getattr(each, _MARK, ()))
    return tuple(each for each in found if not (each.methods and method) or method in each.methods)


def faults_of(installed: Installed) -> Iterator[ConfigurationError]:
    """Return what is wrong with an application: its settings, and each of its views that lock.

    - A setting that came after the extension, which has not read it: such a ``WEBLOCK_URL`` would leave each
      machine with locks of its own.
    - A locked view of which Flask calls the unlocked function inside it. That happens where ``@locks.lock`` stands
      above ``@app.route``, which returns the function as it is. A view below ``@locks.lock`` without a key is noticed
      only here: until then, it could be a function that makes one.
    - A view that is to be executed once, and serves GET, or whose answers the engine cannot store.
    - A key that no request can fill in.
    """
    app, read = installed.app, installed.settings
    now, missing = app.config.get_namespace(PREFIX), object()
    late = [name for name in {**now, **read} if now.get(name, missing) != read.get(name, missing)]
    if late:
        yield ConfigurationError(
            f"{', '.join(PREFIX + name.upper() for name in late)} changed in app.config after weblock was"
            " installed, and has no effect: set it before WebLock(app) or locks.init_app(app)",
            code="installation",
        )
    known = [*app.view_functions.values()]
    for view in known:
        if keys := getattr(view, GIVEN, None):
            yield ConfigurationError(
                f"@locks.lock was given the view {keys[0]!r:.80} instead of a key: write"
                ' @locks.lock("create_item")'
            )
    called = {each for view in known for each in _layers(view)}
    for view in installed.views:
        # Decorators may stand between the route and the function: any layer may be what Flask calls.
        if view not in called and any(layer in known for layer in _layers(view)):
            ours = "@locks.idempotent" if hasattr(view, ONCE) else "@locks.lock"
            yield ConfigurationError(
                f"{view.__qualname__} is served without its lock: put {ours} below the"
                " decorator of its route, next to the function. If this route needs no lock, put"
                f" {ours} on another function, which calls this one",
                code="not_locked",
            )
    locked = {each for each in installed.views if hasattr(each, _MARK)}  # Others run once.
    for rule in app.url_map.iter_rules():
        served = app.view_functions.get(rule.endpoint)
        if spec := getattr(served, ONCE, None):
            try:  # Flask adds HEAD and OPTIONS by itself.
                refuse_safe((rule.methods or set()) - {"HEAD", "OPTIONS"}, f"the route {rule.rule}")
                if spec.store == "engine":
                    spec.texts(installed.locks)
            except ConfigurationError as error:
                yield error
        cls = getattr(served, "view_class", None)
        methods = [getattr(cls, name.lower(), None) for name in rule.methods or ()]
        for held in locked.intersection(
            each for one in (served, *methods) for each in _layers(one)
        ):
            yield from _unfillable(rule, held, installed)


def _unfillable(rule: Any, held: Any, installed: Installed) -> Iterator[ConfigurationError]:
    """Return what a locked view needs for its key that no request for a route has.

    A view gets parts of its URL, and what decorators around it add; all are its parameters, unless it takes any.
    A preprocessor of URLs may add what a decorator takes away.
    """
    own = held.__wrapped__
    parameters = signature_of(own).parameters
    takes_any = any(each.kind is each.VAR_KEYWORD for each in parameters.values())
    if takes_any or hasattr(own, "__wrapped__") or installed.app.url_value_preprocessors:
        return
    there = {*rule.arguments, *(rule.defaults or ()), *parameters}
    lock: LockSpec = getattr(held, _MARK)[0]
    sources = [each for one in lock.templates for each in one.sources.values()]
    wanted = [(repr(lock), each.name) for each in sources if each.kind == "path"]
    for function in lock.functions:
        wanted += [(f"key function {name_of(function)}", name) for name in required_by(function)]
    for what, name in wanted:
        if name not in there:
            yield lacking(f"{rule.rule}: {what}", "view's argument", name, sorted(there))


def _layers(view: Any) -> Iterator[object]:
    """Yield a view, and what it wraps by ``functools.wraps``."""
    while view is not None:
        yield view
        view = getattr(view, "__wrapped__", None)


def decorated_once(view: F, spec: IdempotencySpec) -> F:
    """Return a view that is executed once."""
    if isinstance(view, type) or not callable(view):
        raise TypeError(
            "@locks.idempotent(caller=...) decorates functions, and methods of a MethodView"
        )

    @functools.wraps(view)
    def once(*args: Any, **kwargs: Any) -> Response:
        try:
            return _execute(lambda: current_app.ensure_sync(view)(*args, **kwargs), spec)
        except Replay as replay:
            status, headers, body = replay.answer
            return Response(body, status, list(headers))

    setattr(once, ONCE, spec)
    return once  # type: ignore[return-value]


def _execute(view: Callable[[], Any], spec: IdempotencySpec) -> Response:
    """Return the response of a view that was executed now. Raises ``Replay`` if it was before."""
    caller = current_app.ensure_sync(spec.caller)() if callable(spec.caller) else None
    asked = spec.asked(
        caller=caller,
        method=request.method,
        path=request.script_root + request.path,
        sent=request.headers.getlist(spec.header),
        parts=[request.query_string, *_parts_of_body()],
    )
    held = request_locks(request.environ)
    once: Execution | OneTransaction
    if spec.store == "engine":
        once = Execution(spec.texts(held.locks), spec, asked, held, keeps_errors=True)
    else:
        once = request.environ[JOINED] = installed().database.one_transaction(spec, asked, held)
    lease = busy = None
    try:
        try:
            lease = held.hold(spec.keys_of(asked), spec.options)
        except LockTimeout as error:
            busy = error
        if found := drive(once.begin(lease, busy)):
            raise Replay(found)
        response = current_app.make_response(view())
        streams = response.is_streamed or response.direct_passthrough
        body = None if streams else response.get_data()
        once.note(response.status_code, response.headers.items(), body)
    except BaseException:
        once.roll_back()
        raise
    return response


def _parts_of_body() -> list[bytes]:
    """Return the body of the request; of a form its parts, whatever separates them.

    Raises ``ConfigurationError`` if the application has read some of it as a stream.
    """
    source = request.environ["wsgi.input"]
    before = source.taken if isinstance(source, Body) else 0
    size = request.content_length
    if request.mimetype != "multipart/form-data" or not (size or isinstance(source, Body)):
        body = request.get_data()
        expected = source.taken if size is None and isinstance(source, Body) else size
        if len(body) == expected or expected is None:
            whole = BodyDigest(request.content_type or "")
            whole.add(body)
            return [whole.digest()]
    # The form may have been parsed before.
    fields, files = request.form.items(multi=True), request.files.items(multi=True)
    uploads = [(name, file.filename, file.mimetype, file) for name, file in files]
    taken = source.taken if isinstance(source, Body) else 0
    if before in (0, taken):
        size = taken if size is None else size
        parts = form_parts(request.content_type or "", size, fields, uploads)
        if parts is not None:
            return parts
    raise body_consumed("request.get_data() instead of request.stream")
