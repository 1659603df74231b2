"""``LockMiddleware``: locks by URL, for any ASGI application."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Unpack

from ..._options import Duration, LocksOptions
from ...aio import AsyncLocks
from ...errors import ConfigurationError, StrangePath
from ...keys import in_order
from ..problems import Rewrite, checked
from ..rules import Match, Rule, RuleSet
from .answers import answer_of
from .layer import RequestLayer, opened
from .protocol import App, Receive, Scope, Send
from .request import SCOPE_KEY, AsyncRequestLocks


class LockMiddleware:
    """Locks requests by rules: each holds the key of the first rule that matches it.

    ``app`` runs only while the request holds its lease, which is released when ``app`` has
    returned. Meanwhile the response is held back. Requests that no rule matches reach ``app``
    untouched.

    A request that does not get its lock in time is answered with 409, one whose key cannot be made
    or whose path routers may read in different ways, with 400, and one whose engine is down or whose
    lease was lost with 503, as problem details.

    Args:
        app: The application.
        locks: An ``AsyncLocks``, or an engine's URL and the options of ``LocksOptions``; ``file://`` by
            default. Locks that are created here free their connections when the application shuts down,
            and open again when they are used again.
        rules: ``Rule`` objects or mappings, in a list or by their names; see ``RuleSet``.
        hold_back: For how many seconds, at most, a complete response waits for ``app`` to return;
            without limit by default.
        rewrite: ``rewrite(problem, error)`` returns the problem with another status, body or
            headers.
        root_path: Rules match the path below it: the one that ``app`` has of its own, as in
            ``FastAPI(root_path="/api")``, or else the server's.

    Raises:
        ConfigurationError: A rule or an option cannot work.
    """

    def __init__(
        self,
        app: App,
        locks: AsyncLocks | str | Sequence[str] | None = None,
        rules: RuleSet | Iterable[Rule | Mapping[str, Any]] | Mapping[str, Any] | str = (),
        *,
        root_path: str | None = None,
        hold_back: Duration | None = None,
        rewrite: Rewrite | None = None,
        **options: Unpack[LocksOptions],
    ) -> None:
        self._app = app
        self._rules = rules if isinstance(rules, RuleSet) else RuleSet(rules)
        self._root_path = getattr(app, "root_path", None) if root_path is None else root_path
        locks, owned = opened(locks, options)
        if not len(self._rules):
            raise ConfigurationError(
                "LockMiddleware has no rules, so it would lock nothing: say what to lock, as in"
                ' rules=[Rule("/shops/{shop}/items", methods=["POST"], key="shop:{shop}")]'
            )
        answer = functools.partial(answer_of, rewrite=checked(rewrite))
        self._layer = RequestLayer(
            app, locks, hold_back=hold_back, owns_locks=owned, of_rules=True, answer=answer
        )

    @property
    def app(self) -> App:
        """The application that it wraps."""
        return self._app

    @property
    def rules(self) -> RuleSet:
        """Its rules."""
        return self._rules

    @property
    def root_path(self) -> str:
        """The prefix that it removes from a path; empty if only the server knows it."""
        return self._root_path or ""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request or websocket; pass anything else on."""
        match scope["type"]:
            case "http":
                found = self._find(scope["method"], scope)
            case "websocket":
                found = self._find("WEBSOCKET", scope)
            case _:
                await self._layer(scope, receive, send)
                return
        if found is None:
            await self._app(scope, receive, send)
        else:
            inside = functools.partial(self._inside, found)
            await self._layer.serve(inside, scope, receive, send)

    def _find(self, method: str, scope: Scope) -> Match | StrangePath | None:
        root_path = self._root_path or scope.get("root_path", "")
        try:
            return self._rules.find(method, scope["path"], root_path=root_path)
        except StrangePath as error:
            return error

    async def _inside(
        self, found: Match | StrangePath, scope: Scope, receive: Receive, send: Send
    ) -> None:
        if isinstance(found, StrangePath):
            raise found  # The layer answers it.
        keys = found.keys(
            query=scope.get("query_string", b"").decode("latin-1"),
            headers=functools.partial(_header, scope),
        )
        of_rules: AsyncRequestLocks = scope[SCOPE_KEY]  # The layer has put it there.
        await of_rules.hold(in_order(keys), found.rule.options)
        await self._app(scope, receive, send)


def _header(scope: Scope, wanted: str) -> list[str]:
    name = wanted.encode()
    return [value.decode("latin-1") for given, value in scope["headers"] if given.lower() == name]


# Which rules an application has, without sending it a request.


class RulesFound(NamedTuple):
    """The rules of one ``LockMiddleware``."""

    rules: RuleSet
    root_path: str
    """The prefix that the middleware removes from a path; empty if only the server knows it."""


def rules_of(app: object) -> Iterator[RulesFound]:
    """Return the rules of each ``LockMiddleware`` of an application, from the outside to the inside.

    It sees those that wrap the application, those that Starlette's ``add_middleware`` was given, and
    through other middleware that keeps what it wraps as ``app``.
    """
    seen: list[object] = []
    while app is not None and all(app is not each for each in seen):
        seen.append(app)
        if isinstance(app, LockMiddleware):
            yield RulesFound(app.rules, app.root_path)
        for each in getattr(app, "user_middleware", ()):
            if isinstance(each.cls, type) and issubclass(each.cls, LockMiddleware):
                yield _added(app, each)
        app = getattr(app, "app", None)


def _added(app: object, middleware: Any) -> RulesFound:
    given = inspect.signature(middleware.cls).bind(app, *middleware.args, **middleware.kwargs)
    rules, root_path = given.arguments.get("rules", ()), given.arguments.get("root_path")
    own = getattr(app, "root_path", "") if root_path is None else root_path
    return RulesFound(rules if isinstance(rules, RuleSet) else RuleSet(rules), own or "")
