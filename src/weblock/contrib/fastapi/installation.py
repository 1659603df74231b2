"""``install``: what an application needs for its locks, once."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Unpack

from fastapi import FastAPI

from ..._options import Duration, LocksOptions
from ...aio import AsyncLocks
from ...errors import ConfigurationError
from ..asgi import RequestLayer, Rewrite
from ..asgi.opening import opened
from ..asgi.policy import policy_of
from .answers import Answers
from .documentation import document, document_mounted
from .routes import check_keys


def install(
    app: FastAPI,
    locks: AsyncLocks | str | Sequence[str] | None = None,
    *,
    hold_back: Duration | None = None,
    rewrite: Rewrite | None = None,
    **options: Unpack[LocksOptions],
) -> AsyncLocks:
    """Makes ``Depends(lock(...))`` work in ``app``, and returns its locks.

    ``locks`` is an ``AsyncLocks``, or an engine's URL, with ``options``; without it, ``file://``.
    Locks made here free their connections when the application shuts down, and open again when
    they are used again.

    Call it once, after ``add_middleware`` of your own that commits work: the layer that it adds
    releases when everything inside it has returned. A complete response waits for that, too, so that
    nothing is reported as done before it is committed; ``BackgroundTasks`` run after the response.
    ``hold_back`` limits the waiting to so many seconds, for middleware and background tasks that
    nobody announced. A commit that takes longer, and fails, has then been reported as done.

    Errors of weblock are answered with problem details; ``rewrite(problem, error)`` returns them
    with another status, body or headers, and ``@app.exception_handler(LockTimeout)`` and the like
    go before that.

    Raises ``ConfigurationError`` for options that cannot work, and if ``app`` has its layer already;
    when the application starts, for a key that a route can never fill in.
    """
    if not isinstance(app, FastAPI):
        raise TypeError(
            f"install(app) wants the FastAPI application, once, and was given a {type(app).__name__}:"
            " its routers and mounted applications are served by the same layer"
        )
    layers: list[object] = [middleware.cls for middleware in app.user_middleware]
    if RequestLayer in layers:
        raise ConfigurationError("weblock is installed in this application already: install once")
    policy_of(hold_back)  # Starlette makes the layer later; what cannot work is refused now.
    locks, owned = opened(locks, options)
    answers = Answers(app, rewrite)
    document(app, answers)
    app.add_middleware(
        RequestLayer,
        locks=locks,
        hold_back=hold_back,
        owns_locks=owned,
        before_start=functools.partial(_before_start, app, answers),
        answer=answers.of,
    )
    return locks


def _before_start(app: FastAPI, answers: Answers) -> None:
    check_keys(app.routes)
    document_mounted(app.routes, answers)
