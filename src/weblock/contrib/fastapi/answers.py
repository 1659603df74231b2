"""What the errors of weblock are answered with, in the words of the application."""

from __future__ import annotations

import inspect
from collections.abc import MutableMapping
from typing import TYPE_CHECKING, Any, Final

from fastapi.requests import HTTPConnection, Request

from ...errors import EngineUnavailable, InvalidKey, LeaseLost, LockTimeout, WeblockError
from ..asgi import Problem, Rewrite, problem_of
from ..asgi.protocol import App, Receive, Scope, Send

if TYPE_CHECKING:
    from fastapi import FastAPI

ANSWERED: Final = (LockTimeout, EngineUnavailable, LeaseLost, InvalidKey)


class Answers:
    """Those of one application: its own exception handlers, or else problems."""

    def __init__(self, app: FastAPI, rewrite: Rewrite | None) -> None:
        handlers: MutableMapping[Any, Any] = app.exception_handlers
        self._handlers = handlers
        self._rewrite = rewrite
        for error in ANSWERED:
            handlers.setdefault(error, self._handle)

    def problem(self, error: WeblockError) -> Problem:
        """The problem that ``error`` is here."""
        problem = problem_of(error, self._rewrite)
        assert problem is not None
        return problem

    def are_ours(self, error: WeblockError) -> bool:
        """Whether such an error is answered with a problem, and not by a handler of the user's."""
        return bool(self._handler_of(error) == self._handle)

    def of(self, error: BaseException) -> App | None:
        """The answer to an error that got out of the application, as it would answer itself.

        So it is with an error of an application that is mounted, and with a loss that nobody in
        the application was there to hear of.
        """
        handler = self._handler_of(error)
        if handler is None:
            return None

        async def answer(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] == "websocket":
                assert isinstance(error, WeblockError)
                await self.problem(error)(scope, receive, send)
                return
            response = handler(Request(scope, receive), error)
            response = await response if inspect.isawaitable(response) else response
            await response(scope, receive, send)

        return answer

    def _handler_of(self, error: BaseException) -> Any:
        """That of its class, or of the nearest of ours that it is a kind of."""
        ours = (each for each in type(error).__mro__ if issubclass(each, WeblockError))
        return next((self._handlers[each] for each in ours if each in self._handlers), None)

    async def _handle(self, connection: HTTPConnection, error: WeblockError) -> Problem:
        """Inside the application's middleware, so that CORS headers and logs are as for others."""
        if connection.scope["type"] == "websocket":
            raise error  # The layer knows whether it was accepted.
        return self.problem(error)
