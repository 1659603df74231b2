"""Operations of django-ninja, whose API may have handlers of its own for errors of weblock."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from inspect import unwrap
from typing import Any, Final, TypeVar

from asgiref.sync import iscoroutinefunction

from ...errors import WeblockError
from .internals import has_ninja_handler

F = TypeVar("F", bound=Callable[..., Any])

_api: Final[ContextVar[Any]] = ContextVar("weblock_ninja_api", default=None)
"""The API whose operation runs here."""


def known_to_its_api(function: F) -> F:
    """Return a function that, if it serves an operation, does so where ``api_with_handler`` finds its API."""
    if "ninja.operation" not in sys.modules:
        return function
    from ninja.decorators import decorate_view  # Only projects that use it have it.

    # Routers copy their operations for each API; what this decorates is a method of the copy.
    decorated: F = decorate_view(_within_api)(function)
    return decorated


def api_with_handler(error: WeblockError) -> Any:
    """Return the API whose operation runs here, if it has a handler for such errors of weblock, else ``None``."""
    api = _api.get()
    return api if api and has_ninja_handler(api, error, WeblockError) else None


def _within_api(run: Callable[..., Any]) -> Callable[..., Any]:
    operation = getattr(unwrap(run), "__self__", None)

    if iscoroutinefunction(run):

        @wraps(run)
        async def arun_within(*args: Any, **kwargs: Any) -> Any:
            with _in(operation):
                return await run(*args, **kwargs)

        return arun_within

    @wraps(run)
    def run_within(*args: Any, **kwargs: Any) -> Any:
        with _in(operation):
            return run(*args, **kwargs)

    return run_within


@contextmanager
def _in(operation: Any) -> Iterator[None]:
    token = _api.set(getattr(operation, "api", None))
    try:
        yield
    finally:
        _api.reset(token)
