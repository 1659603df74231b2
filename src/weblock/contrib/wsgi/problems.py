"""Problem details as responses of a WSGI application."""

from __future__ import annotations

from collections.abc import Iterable
from http.client import responses
from typing import Final
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

from ..kit.problems import Problem, Rewrite, problem_of
from .clients import ClientGone

CLIENT_GONE: Final = 499
"""What nginx's log has for a client that did not wait for its response; nobody reads the response."""


def answer_of(error: BaseException, rewrite: Rewrite | None = None) -> WSGIApplication | None:
    """Return the application that responds to an error; ``None`` for one that is not weblock's."""
    if isinstance(error, ClientGone):
        return _nothing
    problem = problem_of(error, rewrite)
    return _Answer(problem) if problem else None


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
