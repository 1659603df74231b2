"""Problem details that an ASGI application sends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from ...errors import WeblockError
from .. import problems
from .protocol import Message, Receive, Scope, Send

TRY_AGAIN_LATER: Final = 1013
"""The close code of a websocket, where the server cannot send a response instead."""


class Problem(problems.Problem):
    """A problem response, which as an ASGI application sends itself."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        """Respond to a request, or reject a websocket that was not accepted yet."""
        if scope["type"] == "http":
            await self._respond(send, "http.response")
        elif "websocket.http.response" in (scope.get("extensions") or {}):
            await self._respond(send, "websocket.http.response")
        else:
            await send(self.as_close())

    def as_close(self) -> Message:
        """Return the message that closes a websocket."""
        return {"type": "websocket.close", "code": TRY_AGAIN_LATER, "reason": self.code}

    async def _respond(self, send: Send, kind: str) -> None:
        body = self.body
        fields = {
            "Content-Type": self.media_type,
            "Content-Length": str(len(body)),
            **self.headers,
        }
        headers = [(name.lower().encode(), value.encode()) for name, value in fields.items()]
        await send({"type": f"{kind}.start", "status": self.status, "headers": headers})
        await send({"type": f"{kind}.body", "body": body})


Rewrite = Callable[[Problem, WeblockError], Problem]
"""Returns the problem to respond with, from weblock's problem and the error that caused it."""


def problem_of(
    error: BaseException | None, rewrite: Rewrite | None = None, *, debug: bool = False
) -> Problem | None:
    """Return the problem that a client gets for an error; ``None`` if it is not weblock's.

    With ``debug``, that of an outage names the engine.
    """
    found = problems.problem_of(error, debug=debug)
    if found is None:
        return None
    problem = Problem(**vars(found))
    return rewrite(problem, error) if rewrite and isinstance(error, WeblockError) else problem
