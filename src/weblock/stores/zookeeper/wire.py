"""One runtime's way to the servers: it asks in the session, and waits as its runtime does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from kazoo.exceptions import (
    AuthFailedError,
    BadVersionError,
    NoAuthError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
)
from kazoo.handlers.threading import KazooTimeoutError

from ..._core.ports import Reply, Runtime
from ..._core.table import Answer
from ...errors import EngineUnavailable
from .answers import AsyncResult
from .nodes import LEASE
from .session import Session, asyncio_answer, blocking_answer

if TYPE_CHECKING:
    from . import ZooKeeperEngine

EXPECTED: Final = (BadVersionError, NodeExistsError, NoNodeError, NotEmptyError)
"""The errors of ZooKeeper for a node that has changed."""


class Key(NamedTuple):
    """The node of a key, in the session that asks about it."""

    session: Session
    node: str

    def path(self, name: str) -> str:
        return f"{self.node}/{name}"

    def lease_of(self, owner: str) -> str:
        return f"{self.node}/{LEASE}{owner}"


class Wire:
    """All methods that ask raise ``EngineUnavailable`` if there is no answer."""

    def __init__(self, engine: ZooKeeperEngine, runtime: Runtime) -> None:
        self.now = runtime.now
        self._engine = engine
        self._timeout = engine.settings.timeout
        self._wait_for = asyncio_answer if runtime.suspends else blocking_answer

    async def session(self) -> Session:
        """Return the session when it is connected. Anything sent before would be sent too late."""
        session = self._engine.session()
        try:
            await self._wait_for(session.ready, self._timeout)
        except KazooTimeoutError as error:
            raise self.unavailable(session.why_not_ready()) from error
        return session

    async def key(self, key: str, *, anew: bool = False) -> Key:
        """Return a key's node. With ``anew``, a server that lags behind first catches up."""
        session = await self.session()
        node = Key(session, session.layout.of_key(key))
        if anew:
            session.client.sync_async(node.node)
        return node

    async def all(self, *results: AsyncResult) -> list[Any]:
        """Return the results of requests, including the errors in ``EXPECTED``."""
        outcomes = await self.outcomes(*results)
        for outcome in outcomes:
            if isinstance(outcome, EngineUnavailable):
                raise outcome
        return outcomes

    async def outcomes(self, *results: AsyncResult) -> list[Any]:
        """Return each outcome by itself: ``EngineUnavailable`` if there was no answer."""
        until = self.now() + self._timeout
        outcomes = [await self._outcome(result, until - self.now()) for result in results]
        if any(
            isinstance(getattr(each, "__cause__", None), KazooTimeoutError) for each in outcomes
        ):
            self._engine.session().hang_up()
        return outcomes

    async def stamp(self, session: Session) -> float:
        """Return the servers' time, by their own clock."""
        (stat,) = await self.all(session.client.set_async(session.layout.sessions, b""))
        if isinstance(stat, Exception):
            raise self.unavailable(stat) from stat
        return float(stat.mtime / 1000)

    def reply(self, answer: Answer) -> Reply:
        """Return an answer that is true now, in the asking process's own time."""
        return Reply(answer, self.now())

    def unavailable(self, reason: str | Exception) -> EngineUnavailable:
        """Return the error to raise for a server's answer."""
        reason = reason if isinstance(reason, str) else _said(reason)
        return EngineUnavailable(self._engine.name, reason)

    async def _outcome(self, result: AsyncResult, timeout: float) -> Any:
        try:
            return await self._wait_for(result, timeout)
        except EXPECTED as error:
            return error
        except KazooTimeoutError as error:
            unavailable = self.unavailable(f"no answer within {self._timeout:g} s")
            unavailable.__cause__ = error
        except Exception as error:  # noqa: BLE001 - kazoo's own failures are no better than an outage
            unavailable = self.unavailable(error)
            unavailable.__cause__ = error
        return unavailable


def _said(error: Exception) -> str:
    if isinstance(error, AuthFailedError):
        return "it refuses the user and password of the URL"
    if isinstance(error, NoAuthError):
        return "the user of the URL may not write below its root: grant it all rights there"
    return str(error) or type(error).__name__
