"""What the middlewares that lock by URL have in common, and which rules an application has."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Generic, NamedTuple, TypeVar

from ...errors import ConfigurationError
from .rules import Rule, RuleSet

A = TypeVar("A")

Rules = RuleSet | Iterable[Rule | Mapping[str, Any]] | Mapping[str, Any] | str


def ruleset_of(rules: Rules) -> RuleSet:
    """Return the rules that a middleware was given in any of their forms."""
    return rules if isinstance(rules, RuleSet) else RuleSet(rules)


class RuleMiddleware(Generic[A]):
    """A middleware that locks the requests that its rules are about.

    Raises ``ConfigurationError`` if there is no rule.
    """

    def __init__(self, app: A, rules: Rules, root_path: str) -> None:
        self.app = app
        """The application that it wraps."""
        self.rules = ruleset_of(rules)
        """Its rules."""
        self.root_path = root_path
        """What it takes off a path before its rules see it; empty where only the server knows that."""
        if not len(self.rules):
            raise ConfigurationError(
                "LockMiddleware has no rules, so it would lock nothing: say what to lock, as in"
                ' rules=[Rule("/shops/{shop}/items", methods=["POST"], key="shop:{shop}")]'
            )


class RulesFound(NamedTuple):
    """The rules of one middleware."""

    rules: RuleSet
    root_path: str
    """See ``RuleMiddleware``."""


def rules_of(app: object) -> Iterator[RulesFound]:
    """Return the rules of each such middleware of an application, from the outside to the inside.

    It sees those that wrap the application, those that Starlette's ``add_middleware`` was given, those
    around a Flask application's ``wsgi_app``, and through other middleware that keeps what it wraps as
    ``app``.
    """
    seen: list[object] = []
    while app is not None and all(app is not each for each in seen):
        seen.append(app)
        if isinstance(app, RuleMiddleware):
            yield RulesFound(app.rules, app.root_path)
        for each in getattr(app, "user_middleware", ()):
            if isinstance(each.cls, type) and issubclass(each.cls, RuleMiddleware):
                yield _added(app, each)
        app = getattr(app, "wsgi_app", None) or getattr(app, "app", None)


def _added(app: object, middleware: Any) -> RulesFound:
    given = inspect.signature(middleware.cls).bind(app, *middleware.args, **middleware.kwargs)
    rules, root_path = given.arguments.get("rules", ()), given.arguments.get("root_path")
    own = getattr(app, "root_path", "") if root_path is None else root_path
    return RulesFound(ruleset_of(rules), own or "")
