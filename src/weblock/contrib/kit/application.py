"""An application: where its locks come from, the middleware that locks by URL, and what ``weblock check`` lists.

Each adapter names one function in the entry points ``weblock.adapters``. It is called with an application, and with each
that this one wraps, and yields a ``Locked`` for each place that locks, and a ``ConfigurationError`` for each thing
that cannot work. It is asked about one request, too: then it yields what serves that request.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Generic, NamedTuple, Self, TypeVar, cast
from urllib.parse import unquote

from ..._adapting import KeptTexts
from ..._api import BaseLocks
from ..._options import LocksOptions
from ...aio import AsyncLocks
from ...errors import ConfigurationError, StrangePath
from ...keys import KeyTemplate
from ...stores import url as urls
from ...sync import Locks
from .guarding import LEASE_GUARD
from .rules import Rule, RuleSet
from .spec import KeyFunction, name_of

F = TypeVar("F", bound=BaseLocks)

Wanted = Locks | str | Sequence[str]
"""Locks that are open already, or the engine that is to be opened."""

OPTIONS: Final = tuple(LocksOptions.__annotations__)


def configured(
    locks: Wanted,
    options: LocksOptions,
    given: Mapping[str, Any],
    *,
    spell: Callable[[str], str],
    others: Collection[str] = (),
) -> tuple[Wanted, LocksOptions]:
    """Return what a configuration makes of the locks and options that the code gave.

    ``given`` are the settings: ``url``, the options, and ``others``, which belong to the adapter.
    ``spell`` returns a setting as the user writes it. Raises ``ConfigurationError`` for one that does
    not exist, and for a URL next to locks that are open already.
    """
    known = ("url", *others, *OPTIONS)
    for name in given:
        if name not in known:
            there = ", ".join(map(spell, known))
            raise ConfigurationError(f"{spell(name):.80} is not a setting; available: {there}")
    if "url" in given:
        if isinstance(locks, Locks):
            raise ConfigurationError(
                f"{spell('url')} is set, but WebLock was given locks that are already open: give"
                " one of them"
            )
        locks = given["url"]
    of_config = {name: given[name] for name in OPTIONS if name in given}
    return locks, cast("LocksOptions", {**options, **of_config})


def opened(kind: type[F], locks: object, options: LocksOptions) -> tuple[F, bool]:
    """Return the locks of an application, and whether they were made here, so that it owns them.

    ``kind`` is the API that the application needs. Raises ``TypeError`` for other locks than its, and
    for options of locks that are open already.
    """
    name = kind.__name__
    refuse_engine(options)
    if isinstance(locks, kind):
        if options:
            raise TypeError(
                f"{', '.join(options)}: these are options of the locks, which are already open."
                f" Give them to {name}.from_url(...) instead"
            )
        return locks, False
    if locks is not None and not isinstance(locks, str | Sequence):
        given, waits = type(locks), "awaits its locks" if kind is AsyncLocks else "waits in threads"
        raise TypeError(
            f"a {given.__module__}.{given.__qualname__} cannot lock for this application, which {waits}: give"
            f' the URL of an engine, such as "redis://...", {name}.from_url(...), or'
            f" {name}.from_client(client) for a ready client"
        )
    return kind.from_url(cast("str", locks), **options), True


def refuse_engine(options: Mapping[str, Any]) -> None:
    """Raise ``TypeError`` for an engine that is given as one of the options, and not as ``locks``."""
    for name in {"url", "engine"} & options.keys():
        raise TypeError(
            f"there is no option {name!r}: the engine's URL is given as locks=, or second and without a"
            ' name, as in (app, "redis://...")'
        )


def refuse_other_application(app: object, kind: type) -> None:
    """Raise ``TypeError`` for what is no application of a framework, such as an engine's URL."""
    if not isinstance(app, kind):
        raise TypeError(
            f"WebLock takes the {kind.__name__} application first, and was given {shown(app)}: write"
            ' WebLock(app, "redis://..."), or WebLock(locks="redis://...") and later init_app(app)'
        )


def shown(value: object) -> str:
    """Return an argument of a wrong kind for a message: a string may be a URL with a password."""
    if not isinstance(value, str):
        return f"{value!r:.100}"
    return f"{urls.without_secrets(value)!r:.100}" if "://" in value else urls.shown(value)


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
    """List the rules of such a middleware; of a request, the rule that locks it."""
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


class Asked(NamedTuple):
    """A request that is asked about: its method, ``WEBSOCKET`` for a websocket, and its decoded path."""

    method: str
    path: str

    @classmethod
    def of(cls, method: str, target: str) -> Self:
        """Return the request to a path as a client sends it. Raises ``ConfigurationError``."""
        if not target.startswith("/"):
            raise ConfigurationError(f'{target!r:.80} is not a path: it must start with "/"')
        return cls(method.upper(), unquote(target.partition("?")[0]))


@dataclass(frozen=True)
class Locked:
    """A route, a rule or a task, and what it locks."""

    what: str
    """The place that locks, such as ``POST /items/{item_id}``."""
    keys: Sequence[KeyTemplate | KeyFunction | str] = ()
    """Empty for what serves a request without a lock."""
    options: Mapping[str, object] = field(default_factory=dict)
    """Those that this lock has of its own."""
    locks: BaseLocks | None = None
    """``None`` if the application has none yet."""
    guard: str = LEASE_GUARD
    order: str = ""
    """What comes before the lock and after it, authentication above all."""

    def facts(self) -> dict[str, Any]:
        """Return what ``--json`` prints."""
        keys = [key.text if isinstance(key, KeyTemplate) else key for key in self.keys]
        keys = [key if isinstance(key, str) else name_of(key) for key in keys]
        options = dict(self.options)
        for name, value in options.items():
            if callable(value):
                options[name] = name_of(value)
            elif not (value is None or isinstance(value, str | int | float | list)):
                options[name] = str(value)
        return {
            "what": self.what,
            "keys": keys,
            "options": options,
            "guard": self.guard,
            "engine": self.locks and self.locks.engine,
            "scope": self.locks and self.locks.scope,
            "order": self.order,
        }

    def __str__(self) -> str:
        if not self.keys:
            return f"{self.what}\n  locks nothing"
        facts = self.facts()
        options = (f"{name}={value!r}" for name, value in facts["options"].items())
        lines = {
            "keys": ", ".join(facts["keys"]),
            "options": ", ".join(options),
            "guard": self.guard,
            "engine": f"{facts['engine']} (scope: {facts['scope']})" if self.locks else "",
            "order": self.order,
        }
        told = [f"  {f'{name}:':<9}{text}" for name, text in lines.items() if text]
        return "\n".join([self.what, *told])
