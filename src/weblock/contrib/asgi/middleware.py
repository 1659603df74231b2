"""``LockMiddleware``: locks by URL, for any ASGI application."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Unpack

from ..._options import Duration, LocksOptions
from ...aio import AsyncLocks
from ...errors import StrangePath
from ..kit import (
    BODY_WAIT,
    ClientGone,
    Execution,
    Match,
    Rewrite,
    RuleMiddleware,
    Rules,
    answers,
    opened,
    parts_of,
)
from ..kit.idempotency import Answer
from .answers import ProblemResponse
from .layer import RequestLayer
from .protocol import App, Message, Receive, Scope, Send
from .request import SCOPE_KEY, AsyncRequestLocks


class LockMiddleware(RuleMiddleware[App]):
    """Locks requests by rules: each holds the key of the first rule that matches it.

    ``app`` runs only while the request holds its lease, which is released when ``app`` has
    returned. Meanwhile the response is held back. Requests that no rule matches reach ``app``
    untouched.

    A request that does not get its lock in time is answered with 409, one whose key cannot be made
    or whose path routers may read in different ways, with 400, one whose body does not arrive in time,
    with 408, and one whose engine is down or whose
    lease was lost with 503, as problem details.

    Args:
        app: The application.
        locks: An ``AsyncLocks``, or an engine's URL and the options of ``LocksOptions``; ``file://`` by
            default. Locks that are created here free their connections when the application shuts down,
            and open again when they are used again.
        rules: ``Rule`` objects or mappings, in a list or by their names; see ``RuleSet``.
        hold_back: For how many seconds, at most, a complete response waits for ``app`` to return;
            without limit by default.
        body_wait: For how many seconds (5), at most, a request that locks waits for the end of its body,
            or for each 64 KiB of it. ``None`` sets no limit, and reads nothing before the lock is acquired.
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
        locks: AsyncLocks | str | Sequence[str] = "file://",
        rules: Rules = (),
        *,
        root_path: str | None = None,
        hold_back: Duration | None = None,
        body_wait: Duration | None = BODY_WAIT,
        rewrite: Rewrite | None = None,
        **options: Unpack[LocksOptions],
    ) -> None:
        locks, owned = opened(AsyncLocks, locks, options)
        own = getattr(app, "root_path", None) if root_path is None else root_path
        super().__init__(app, locks, rules, own or "")
        answer = answers(ProblemResponse, rewrite)
        self._layer = RequestLayer(
            app,
            locks,
            hold_back=hold_back,
            body_wait=body_wait,
            owns_locks=owned,
            of_rules=True,
            answer=answer,
        )

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
            await self.app(scope, receive, send)
        else:
            inside = functools.partial(self._inside, found)
            await self._layer.serve(inside, scope, receive, send)

    def _find(self, method: str, scope: Scope) -> Match | StrangePath | None:
        root_path = self.root_path or scope.get("root_path", "")
        try:
            return self.rules.find(method, scope["path"], root_path=root_path)
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
            scope=scope,
        )
        of_rules: AsyncRequestLocks = scope[SCOPE_KEY]  # The layer has put it there.
        if spec := found.rule.once:
            assert self.texts
            await of_rules.read_ahead()
            body = await _whole(receive, spec.refuse_body)
            content_type = ",".join(_header(scope, "content-type"))
            asked = spec.asked_for(
                scope,
                method=scope["method"],
                path=scope["path"],
                sent=_header(scope, spec.header.lower()),
                parts=parts_of(scope.get("query_string", b""), body, content_type),
            )
            execution = Execution(self.texts, spec, asked, of_rules)
            if answer := await execution.begin(of_rules.hold):
                await send_answer(send, answer.replayed)
                return
            receive, send = _again(body, receive), functools.partial(note, execution, send)
        if keys:
            await of_rules.hold(keys, found.rule.lock.options)
        await self.app(scope, receive, send)


async def _whole(receive: Receive, refuse: Callable[[int], None]) -> bytes:
    """Return the body of a request. Raises ``ClientGone``, and what ``refuse`` raises for its size."""
    body, goes_on = bytearray(), True
    while goes_on:
        message = await receive()
        if message["type"] != "http.request":
            raise ClientGone
        body += message.get("body", b"")
        refuse(len(body))
        goes_on = message.get("more_body", False)
    return bytes(body)


def _again(body: bytes, receive: Receive) -> Receive:
    """Return a ``receive`` that returns a body that was read, and then what the server sends."""
    ahead = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive_again() -> Message:
        return ahead.pop() if ahead else await receive()

    return receive_again


async def send_answer(send: Send, answer: Answer) -> None:
    """Send a kept answer."""
    headers = [
        (name.encode("latin-1"), text.encode("latin-1")) for name, text in list(answer.headers)
    ]
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "http.response.body", "body": answer.body})


async def note(execution: Execution, send: Send, message: Message) -> None:
    """Send a message of the application, and note what belongs to its answer."""
    if message["type"] == "http.response.start":
        headers = message.get("headers", ())
        pairs = ((name.decode("latin-1"), value.decode("latin-1")) for name, value in headers)
        execution.start(message["status"], pairs)
    elif message["type"] == "http.response.body":
        execution.add(message.get("body", b""))
        if not message.get("more_body", False):
            execution.complete()
    elif message["type"] in ("http.response.pathsend", "http.response.zerocopysend"):
        execution.add(None)
    await send(message)


def _header(scope: Scope, wanted: str) -> list[str]:
    name = wanted.encode()
    return [
        value.decode("latin-1")
        for given, value in scope.get("headers", ())
        if given.lower() == name
    ]
