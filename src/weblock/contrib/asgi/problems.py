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
        """Answers a request, or refuses a websocket that was not accepted yet."""
        if scope["type"] == "http":
            await self._respond(send, "http.response")
        elif "websocket.http.response" in (scope.get("extensions") or {}):
            await self._respond(send, "websocket.http.response")
        else:
            await send(self.as_close())

    def as_close(self) -> Message:
        """The message that closes a websocket."""
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
"""From a problem, and the error that it comes of, to the problem that is answered."""


def problem_of(
    error: BaseException | None, rewrite: Rewrite | None = None, *, debug: bool = False
) -> Problem | None:
    """The problem that an error of weblock is to a client; ``None`` for one that is no such.

    With ``debug``, that of an outage names the engine.
    """
    found = problems.problem_of(error, debug=debug)
    if found is None:
        return None
    problem = Problem(**vars(found))
    return rewrite(problem, error) if rewrite and isinstance(error, WeblockError) else problem
