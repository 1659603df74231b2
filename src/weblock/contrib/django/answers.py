"""The responses to requests that cannot be served under their lock, in the form that each client reads."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

from django.conf import settings as django_settings
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse
from django.template.exceptions import TemplateDoesNotExist
from django.template.loader import select_template
from django.utils.cache import patch_vary_headers

from ...errors import LockTimeout, WeblockError
from ..kit import Problem, problem_of
from . import settings
from .view_lock import DEFAULT, Call, is_rest, rest_view

if TYPE_CHECKING:
    from .request import ViewLeases

_FORMS: Final = (Problem.media_type, "application/json", "text/html")


async def answer_for(
    held: ViewLeases | None,
    request: HttpRequest,
    error: Exception | None,
    call: Call,
    *,
    by_key_function: bool = False,
) -> HttpResponse | None:
    """Return the response to an error of weblock; ``None`` for an error that no client should see.

    For a busy key, that is what the lock's ``busy_view`` returns. Otherwise a locked view of Django REST
    framework answers in the way of its other errors; a browser gets a page; and others get problem details.
    The settings are those of the alias of the lock that the error is about, or of ``default`` without ``held``.
    What a key function has raised is answered if a view of REST framework answers it itself: the client
    cannot be authenticated, for example.

    ``call`` calls what belongs to the project, and what may use the database.
    """
    if not isinstance(error, WeblockError):
        if not (by_key_function and error and is_rest(request) and _is_refusal(error)):
            return None
        handled: HttpResponse = await call(_handled_by_rest, request, error)
        return handled
    lock = held.lock_behind(error) if held else None
    alias = lock.alias if lock else DEFAULT
    own = settings.current()[alias] if alias in settings.aliases() else None
    if isinstance(error, LockTimeout):
        view = (lock and lock.busy_view) or (own and own.busy_view)
        given: HttpResponse | None = await call(view, request, error) if view else None
        if given is not None:
            return given
    problem = problem_of(error, own.rewrite if own else None, debug=django_settings.DEBUG)
    if problem is None:
        return None
    response: HttpResponse
    if is_rest(request):
        response = await call(_of_rest, request, problem, error)
    elif request.get_preferred_type(_FORMS) == "text/html":
        response = await call(_page, request, problem, error)
    else:
        response = _details(problem)
    return response


def _is_refusal(error: Exception) -> bool:
    """Return whether REST framework handles an error by itself."""
    from rest_framework.exceptions import APIException  # Only projects that use it have it.

    return isinstance(error, (APIException, Http404, PermissionDenied))


def _details(problem: Problem) -> HttpResponse:
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
        return _details(problem)
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
        return _details(problem)
    if response.status_code < HTTPStatus.BAD_REQUEST:
        return _details(problem)
    for name, value in problem.uncached.items():
        response.setdefault(name, value)
    return response


def _handled_by_rest(request: HttpRequest, error: Exception) -> HttpResponse:
    """Return the response of the view's exception handler. Raises the error if it does not handle it."""
    from rest_framework.views import APIView

    view = rest_view(request)

    def refuse(own: Any, *args: Any, **kwargs: Any) -> None:
        # Handlers and the browsable API read the user, who is anonymous after an error, of a database too.
        try:
            APIView.initial(view, own, *args, **kwargs)
        except Exception:  # noqa: BLE001 - of the project's authenticators
            own.authenticators = ()
        raise error

    view.initial = refuse
    response = APIView.dispatch(view, request, *view.args, **view.kwargs)
    made: HttpResponse = response.render() if hasattr(response, "render") else response
    return made
