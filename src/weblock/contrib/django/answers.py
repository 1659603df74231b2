"""The responses to requests that cannot be served under their lock, in the form that each client reads."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from http import HTTPStatus
from typing import Final

from django.conf import settings as django_settings
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse
from django.template.exceptions import TemplateDoesNotExist
from django.template.loader import select_template
from django.utils.cache import patch_vary_headers

from ...errors import LockTimeout, WeblockError
from ..kit import Problem, Rewrite, problem_of
from . import settings
from .view_lock import DEFAULT, Call, ViewLock, is_rest, rest_view

_FORMS: Final = (Problem.media_type, "application/json", "text/html")


def answer(
    request: HttpRequest, error: BaseException | None, lock: ViewLock | None = None
) -> HttpResponse | None:
    """Return the response to an error of weblock; ``None`` for an error that no client should see.

    A locked view of Django REST framework answers in the way of its other errors; a browser gets a page;
    and others get problem details. ``lock`` is the lock that the error is about: the settings of its alias
    apply, or those of ``default`` if it is ``None``.
    """
    made = _making(request, error, lock)
    return made() if made else None


async def answer_for(
    lock: ViewLock | None, request: HttpRequest, error: Exception, call: Call
) -> HttpResponse | None:
    """Return the response; for a busy key, what the lock's ``busy_view`` returns.

    ``call`` calls what belongs to the project, and what may use the database.
    """
    if isinstance(error, LockTimeout):
        given = _settings(lock)
        view = (lock and lock.busy_view) or (given and given.busy_view)
        response: HttpResponse | None = await call(view, request, error) if view else None
        if response is not None:
            return response
    made = _making(request, error, lock)
    if made is None:
        return None
    answered: HttpResponse = made() if made.func is _details else await call(made)
    return answered


async def answer_for_refusal(
    request: HttpRequest, error: Exception, call: Call
) -> HttpResponse | None:
    """Return the response to what a key function has raised, if a view of REST framework answers it itself.

    The client cannot be authenticated, for example.
    """
    if not is_rest(request):
        return None
    from rest_framework.exceptions import APIException  # Only projects that use it have it.

    if not isinstance(error, (APIException, Http404, PermissionDenied)):
        return None
    answered: HttpResponse = await call(_handled_by_rest, request, error)
    return answered


def _settings(lock: ViewLock | None) -> settings.AliasSettings | None:
    alias = lock.alias if lock else DEFAULT
    return settings.current()[alias] if alias in settings.aliases() else None


def _making(
    request: HttpRequest, error: BaseException | None, lock: ViewLock | None
) -> partial[HttpResponse] | None:
    """Return what makes the response, in the form that the client reads."""
    if not isinstance(error, WeblockError):
        return None

    def rewrite(problem: Problem, error: WeblockError) -> Problem:
        given = _settings(lock)
        own: Rewrite | None = given.rewrite if given else None
        return own(problem, error) if own else problem

    problem = problem_of(error, rewrite, debug=django_settings.DEBUG)
    if problem is None:
        return None
    form: Callable[[HttpRequest, Problem, WeblockError], HttpResponse]
    if is_rest(request):
        form = _of_rest
    else:
        form = _page if request.get_preferred_type(_FORMS) == "text/html" else _details
    return partial(form, request, problem, error)


def _details(_request: HttpRequest, problem: Problem, _error: WeblockError) -> HttpResponse:
    """Return problem details (RFC 9457)."""
    response = HttpResponse(
        problem.body,
        status=problem.status,
        content_type=problem.media_type,
        headers=problem.uncached,
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
    response = HttpResponse(page, status=problem.status, headers=problem.uncached)
    patch_vary_headers(response, ["Accept"])
    return response


def _of_rest(request: HttpRequest, problem: Problem, error: WeblockError) -> HttpResponse:
    """Return the response of the view's exception handler, in the format that the client accepts.

    Return problem details if the handler does not handle the error, or would report success: no
    work was done.
    """
    from rest_framework.exceptions import APIException, ErrorDetail  # As above.

    members = {"detail": problem.detail, "code": problem.code, "title": problem.title}
    refusal = APIException(problem.detail, problem.code)
    refusal.status_code = int(problem.status)
    refusal.detail = {
        name: ErrorDetail(str(value), problem.code)
        for name, value in {**members, **problem.more}.items()
    }
    refusal.__cause__ = error
    try:
        response = _handled_by_rest(request, refusal)
    except type(refusal) as raised:
        if raised is not refusal:
            raise
        return _details(request, problem, error)
    if response.status_code < HTTPStatus.BAD_REQUEST:
        return _details(request, problem, error)
    for name, value in problem.uncached.items():
        response.setdefault(name, value)
    return response


def _handled_by_rest(request: HttpRequest, error: Exception) -> HttpResponse:
    """Return the response of the view's exception handler. Raises the error if it does not handle it."""
    view = rest_view(request)
    # Handlers and the browsable API read the user, who is anonymous after an error, of a database too.
    try:
        view.perform_authentication(view.request)
    except Exception:  # noqa: BLE001 - of the project's authenticators
        view.request.authenticators = ()
    response = view.finalize_response(view.request, view.handle_exception(error))
    made: HttpResponse = response.render() if hasattr(response, "render") else response
    return made
