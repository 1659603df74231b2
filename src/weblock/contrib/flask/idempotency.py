"""``@locks.idempotent(caller=...)``: a view is executed once for each idempotency key."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from flask import Response, current_app, request

from ...errors import ConfigurationError, LockTimeout
from ..kit.idempotency import Answer, IdempotencySpec, Replay
from ..wsgi import request_locks
from .database import JOINED
from .views import ONCE, installed

F = TypeVar("F", bound=Callable[..., Any])


def decorated_once(view: F, spec: IdempotencySpec) -> F:
    """Return a view that is executed once, with its answer in the transaction of ``db.session``."""
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
    transaction = installed().database.one_transaction(spec, asked)
    try:
        held.hold(spec.keys_of(asked), spec.options)
        found = transaction.begin()
    except LockTimeout:
        # The other request may have been committed, and be sending its answer.
        if not (found := transaction.find()):
            raise
    if found:
        raise Replay(found)
    request.environ[JOINED] = transaction
    try:
        response = current_app.make_response(view())
        if spec.is_stored(response.status_code):
            streams = response.is_streamed or response.direct_passthrough
            spec.refuse_long(0 if streams else len(response.get_data()), streams=streams)
            held.check_done()
            headers = list(response.headers)
            transaction.commit(Answer.of(response.status_code, headers, response.get_data()))
    finally:
        transaction.roll_back()
    return response


def _parts_of_body() -> Iterator[bytes]:
    """Yield the body of the request; of a form its parts, whatever separates them."""
    is_multipart = request.mimetype == "multipart/form-data"
    body = b"" if is_multipart else request.get_data()
    is_short = len(body) != (request.content_length or len(body))
    if is_short and (body or not (request.form or request.files)):
        raise ConfigurationError(
            "idempotent() cannot tell two requests apart, because something has read their body as a"
            " stream before, or it is a form without fields: use request.get_data() instead of request.stream"
        )
    if body or not (is_multipart or request.form):  # The form may have been parsed before.
        yield body
        return
    for name, value in request.form.items(multi=True):
        yield from (name.encode(), b"", value.encode())
    for name, file in request.files.items(multi=True):
        file.seek(0)  # A function before the request may have read it.
        content = hashlib.sha256()
        while chunk := file.read(64 * 1024):
            content.update(chunk)
        file.seek(0)
        yield from (name.encode(), f"{file.filename} {file.mimetype}".encode(), content.digest())
