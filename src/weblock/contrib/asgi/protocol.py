"""The types of ASGI 3, which has no package of its own to import them from, and problems as responses."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final

from ..kit import Problem

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


TRY_AGAIN_LATER: Final = 1013
"""The close code of a websocket, where the server cannot send a response instead."""


class ProblemResponse:
    """A problem as an ASGI application, which responds with it."""

    def __init__(self, problem: Problem) -> None:
        self._problem = problem

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        """Respond to a request, or reject a websocket that was not accepted yet."""
        problem, kind = self._problem, "http.response"
        if scope["type"] != "http":
            kind = "websocket.http.response"
            if kind not in (scope.get("extensions") or {}):
                await send(close_with(problem))
                return
        headers = [
            (name.lower().encode(), value.encode()) for name, value in problem.fields.items()
        ]
        await send({"type": f"{kind}.start", "status": problem.status, "headers": headers})
        await send({"type": f"{kind}.body", "body": problem.body})


def close_with(problem: Problem) -> Message:
    """Return the message that closes a websocket because of a problem."""
    return {"type": "websocket.close", "code": TRY_AGAIN_LATER, "reason": problem.code}
