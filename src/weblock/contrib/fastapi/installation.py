"""``install``: what an application needs for its locks, once."""

from __future__ import annotations

import functools
from collections.abc import MutableMapping, Sequence
from typing import TYPE_CHECKING, Any, Unpack

from ..._face import Duration, LocksOptions, seconds
from ...aio import AsyncLocks
from ...errors import (
    ConfigurationError,
    EngineUnavailable,
    InvalidKey,
    LeaseLost,
    LockTimeout,
    WeblockError,
)
from ..asgi import Problem, RequestLayer, problem_of
from ..asgi.opening import opened
from .routes import check_keys

if TYPE_CHECKING:
    from fastapi import FastAPI
    from fastapi.requests import HTTPConnection


def install(
    app: FastAPI,
    locks: AsyncLocks | str | Sequence[str] | None = None,
    *,
    hold_back: Duration = 1.0,
    **options: Unpack[LocksOptions],
) -> AsyncLocks:
    """Makes ``Depends(lock(...))`` work in ``app``, and returns its locks.

    ``locks`` is an ``AsyncLocks``, or an engine's URL, with ``options``; without it, ``file://``.
    Locks made here are closed when the application shuts down.

    Call it once, after ``add_middleware`` of your own that commits work: the layer that it adds
    releases when everything inside it has returned. ``hold_back`` is how many seconds a response
    waits for that, at most. Raises ``ConfigurationError`` for options that cannot work, and if
    ``app`` has its layer already.

    Errors of weblock are answered with problem details; ``@app.exception_handler(LockTimeout)``
    and the like go before that.
    """
    layers: list[object] = [middleware.cls for middleware in app.user_middleware]
    if RequestLayer in layers:
        raise ConfigurationError("weblock is installed in this application already: install once")
    hold_back = seconds("hold_back", hold_back)
    locks, reopen = opened(locks, options)
    app.add_middleware(
        RequestLayer,
        locks=locks,
        hold_back=hold_back,
        reopen=reopen,
        before_start=functools.partial(check_keys, app.routes),
    )
    handlers: MutableMapping[Any, Any] = app.exception_handlers
    for error in (LockTimeout, EngineUnavailable, LeaseLost, InvalidKey):
        handlers.setdefault(error, _answer)
    return locks


async def _answer(_connection: HTTPConnection, error: WeblockError) -> Problem:
    """Inside the application's own middleware, so that CORS headers and logs are as for others."""
    problem = problem_of(error)
    assert problem is not None
    return problem
