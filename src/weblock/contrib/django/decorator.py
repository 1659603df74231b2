"""``@lock("item:{pk}")``: what it decorates runs under the lock."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, NoReturn, TypeVar, Unpack

from asgiref.sync import iscoroutinefunction, sync_to_async
from django.http import HttpRequest

from ..._options import HoldOptions
from ...aio import AsyncLease
from ...errors import ConfigurationError, WeblockError
from ...sync import Lease
from ..kit.guarding import GuardKind
from .answers import aanswer_for, answer_for
from .internals import is_ninja_operation
from .ninja import known_to_its_api
from .request import TaskLeases, ThreadLeases, ViewLeases, locks_of_request
from .view_lock import (
    DEFAULT,
    BusyView,
    KeyFunction,
    ViewLock,
    acall,
    call,
    mark,
    mark_decorator,
    marks_of,
)

F = TypeVar("F", bound=Callable[..., Any])

Together = tuple[ViewLock, ...]
"""The lock of a decorator, and those of decorators below it."""


def lock(
    *keys: str | KeyFunction,
    alias: str = DEFAULT,
    busy_view: BusyView | None = None,
    guard: GuardKind | None = None,
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
        *keys: Templates, into which the arguments of the view are filled, and ``{query.name}`` and
            ``{header.name}``; or functions of the request that return a key. Several keys are held
            together, all or none.
        alias: Which entry of ``WEBLOCK`` to use.
        busy_view: Returns the response to a request that does not get the lock in time. For another
            busy key, which the view has tried to acquire by itself, the alias's ``BUSY_VIEW`` does.
        guard: What must be true at COMMIT: ``"database"``, that the database knows no later holder;
            ``"lease"``, only that the lease is held. ``None`` is what the alias's ``GUARD`` says. A
            key that several locks of a request name is guarded if one of them says so.
        **options: Override those of the alias; durations are seconds.
            ``ttl`` (10): how long the lease lasts unless it is renewed;
            ``wait`` (5): how long to wait, 0 for not at all, ``None`` without limit;
            ``max_hold`` (``None``): after how long it is no longer renewed, and is lost;
            ``renew`` (``True``): whether it is renewed while its holder lives;
            ``max_waiters`` (1000): how many callers may wait for a key;
            ``limit`` (1): how many may hold a key at once;
            ``shared`` (``False``): whether any number of shared holders have it together, and no other;
            ``label`` (host name and process id): what others see of the holder;
            ``on_unavailable`` (``"raise"``): with ``"open"``, run without a lease while the engine
            does not answer.

    Raises:
        ConfigurationError: A key template or an option cannot work, or, at a request, a transaction
            has begun before the lock.
    """
    wanted = ViewLock.of(keys, options, guard, alias=alias, busy_view=busy_view)

    def decorate(view: F, *more: object, **url: object) -> F:
        if more or url or not callable(view):  # A request is served.
            raise ConfigurationError(
                f"{wanted!r} was called to serve a request. @lock without a key takes the view for a"
                ' function that makes keys: write @lock("create_item")'
            )
        if isinstance(view, type):
            raise TypeError(
                f"@lock decorates functions: on the class {view.__qualname__}, use"
                ' @method_decorator(lock(...), name="dispatch")'
            )
        if is_ninja_operation(view):
            raise TypeError(
                f"@lock stands above django-ninja's decorator of {view.__qualname__}, which has"
                " registered what is below: put @lock below it"
            )
        # Those of decorators below are acquired along with it, in one order.
        together = tuple(dict.fromkeys((wanted, *marks_of(view))))
        held = (_aheld if iscoroutinefunction(view) else _held)(together, view)
        functools.update_wrapper(held, view)
        mark(held, wanted)
        return known_to_its_api(held)  # type: ignore[return-value]

    mark_decorator(decorate, wanted)
    return decorate


def lease_of(request: HttpRequest) -> Lease:
    """Return the lease of the lock around the view: ``request.weblock``, with its type.

    Raises ``ConfigurationError`` where no lock is held, or in an async view, which has an
    ``AsyncLease``.
    """
    found = _shown(request)
    if isinstance(found, Lease):
        return found
    raise ConfigurationError(
        "lease_of was asked in an async view, whose lease is awaited: take async_lease_of"
    )


def async_lease_of(request: HttpRequest) -> AsyncLease:
    """Return what the request of an async view holds. Raises ``ConfigurationError``, as ``lease_of``."""
    found = _shown(request)
    if isinstance(found, AsyncLease):
        return found
    raise ConfigurationError(
        "async_lease_of was asked in a view that is not async: take lease_of, which needs no await"
    )


def _shown(request: HttpRequest) -> object:
    found = getattr(request, "weblock", None)
    if found is None:
        raise ConfigurationError(
            f"the request to {request.path!r:.100} holds no lock: put @lock on its view, or write a"
            " rule for it"
        )
    return found


def _held(together: Together, view: Callable[..., Any]) -> Callable[..., Any]:
    def held(*args: Any, **kwargs: Any) -> Any:
        if _is_of_async_class(view, args):
            return _serve_async(together, view, args, kwargs)
        return _serve(together, view, args, kwargs)

    return held


def _aheld(together: Together, view: Callable[..., Any]) -> Callable[..., Any]:
    async def held(*args: Any, **kwargs: Any) -> Any:
        return await _serve_async(together, view, args, kwargs)

    return held


def _serve(together: Together, view: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Run a view under its lock, in a thread."""
    request = _request_of(view, args, kwargs)
    wanted = together[0]

    def work(held: ViewLeases) -> Any:
        held.show(wanted, to_task=False)
        response = view(*args, **kwargs)
        if inspect.iscoroutine(response):
            _refuse_coroutine(view, response)
        held.prove(wanted)
        return response

    outer = locks_of_request(request)
    if outer and outer.has(wanted):
        return work(outer)
    values, given = _values(request, kwargs), _given(view, args)
    alone = ThreadLeases(request)

    def acquire_and_work() -> Any:
        alone.acquire(together, values, given)
        try:
            return work(alone)
        except Exception as error:
            if (reason := alone.reason_of(error)) is error:
                raise
            raise reason from error

    try:
        if not outer:
            return alone.run(acquire_and_work)
        call(outer.acquire, together, values, given)
        return work(outer)
    except WeblockError as error:
        lock = (outer or alone).lock_behind(error)
        if response := answer_for(lock, request, error):
            return response if outer else alone.timed(response)
        raise


async def _serve_async(together: Together, view: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Serve the view in a task."""
    request = _request_of(view, args, kwargs)
    wanted = together[0]

    async def work(held: ViewLeases) -> Any:
        held.show(wanted, to_task=True)
        response = view(*args, **kwargs)
        if inspect.isawaitable(response):  # A dispatch may answer by itself.
            response = await response
        held.prove(wanted)
        return response

    outer = locks_of_request(request)
    if outer and outer.has(wanted):
        return await work(outer)
    values, given = _values(request, kwargs), _given(view, args)
    alone = TaskLeases(request)

    async def acquire_and_work() -> Any:
        await alone.acquire(together, values, given)
        try:
            return await work(alone)
        except Exception as error:
            if (reason := await sync_to_async(alone.reason_of)(error)) is error:
                raise
            raise reason from error

    try:
        if not outer:
            return await alone.run(acquire_and_work)
        await acall(outer.acquire, together, values, given)
        return await work(outer)
    except WeblockError as error:
        lock = (outer or alone).lock_behind(error)
        if response := await aanswer_for(lock, request, error):
            return response if outer else alone.timed(response)
        raise


def _is_of_async_class(view: Callable[..., Any], args: tuple[Any, ...]) -> bool:
    """Return whether this method, such as ``dispatch``, returns an async method's coroutine."""
    return bool(getattr(type(_instance_of(view, args)), "view_is_async", False))


def _instance_of(view: Callable[..., Any], args: tuple[Any, ...]) -> object:
    """Return the instance whose method is decorated, or else the first argument."""
    bound = getattr(view, "func", view)  # method_decorator hands over a partial of it.
    return getattr(bound, "__self__", args[0] if args else None)


def _given(view: Callable[..., Any], args: tuple[Any, ...]) -> list[object]:
    """Return what a decorator above may have read for the view: its arguments, and what its instance keeps."""
    return [*args, *getattr(_instance_of(view, args), "__dict__", {}).values()]


def _request_of(view: Callable[..., Any], args: Any, kwargs: Mapping[str, Any]) -> HttpRequest:
    """Return the request: the first argument, or the second of a method."""
    for each in (*args[:2], kwargs.get("request")):
        request = getattr(each, "_request", each)  # Django REST framework wraps it.
        if isinstance(request, HttpRequest):
            return request
    raise TypeError(
        f"@lock found no request among the arguments of {view!r}: it decorates views, and other"
        ' functions hold their locks with locks["default"].hold'
    )


def _values(request: HttpRequest, kwargs: Mapping[str, object]) -> dict[str, object]:
    """Return the parts of the URL as the view gets them: a framework may have converted them."""
    match = request.resolver_match
    return {**(match.kwargs if match else {}), **kwargs}


def _refuse_coroutine(view: Callable[..., Any], response: Coroutine[Any, Any, Any]) -> NoReturn:
    response.close()
    raise ConfigurationError(
        f"{view!r} is no async function, but returns a coroutine, which would run without its lock:"
        " put @lock on the async function itself"
    )
