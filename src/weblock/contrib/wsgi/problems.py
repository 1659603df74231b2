"""Problem details as responses of a WSGI application."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from http.client import responses
from typing import Final
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

from ...errors import WeblockError
from ..problems import Problem, problem_of
from .clients import ClientGone

Rewrite = Callable[[Problem, WeblockError], Problem]
"""Returns the problem to respond with, from weblock's problem and the error that caused it."""

CLIENT_GONE: Final = 499
"""What nginx's log has for a client that did not wait for its response; nobody reads the response."""


def answer_of(error: BaseException, rewrite: Rewrite | None = None) -> WSGIApplication | None:
    """Return the application that responds to an error; ``None`` for one that is not weblock's."""
    if isinstance(error, ClientGone):
        return _nothing
    problem = problem_of(error)
    if problem is None:
        return None
    if rewrite and isinstance(error, WeblockError):
        problem = rewrite(problem, error)
    return _Answer(problem)


class _Answer:
    """The response of a problem."""

    def __init__(self, problem: Problem) -> None:
        self._problem = problem

    def __call__(
        self, environ: WSGIEnvironment, start_response: StartResponse, /
    ) -> Iterable[bytes]:
        problem, body = self._problem, self._problem.body
        fields = {
            "Content-Type": problem.media_type,
            "Content-Length": str(len(body)),
            **problem.headers,
        }
        start_response(f"{problem.status:d} {_reason(problem.status)}", [*fields.items()])
        return [] if environ["REQUEST_METHOD"] == "HEAD" else [body]


def _nothing(_environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
    headers = [("Content-Type", "text/plain"), ("Content-Length", "0")]
    start_response(f"{CLIENT_GONE} Client Closed Request", headers)
    return []


def _reason(status: int) -> str:
    return responses.get(status, "Unknown")
