"""``install``: what an application needs for its locks, once."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Unpack

from ..._options import Duration, LocksOptions, seconds
from ...aio import AsyncLocks
from ...errors import ConfigurationError
from ..asgi import RequestLayer, Rewrite
from ..asgi.opening import opened
from .answers import Answers
from .documentation import document, document_mounted
from .routes import LockingPaths, check_keys

if TYPE_CHECKING:
    from fastapi import FastAPI


def install(
    app: FastAPI,
    locks: AsyncLocks | str | Sequence[str] | None = None,
    *,
    hold_back: Duration = 1.0,
    rewrite: Rewrite | None = None,
    **options: Unpack[LocksOptions],
) -> AsyncLocks:
    """Makes ``Depends(lock(...))`` work in ``app``, and returns its locks.

    ``locks`` is an ``AsyncLocks``, or an engine's URL, with ``options``; without it, ``file://``.
    Locks made here are closed when the application shuts down.

    Call it once, after ``add_middleware`` of your own that commits work: the layer that it adds
    releases when everything inside it has returned. ``hold_back`` is how many seconds a complete
    response waits for middleware and background tasks behind it, at most; for a session that
    commits it waits until that is done.

    Errors of weblock are answered with problem details; ``rewrite(problem, error)`` returns them
    with another status, body or headers, and ``@app.exception_handler(LockTimeout)`` and the like
    go before that.

    Raises ``ConfigurationError`` for options that cannot work, and if ``app`` has its layer already;
    when the application starts, for a key that a route can never fill in.
    """
    layers: list[object] = [middleware.cls for middleware in app.user_middleware]
    if RequestLayer in layers:
        raise ConfigurationError("weblock is installed in this application already: install once")
    hold_back = seconds("hold_back", hold_back)
    locks, reopen = opened(locks, options)
    answers = Answers(app, rewrite)
    document(app, answers)
    paths = LockingPaths(app)
    app.add_middleware(
        RequestLayer,
        locks=locks,
        hold_back=hold_back,
        reopen=reopen,
        before_start=functools.partial(_before_start, app, answers, paths),
        answer=answers.of,
        may_lock=paths.may_lock,
    )
    return locks


def _before_start(app: FastAPI, answers: Answers, paths: LockingPaths) -> None:
    check_keys(app.routes)
    paths.find()
    document_mounted(app.routes, answers)
