"""The responses of views of Django REST framework that did not get their lock.

Nothing here is imported unless a project has such views.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.urls import ResolverMatch
from rest_framework.exceptions import APIException, ErrorDetail

from ...errors import WeblockError
from ..problems import Problem


class Refused(APIException):
    """A request that is not served, for want of its lock.

    ``__cause__`` is the error of weblock. ``detail`` has the members of the problem as any handler of
    exceptions expects them, with the problem's ``code``.
    """

    def __init__(self, problem: Problem, error: WeblockError) -> None:
        super().__init__(problem.detail, problem.code)
        self.status_code = int(problem.status)
        members = {
            "detail": problem.detail,
            "code": problem.code,
            "title": problem.title,
            **problem.more,
        }
        self.detail = {
            name: ErrorDetail(str(value), problem.code) for name, value in members.items()
        }
        self.__cause__ = error


def refused(
    match: ResolverMatch, request: HttpRequest, problem: Problem, error: WeblockError
) -> HttpResponse | None:
    """What the view answers where it raises ``Refused``.

    ``None`` if its exception handler lets that pass, or makes a success of it: no work was done.
    """
    view = _view_of(match, request)
    refusal = Refused(problem, error)
    try:
        response = view.handle_exception(refusal)
    except Refused:
        return None
    if response.status_code < HTTPStatus.BAD_REQUEST:
        return None
    response = view.finalize_response(view.request, response)
    for name, value in problem.headers.items():
        response.setdefault(name, value)
    made: HttpResponse = response.render() if hasattr(response, "render") else response
    return made


def _view_of(match: ResolverMatch, request: HttpRequest) -> Any:
    """The view as it would serve the request, without that anything of it has run."""
    made: Any = match.func
    view = made.cls(**getattr(made, "initkwargs", {}))
    if actions := getattr(made, "actions", None):
        view.action_map = actions
    view.setup(request, *match.args, **match.kwargs)
    view.request = view.initialize_request(request, *match.args, **match.kwargs)
    view.headers = view.default_response_headers
    return view
