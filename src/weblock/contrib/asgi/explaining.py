"""Which rules an application has, without sending it a request."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any, NamedTuple

from ..rules import RuleSet
from .middleware import LockMiddleware


class Rules(NamedTuple):
    """The rules of one ``LockMiddleware``."""

    rules: RuleSet
    root_path: str
    """The prefix that the middleware removes from a path; empty if only the server knows it."""


def rules_of(app: object) -> Iterator[Rules]:
    """Return the rules of each ``LockMiddleware`` of an application, from the outside to the inside.

    It sees those that wrap the application, those that Starlette's ``add_middleware`` was given, and
    through other middleware that keeps what it wraps as ``app``.
    """
    seen: list[object] = []
    while app is not None and all(app is not each for each in seen):
        seen.append(app)
        if isinstance(app, LockMiddleware):
            yield Rules(app.rules, app.root_path)
        for each in getattr(app, "user_middleware", ()):
            if isinstance(each.cls, type) and issubclass(each.cls, LockMiddleware):
                yield _added(app, each)
        app = getattr(app, "app", None)


def _added(app: object, middleware: Any) -> Rules:
    given = inspect.signature(middleware.cls).bind(app, *middleware.args, **middleware.kwargs)
    rules, root_path = given.arguments.get("rules", ()), given.arguments.get("root_path")
    own = getattr(app, "root_path", "") if root_path is None else root_path
    return Rules(rules if isinstance(rules, RuleSet) else RuleSet(rules), own or "")
