"""What the middlewares that lock by URL have in common, and what an application is made of."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Generic, TypeVar

from ..._adapting import KeptTexts
from ..._api import BaseLocks
from ...errors import ConfigurationError, StrangePath
from .listing import Asked, Locked
from .rules import Rule, RuleSet

A = TypeVar("A")

Rules = RuleSet | Iterable[Rule | Mapping[str, Any]] | Mapping[str, Any] | str


class RuleMiddleware(Generic[A]):
    """A middleware that locks the requests that its rules are about.

    Raises ``ConfigurationError`` if there is no rule, or if the engine cannot keep the answers of one.
    """

    def __init__(self, app: A, locks: BaseLocks, rules: Rules, root_path: str) -> None:
        self.app = app
        """The application that it wraps."""
        self.locks = locks
        self.rules = rules if isinstance(rules, RuleSet) else RuleSet(rules)
        """Its rules."""
        self.root_path = root_path
        """What it takes off a path before its rules see it; empty where only the server knows that."""
        once = next((rule for rule in self.rules if rule.once), None)
        self.texts = KeptTexts(locks, f"idempotent= of {once!r}") if once else None
        """Where the answers of idempotent rules are kept."""
        if not len(self.rules):
            raise ConfigurationError(
                "LockMiddleware has no rules, so it would lock nothing: add rules, as in"
                ' rules=[Rule("/shops/{shop}/items", methods=["POST"], key="shop:{shop}")]'
            )


def locked_in(app: object, asked: Asked | None) -> Iterator[Locked | ConfigurationError]:
    """List the rules of such a middleware; of a request, the rule that locks it: see ``listing``."""
    if not isinstance(app, RuleMiddleware):
        return
    rules: Iterable[Rule] = app.rules
    if asked:
        try:
            found = app.rules.find(asked.method, asked.path, root_path=app.root_path)
        except StrangePath as error:
            text = f"{asked.method} {asked.path} is rejected with 400: {error.message}"
            yield ConfigurationError(text, code=error.code)
            return
        rules = [found.rule] if found else []
    names = {id(rule): name for name, rule in app.rules.named}
    for rule in rules:
        what = f"{names[id(rule)]}: {rule!r}{', exempt' if rule.exempt else ''}"
        order = "before the application, and the authentication of its routes"
        for spec in (rule.once, rule.lock):
            if spec and (spec.keys or rule.exempt):
                yield Locked(what, spec.keys, spec.options, app.locks, order=order)


def layers_of(app: object) -> Iterator[object]:
    """Return an application, and what it wraps, from the outside to the inside.

    These are the middlewares around it, those with rules that Starlette's ``add_middleware`` was given, those around a
    Flask application's ``wsgi_app``, and other middleware that keeps what it wraps as ``app``. Raises
    ``ConfigurationError`` for a middleware that the application could not be started with.
    """
    seen: list[object] = []
    while app is not None and all(app is not each for each in seen):
        seen.append(app)
        for each in getattr(app, "user_middleware", ()):
            if isinstance(each.cls, type) and issubclass(each.cls, RuleMiddleware):
                yield each.cls(app, *each.args, **each.kwargs)
        yield app
        app = getattr(app, "wsgi_app", None) or getattr(app, "app", None)
