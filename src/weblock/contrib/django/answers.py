"""The responses to requests that cannot be served under their lock."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse

from ...errors import LockTimeout
from ..problems import problem_of
from . import settings
from .description import Lock, OnBusy, acall, call


def answer(error: Exception) -> HttpResponse | None:
    """Problem details, for an error of weblock that is something to a client; else ``None``."""
    problem = problem_of(error)
    if problem is None:
        return None
    return HttpResponse(
        problem.body,
        status=problem.status,
        content_type=problem.media_type,
        headers=problem.headers,
    )


def answer_for(lock: Lock | None, request: HttpRequest, error: Exception) -> HttpResponse | None:
    """The same, or what the project has said is to be answered when this lock is busy."""
    function = _on_busy(lock, error)
    response: HttpResponse | None = call(function, request, error) if function else None
    return answer(error) if response is None else response


async def aanswer_for(
    lock: Lock | None, request: HttpRequest, error: Exception
) -> HttpResponse | None:
    """The same, for a task."""
    function = _on_busy(lock, error)
    response: HttpResponse | None = await acall(function, request, error) if function else None
    return answer(error) if response is None else response


def _on_busy(lock: Lock | None, error: Exception) -> OnBusy | None:
    if lock is None or not isinstance(error, LockTimeout):
        return None
    found: OnBusy | None = lock.on_busy or settings.of_alias(lock.alias).on_busy
    return found
