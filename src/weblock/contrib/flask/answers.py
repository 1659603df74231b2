"""The responses to requests that cannot be served under their lock."""

from __future__ import annotations

from collections.abc import Iterable
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

from flask import Flask, Response

from ...errors import WeblockError
from ..kit.problems import answers
from ..wsgi import ClientGone, Rewrite
from ..wsgi.layer import Answer, respond_with


def answer_errors(app: Flask, rewrite: Rewrite | None) -> Answer:
    """Make ``app`` answer errors of weblock with problems, unless it has a handler of its own.

    Returns a function that answers an error that leaves the application: one that a teardown function
    raises, or a loss that was noticed after it.
    """
    responds = answers(lambda each: Response(each.body, each.status, each.fields), rewrite)
    answer_of = answers(respond_with, rewrite)

    def handle(error: Exception) -> Response:
        response = responds(error)
        if response is None:  # A mistake in the program is nothing to a client.
            raise error
        return response

    if WeblockError not in app.error_handler_spec[None][None]:
        app.register_error_handler(WeblockError, handle)
    app.register_error_handler(ClientGone, handle)

    def answer(error: BaseException) -> WSGIApplication | None:
        handlers = (
            handler
            for by_code in app.error_handler_spec.values()
            for by_kind in by_code.values()
            for kind, handler in by_kind.items()
            if isinstance(error, kind) and issubclass(kind, WeblockError)
        )
        response = answer_of(error)
        if response is None or all(each is handle for each in handlers):
            return response

        def handled(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
            with app.request_context(environ):
                own = app.make_response(app.handle_user_exception(error))  # type: ignore[arg-type]
                found: Iterable[bytes] = own(environ, start_response)
                return found

        return handled

    return answer
