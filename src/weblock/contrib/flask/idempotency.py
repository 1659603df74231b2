"""``@locks.idempotent(caller=...)``: a view is executed once for each idempotency key."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from flask import Response, current_app, request

from ..._adapting import KeptTexts
from ..._options import HoldOptions
from ..._runtime.blocking import drive
from ...errors import ConfigurationError, LockTimeout
from ...keys import CheckedKey
from ...sync import Lease, Locks
from ..kit import Execution
from ..kit.idempotency import (
    Asked,
    IdempotencyOptions,
    IdempotencySpec,
    Replay,
    body_consumed,
    form_parts,
)
from ..kit.once import LONGEST, for_engine
from ..wsgi import RequestLocks, request_locks
from ..wsgi.request import Body
from .database import JOINED
from .views import ONCE, installed

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, repr=False)
class ViewSpec(IdempotencySpec):
    """A description of what a view executes once."""

    store: str = "database"
    """Where its answers are stored: ``"database"`` or ``"engine"``."""

    @classmethod
    def of_view(cls, caller: object, store: object, options: IdempotencyOptions) -> ViewSpec:
        """Return what a user has written. Raises ``ConfigurationError`` for what cannot work."""
        if store not in ("database", "engine"):
            raise ConfigurationError(f'store={store!r:.80} must be "database" or "engine"')
        if store == "database":
            return cls.written(caller, **options)
        more: dict[str, Any] = {"max_body": LONGEST, **options, "store": store}
        return for_engine(cls.written(caller, **more))

    def texts(self, locks: Locks) -> KeptTexts:
        """Return where the engine keeps the answers. Raises ``ConfigurationError`` if it keeps none."""
        return KeptTexts(locks, '@locks.idempotent(store="engine")')


def decorated_once(view: F, spec: ViewSpec) -> F:
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


def _execute(view: Callable[[], Any], spec: ViewSpec) -> Response:
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
    if spec.store == "engine":
        return _execute_and_keep(view, spec, asked, held)
    transaction = installed().database.one_transaction(spec, asked, held.locks)
    try:
        held.hold(spec.keys_of(asked), spec.options)
        found = transaction.begin()
    except LockTimeout as busy:
        # The other request may have been committed, and be sending its answer.
        found = transaction.find(busy)
    if found:
        raise Replay(found)
    request.environ[JOINED] = transaction
    try:
        response = current_app.make_response(view())
        streams = response.is_streamed or response.direct_passthrough
        body = None if streams else response.get_data()
        if answer := spec.answer_of(response.status_code, response.headers.items(), body):
            held.check_done()
            transaction.commit(answer)
    finally:
        transaction.roll_back()
    return response


def _execute_and_keep(
    view: Callable[[], Any], spec: ViewSpec, asked: Asked, held: RequestLocks
) -> Response:
    """Do the same as ``_execute``. The engine keeps the answer when the request has ended."""
    execution = Execution(spec.texts(held.locks), spec, asked, held, keeps_errors=True)

    async def acquire(keys: Sequence[CheckedKey], options: HoldOptions) -> Lease:
        return held.hold(keys, options)

    if found := drive(execution.begin(acquire)):
        raise Replay(found)
    response = current_app.make_response(view())
    streams = response.is_streamed or response.direct_passthrough
    execution.start(response.status_code, response.headers.items())
    execution.add(None if streams else response.get_data())
    execution.complete()
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
            return [body]
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
