"""The responses to requests that cannot be served under their lock, in the form that each client reads."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from http import HTTPStatus
from typing import Any, Final

from asgiref.sync import sync_to_async
from django.conf import settings as django_settings
from django.http import HttpRequest, HttpResponse
from django.template.exceptions import TemplateDoesNotExist
from django.template.loader import select_template
from django.utils.cache import patch_vary_headers

from ...errors import LockTimeout, WeblockError
from ..kit.problems import Problem, Rewrite, problem_of
from . import settings
from .ninja import api_with_handler
from .view_lock import DEFAULT, BusyView, ViewLock, acall, call

_FORMS: Final = (Problem.media_type, "application/json", "text/html")

Form = Callable[[HttpRequest, Problem, WeblockError], HttpResponse]
"""Makes a response from a problem."""


def answer(
    request: HttpRequest, error: BaseException | None, lock: ViewLock | None = None
) -> HttpResponse | None:
    """Return the response to an error of weblock; ``None`` for an error that no client should see.

    A locked view of Django REST framework answers in the way of its other errors, and so does an
    operation of django-ninja whose API has a handler for errors of weblock; a browser gets a page; and
    others get problem details. ``lock`` is the lock that the error is about: the settings of its alias
    apply, or those of ``default`` if it is ``None``.
    """
    if not isinstance(error, WeblockError) or not (problem := _problem(error, lock)):
        return None
    return _form_for(request, error)(request, problem, error)


async def aanswer(
    request: HttpRequest, error: BaseException | None, lock: ViewLock | None = None
) -> HttpResponse | None:
    """Return the response from a task: what may use the database runs in the request's thread."""
    if not isinstance(error, WeblockError) or not (problem := _problem(error, lock)):
        return None
    form = _form_for(request, error)
    if form is _details:
        return form(request, problem, error)
    response: HttpResponse = await sync_to_async(form)(request, problem, error)
    return response


def answer_for(
    lock: ViewLock | None, request: HttpRequest, error: Exception
) -> HttpResponse | None:
    """Return the response; for a busy key, what the lock's ``busy_view`` returns."""
    view = _busy_view(lock, error)
    response: HttpResponse | None = call(view, request, error) if view else None
    return answer(request, error, lock) if response is None else response


async def aanswer_for(
    lock: ViewLock | None, request: HttpRequest, error: Exception
) -> HttpResponse | None:
    """Return what ``answer_for`` returns, from a task."""
    view = _busy_view(lock, error)
    response: HttpResponse | None = await acall(view, request, error) if view else None
    return await aanswer(request, error, lock) if response is None else response


def _busy_view(lock: ViewLock | None, error: Exception) -> BusyView | None:
    if not isinstance(error, LockTimeout):
        return None
    own = lock.busy_view if lock else None
    found: BusyView | None = own or settings.busy_view_of(_alias_of(lock))
    return found


def _problem(error: WeblockError, lock: ViewLock | None) -> Problem | None:
    def rewrite(problem: Problem, error: WeblockError) -> Problem:
        own: Rewrite | None = settings.rewrite_of(_alias_of(lock))
        return own(problem, error) if own else problem

    return problem_of(error, rewrite, debug=django_settings.DEBUG)


def _alias_of(lock: ViewLock | None) -> str:
    return lock.alias if lock else DEFAULT


def _form_for(request: HttpRequest, error: WeblockError) -> Form:
    match = request.resolver_match
    if match and _rest_class(match.func):
        return _of_rest
    if api := api_with_handler(error):
        return partial(_of_ninja, api)
    return _page if request.get_preferred_type(_FORMS) == "text/html" else _details


def _details(_request: HttpRequest, problem: Problem, _error: WeblockError) -> HttpResponse:
    """Return problem details (RFC 9457)."""
    response = HttpResponse(
        problem.body,
        status=problem.status,
        content_type=problem.media_type,
        headers=problem.headers,
    )
    patch_vary_headers(response, ["Accept"])
    return response


def _page(request: HttpRequest, problem: Problem, error: WeblockError) -> HttpResponse:
    """Return the project's template for the status, such as ``weblock/409.html``, or our page."""
    try:
        template = select_template([f"weblock/{problem.status:d}.html", "weblock/problem.html"])
    except TemplateDoesNotExist:
        # weblock is not in INSTALLED_APPS, or templates are not read there.
        return _details(request, problem, error)
    retry_after = problem.headers.get("Retry-After")
    context = {"problem": problem, "error": error, "retry_after": retry_after}
    page = template.render(context, request)
    response = HttpResponse(page, status=problem.status, headers=problem.headers)
    patch_vary_headers(response, ["Accept"])
    return response


def _with_headers(response: HttpResponse, problem: Problem) -> HttpResponse:
    for name, value in problem.headers.items():
        response.setdefault(name, value)
    return response


def _of_ninja(
    api: Any, request: HttpRequest, problem: Problem, error: WeblockError
) -> HttpResponse:
    """Return what the API's handler returns; problem details, if it would report success."""
    response: HttpResponse = api.on_exception(request, error)
    if response.status_code < HTTPStatus.BAD_REQUEST:
        return _details(request, problem, error)
    return _with_headers(response, problem)


def _rest_class(view: Any) -> Any:
    """Return the class of a view of Django REST framework."""
    cls = getattr(view, "cls", None)
    return cls if hasattr(cls, "handle_exception") and hasattr(cls, "finalize_response") else None


def _of_rest(request: HttpRequest, problem: Problem, error: WeblockError) -> HttpResponse:
    """Return the response of the view's exception handler, in the format that the client accepts.

    Return problem details if the handler does not handle the error, or would report success: no
    work was done.
    """
    view = _rest_view(request)
    refusal = _rest_exception(problem, error)
    try:
        response = view.handle_exception(refusal)
    except type(refusal) as raised:
        if raised is not refusal:
            raise
        return _details(request, problem, error)
    if response.status_code < HTTPStatus.BAD_REQUEST:
        return _details(request, problem, error)
    response = _with_headers(view.finalize_response(view.request, response), problem)
    made: HttpResponse = response.render() if hasattr(response, "render") else response
    return made


def _rest_exception(problem: Problem, error: WeblockError) -> Exception:
    """Return an exception for handlers of REST framework, caused by the error of weblock."""
    from rest_framework.exceptions import (  # Only projects that use it have it.
        APIException,
        ErrorDetail,
    )

    members = {
        "detail": problem.detail,
        "code": problem.code,
        "title": problem.title,
        **problem.more,
    }
    refusal = APIException(problem.detail, problem.code)
    refusal.status_code = int(problem.status)
    refusal.detail = {
        name: ErrorDetail(str(value), problem.code) for name, value in members.items()
    }
    refusal.__cause__ = error
    found: Exception = refusal
    return found


def _rest_view(request: HttpRequest) -> Any:
    """Return the view, prepared to render a response, without running it."""
    from rest_framework.exceptions import APIException  # As above.

    match = request.resolver_match
    assert match
    made: Any = match.func
    view = made.cls(**getattr(made, "initkwargs", {}))
    if actions := getattr(made, "actions", None):
        view.action_map = actions
    view.setup(request, *match.args, **match.kwargs)
    view.request = view.initialize_request(request, *match.args, **match.kwargs)
    view.headers = view.default_response_headers
    # Of its initial(), what renderers and serializers need; not authentication, which may refuse.
    view.format_kwarg = view.get_format_suffix(**match.kwargs)
    with suppress(APIException):
        version, scheme = view.determine_version(view.request, *match.args, **match.kwargs)
        view.request.version, view.request.versioning_scheme = version, scheme
    return view
