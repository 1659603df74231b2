"""The responses to requests that cannot be served under their lock."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

from flask import Flask, Response

from ...errors import WeblockError
from ..kit.problems import problem_of
from ..wsgi import ClientGone, Rewrite
from ..wsgi.layer import Answer
from ..wsgi.problems import CLIENT_GONE, answer_of


def answer_errors(app: Flask, rewrite: Rewrite | None) -> Answer:
    """Make ``app`` answer errors of weblock with problems, unless it has a handler of its own.

    Returns a function that answers an error that leaves the application: one that a teardown function
    raises, or a loss that was noticed after it.
    """

    def handle(error: WeblockError) -> Response:
        problem = problem_of(error, rewrite)
        if problem is None:  # A mistake in the program is nothing to a client.
            raise error
        body, status = problem.body, int(problem.status)
        return Response(body, status, problem.headers, content_type=problem.media_type)

    def gone(_error: ClientGone) -> Response:
        return Response(status=CLIENT_GONE)

    if WeblockError not in app.error_handler_spec[None][None]:
        app.register_error_handler(WeblockError, handle)
    app.register_error_handler(ClientGone, gone)

    def answer(error: BaseException) -> WSGIApplication | None:
        if problem_of(error) and any(each is not handle for each in _handlers_of(app, error)):
            return _Handled(app, error)
        return answer_of(error, rewrite)

    return answer


def _handlers_of(app: Flask, error: BaseException) -> Iterator[Callable[..., Any]]:
    """Yield the handlers for this error of weblock that the application or a blueprint has."""
    for by_code in app.error_handler_spec.values():
        for handlers in by_code.values():
            for kind, handler in handlers.items():
                if isinstance(error, kind) and issubclass(kind, WeblockError):
                    yield handler


class _Handled:
    """The response of an error handler to an error that left the application."""

    def __init__(self, app: Flask, error: Any) -> None:
        self._app = app
        self._error = error

    def __call__(
        self, environ: WSGIEnvironment, start_response: StartResponse, /
    ) -> Iterable[bytes]:
        app = self._app
        with app.request_context(environ):
            response = app.make_response(app.handle_user_exception(self._error))
            found: Iterable[bytes] = response(environ, start_response)
            return found
