"""What holds locks around views: ``LockMiddleware``, and ``@lock`` by itself where there is none.

``weblock.contrib.django.middleware.LockMiddleware`` is the last in ``MIDDLEWARE``. It acquires before
the transaction of the view begins, and releases after it has ended. What it does not see, a decorated
function that another one calls, acquires by itself: outside of a transaction, for inside one the lock
would come too late.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar, Unpack

from asgiref.sync import iscoroutinefunction, markcoroutinefunction
from django.core.handlers.asgi import ASGIRequest
from django.core.management.base import CommandError
from django.http import HttpRequest, HttpResponse

from ..._options import HoldOptions
from ..._runtime.runtimes import drive
from ...aio import AsyncLease
from ...errors import ConfigurationError, WeblockError
from ...keys import signature_of
from ...sync import Lease
from ..kit import methods_of
from ..kit.guarding import GuardKind
from . import settings
from .answers import answer_for
from .database import refuse_split_reads
from .internals import is_ninja_operation
from .request import TaskLeases, ThreadLeases, ViewLeases, locks_of_request
from .view_lock import (
    DEFAULT,
    BusyView,
    KeyFunction,
    R,
    ViewLock,
    in_thread,
    locks_of,
    mark,
    marks_of,
    matching,
    refuse_key_functions,
)

View = Callable[..., Any]
F = TypeVar("F", bound=View)
L = TypeVar("L", Lease, AsyncLease)


class LockMiddleware:
    """Holds what ``@lock`` marks and what ``RULES`` say, in WSGI and in ASGI."""

    sync_capable = async_capable = True

    def __init__(self, get_response: Callable[[HttpRequest], Any]) -> None:
        self._get_response = get_response
        self._leases: type[ThreadLeases | TaskLeases] = ThreadLeases
        self.process_view: Callable[..., Any] = self._acquire_in_thread
        if iscoroutinefunction(get_response):
            markcoroutinefunction(self)
            self._leases = TaskLeases
            self.process_view = self._acquire
        # What cannot work is refused when the server starts. No engine is connected to yet.
        settings.current().rules  # noqa: B018 - reads them
        refuse_split_reads()
        for alias in self._leases.locks_by_alias:
            self._leases.locks_by_alias[alias]

    def __call__(self, request: HttpRequest) -> Any:
        """Serve a request, and release what it has acquired when its work is done."""
        return self._leases(request).run(partial(self._get_response, request))

    def process_exception(self, request: HttpRequest, error: Exception) -> HttpResponse | None:
        """Respond to an error of a view: a lost lease, or a lock that the view acquired itself.

        A ``LockedCommand`` that the view calls says it with ``CommandError``.
        """
        held = locks_of_request(request)
        if isinstance(error, CommandError) and isinstance(error.__cause__, WeblockError):
            error = error.__cause__
        if held:
            error = held.reason_of(error)
        return drive(answer_for(held, request, error, in_thread))

    def _acquire_in_thread(self, *view: Any) -> HttpResponse | None:
        return drive(self._acquire(*view))

    async def _acquire(
        self, request: HttpRequest, view: View, _args: Any, values: Mapping[str, object]
    ) -> HttpResponse | None:
        """Acquire what the rules of the settings and the view's decorators want."""
        wanted = locks_of(view, request.method)
        for rules in reversed(settings.current().rules):
            assert request.resolver_match
            rule = matching(rules, request.method, request.resolver_match)
            if rule and rule.lock:
                wanted = (rule.lock, *wanted)
        if not wanted:
            return None
        held = locks_of_request(request)
        assert held, "Django calls process_view inside the middleware"
        if isinstance(request, ASGIRequest) and self._leases is ThreadLeases:
            # A thread each, if not one for all, where the holder's view would have to run, too.
            raise ConfigurationError(
                "weblock's LockMiddleware precedes middleware that is not async. Under ASGI, requests"
                " would wait in threads, possibly in the thread that the holder needs: put it last"
                " into MIDDLEWARE",
                code="not_locked",
            )
        try:
            await held.take_all(wanted, values)
        except Exception as error:
            response = await answer_for(held, request, error, held.call, by_key_function=True)
            if response is None:
                raise
            return response
        held.show(wanted[-1], to_task=iscoroutinefunction(view))
        return None


def lock(
    *keys: str | KeyFunction[R],
    alias: str = DEFAULT,
    busy_view: BusyView[R] | None = None,
    guard: GuardKind | None = None,
    methods: Iterable[str] | None = None,
    **options: Unpack[HoldOptions],
) -> Callable[[F], F]:
    """Decorate a view so that it runs under a lock: ``@lock("item:{pk}")``.

    It decorates functions and methods, plain or async, class-based views by ``method_decorator``
    or on the method itself, views and viewsets of Django REST framework, and operations of
    django-ninja. The view finds the lease in ``request.weblock``.

    A request that does not get the lock in time is answered with 409, or with what
    ``busy_view(request, error)`` returns; one whose engine is down or whose lease was lost before
    its work was committed, with 503.

    Args:
        *keys: Templates, into which the arguments of the view are filled, and ``{query.name}``,
            ``{header.name}`` and ``{cookie.name}``; or functions of the request that return a key, or ``None`` to lock nothing.
            Several keys are held together, all or none.
        alias: Which entry of ``WEBLOCK`` to use.
        busy_view: Returns the response to a request that does not get the lock in time. For another
            busy key, which the view has tried to acquire by itself, the alias's ``BUSY_VIEW`` does.
        guard: What must be true at COMMIT: ``"database"``, that the database knows no later holder;
            ``"lease"``, only that the lease is held. ``None`` is what the alias's ``GUARD`` says. A
            key that several locks of a request name is guarded if one of them says so.
        methods: Requests by other methods lock nothing; ``GET`` includes ``HEAD``. All by default.
        **options: Override those of the alias; durations are seconds. See ``HoldOptions``.

    Raises:
        ConfigurationError: A key template or an option cannot work, or, at a request, a transaction
            has begun before the lock.
    """
    made = ViewLock.of(
        keys, options, guard, alias=alias, busy_view=busy_view, methods=methods_of(methods)
    )
    wanted = refuse_key_functions(made)

    def decorate(view: F, *more: object, **url: object) -> F:
        if more or url or not callable(view):  # A request is served.
            raise ConfigurationError(
                f"{wanted!r} was called to serve a request. @lock without a key treats the view as a"
                ' key function: write @lock("create_item")',
                code="not_locked",
            )
        if isinstance(view, type):
            raise TypeError(
                f"@lock decorates functions: on the class {view.__qualname__}, use"
                ' @method_decorator(lock(...), name="dispatch")'
            )
        if is_ninja_operation(view):
            raise TypeError(
                f"@lock is above django-ninja's decorator of {view.__qualname__}, which has"
                " already registered the function below: put @lock below it"
            )
        # Those of decorators below are acquired along with it, in one order.
        together = tuple(dict.fromkeys((wanted, *marks_of(view))))
        called = called_by(view)

        async def aheld(*args: Any, **kwargs: Any) -> Any:
            return await _serve(TaskLeases, together, view, args, kwargs)

        def held(*args: Any, **kwargs: Any) -> Any:
            # A method such as dispatch may return an async method's coroutine.
            if getattr(type(instance_of(called, args)), "view_is_async", False):
                return aheld(*args, **kwargs)
            return drive(_serve(ThreadLeases, together, view, args, kwargs))

        decorated = aheld if iscoroutinefunction(view) else held
        functools.update_wrapper(decorated, view)
        mark(decorated, wanted)
        return decorated  # type: ignore[return-value]

    return decorate


def lease_of(request: HttpRequest) -> Lease:
    """Return the lease of the lock around the view: ``request.weblock``, with its type.

    Raises ``ConfigurationError`` where no lock is held, or in an async view, which has an
    ``AsyncLease``.
    """
    other = "in an async view: use async_lease_of, whose lease is awaited"
    return _shown(request, Lease, f"lease_of was called {other}")


def async_lease_of(request: HttpRequest) -> AsyncLease:
    """Return what the request of an async view holds. Raises ``ConfigurationError``, as ``lease_of``."""
    other = "in a view that is not async: use lease_of"
    return _shown(request, AsyncLease, f"async_lease_of was called {other}")


def _shown(request: HttpRequest, kind: type[L], otherwise: str) -> L:
    found = getattr(request, "weblock", None)
    if isinstance(found, kind):
        return found
    if found is None:
        raise ConfigurationError(
            f"the request to {request.path!r:.100} holds no lock: put @lock on its view, or write a"
            " rule for it",
            code="no_lease",
        )
    raise ConfigurationError(otherwise, code="no_lease")


def _call_of(
    view: View, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[HttpRequest, dict[str, object]]:
    """Return the request that a view is called with, and the values that its key templates may name."""
    # The request is the first argument, or the second of a method.
    for place, each in enumerate((kwargs.get("request"), *args[:2])):
        request = getattr(each, "_request", each)  # Django REST framework wraps it.
        if not isinstance(request, HttpRequest):
            continue
        match = request.resolver_match
        # The parts of the URL as the view gets them: a framework may have converted them.
        values = {**(match.kwargs if match else {}), **kwargs}
        if len(args) > place:  # Code of the project calls it, or its URL has groups without names.
            called = called_by(view)
            # The partial of method_decorator says that it takes the instance, too.
            if isinstance(called, partial):
                called = partial(called.func, *called.args)
            # A decorator below may take what the view does not.
            with suppress(TypeError, ValueError):
                values.update(signature_of(called).bind_partial(*args).arguments)
        return request, values
    raise TypeError(
        f"@lock found no request among the arguments of {view!r}: it decorates views, and other"
        ' functions hold their locks with locks["default"].hold'
    )


async def _serve(
    kind: type[ThreadLeases | TaskLeases],
    together: tuple[ViewLock, ...],
    view: View,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """Serve a view under its lock, and those of decorators below it; ``kind`` says in what.

    In a thread, nothing of this suspends.
    """
    request, values = _call_of(view, args, kwargs)
    wanted, run = together[0], partial(view, *args, **kwargs)
    if wanted.methods and not wanted.takes(request.method):
        response = run()
        return await response if kind is TaskLeases and inspect.isawaitable(response) else response
    outer = locks_of_request(request)
    if outer and (keys := outer.by_lock.get(wanted)) is not None:
        # A view that calls another may give it other values. Key functions see the request alone.
        former, named = outer.values[wanted], wanted.named
        is_same = [*map(values.get, named)] == [*map(former.get, named)]
        if is_same or keys == await wanted.keys_of(request, values, kind.call, args):
            return await _work(kind, outer, wanted, run)
    held = outer or kind(request)
    together = tuple(each for each in together if each.takes(request.method))
    # A decorator above may have read rows for the view, which are arguments or kept by its instance.
    given = [*args, *getattr(instance_of(called_by(view), args), "__dict__", {}).values()]

    async def acquire_and_work() -> Any:
        is_acquiring = True
        try:
            await kind.call(held.acquire, together, values, given)
            is_acquiring = False
            return await _work(kind, held, wanted, run)
        except Exception as error:
            reason = error if outer else await kind.call(held.reason_of, error)
            response = await answer_for(
                held, request, reason, kind.call, by_key_function=is_acquiring
            )
            if response is None:
                raise
            return response

    if outer:
        return await acquire_and_work()
    if isinstance(held, TaskLeases):
        return await held.run(acquire_and_work)
    return held.run(lambda: drive(acquire_and_work()))


async def _work(
    kind: type[ViewLeases],
    held: ViewLeases,
    wanted: ViewLock,
    view: partial[Any],
) -> Any:
    """Run a view whose lock is held, and show its caller the lease of the caller again."""
    before = getattr(held.request, "weblock", None)
    held.show(wanted, to_task=kind is TaskLeases)
    try:
        response = view()
        if kind is TaskLeases:
            # The dispatch of an async class may answer by itself.
            if inspect.isawaitable(response):
                response = await response
        elif inspect.iscoroutine(response):
            response.close()
            raise ConfigurationError(
                f"{view.func!r} is not an async function, but returns a coroutine, which would run"
                " without its lock: put @lock on the async function itself",
                code="not_locked",
            )
    finally:
        held.request.weblock = before  # type: ignore[attr-defined]
    held.check_done()
    held.proven.add(wanted)
    return response


def called_by(view: View) -> Any:
    """Return what is called below decorators: a function, a method, or the partial of one.

    ``method_decorator`` hands over a partial of a method.
    """
    while hasattr(view, "__wrapped__") and not (hasattr(view, "func") or hasattr(view, "__self__")):
        view = view.__wrapped__
    return view


def instance_of(called: Any, args: tuple[Any, ...]) -> object:
    """Return the instance whose method is ``called_by`` decorators, or else the first argument."""
    return getattr(getattr(called, "func", called), "__self__", args[0] if args else None)
