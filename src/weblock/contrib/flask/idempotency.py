"""``@locks.idempotent(caller=...)``: a view is executed once for each idempotency key."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from flask import Response, current_app, request

from ..._runtime.blocking import drive
from ...errors import LockTimeout
from ..kit import Execution
from ..kit.idempotency import IdempotencySpec, Replay, body_consumed, form_parts
from ..wsgi import request_locks
from ..wsgi.request import Body
from .database import JOINED
from .views import ONCE, installed

if TYPE_CHECKING:
    from ..sqlalchemy.idempotency import OneTransaction

F = TypeVar("F", bound=Callable[..., Any])


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
