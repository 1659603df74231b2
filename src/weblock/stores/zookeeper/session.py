"""The session of a process: one kazoo client, which all stores of an engine share.

Requests take effect in the order in which they were sent. So a release undoes an acquire that was
sent before it, even if nobody waits for the answer to that any more.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import threading
from typing import Any, Final

from kazoo.client import KazooClient
from kazoo.protocol.states import KazooState, KeeperState
from kazoo.security import CREATOR_ALL_ACL

from ..._platform.forks import close_in_children
from .answers import AsyncResult, Handler
from .internals import SOCKETS, Socket, shut_down
from .nodes import Layout
from .settings import Settings

_CLOSING: Final = 5.0
"""Seconds to wait for the servers to confirm the end of a session."""

_RETRY: Final = {"max_tries": -1, "delay": 0.05, "backoff": 2, "max_delay": 1.0}
"""How kazoo looks for a server: without end."""


class Unshown(str):
    """A text whose ``repr`` shows nothing: kazoo logs its requests, the login among them."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "'...'"


class Session:
    """Reconnects by itself when it has lost its connection, and starts anew when it has expired."""

    def __init__(self, settings: Settings) -> None:
        self.layout = Layout(settings.root)
        self.client = self._new_client(settings)
        self._sockets = [Socket(self.client, name) for name in SOCKETS]
        for each in self._sockets:
            close_in_children(each)
        self.ready: AsyncResult = self.client.handler.async_result()
        """What is there while there is a connection."""
        self.ended = False
        """Whether kazoo has given the session up, as it does where it fails itself."""
        self.client.add_listener(self._changed)
        try:
            self.client.start_async()
        except RuntimeError:  # It had a thread for one part, perhaps, and not for another.
            with contextlib.suppress(AttributeError):  # It expects to have begun.
                self._close()
            raise

    @property
    def name(self) -> str:
        """Return the name of the session in our nodes."""
        client_id = self.client.client_id
        return f"{(client_id[0] or 0) % 2**64:x}" if client_id else "none"

    def prepare(self) -> list[AsyncResult]:
        """Create the nodes above all others, and our sign of life.

        On a new connection these writes come first. A server that lags behind then has to catch up before
        it answers a read, so that one shows what requests without an answer have made.
        """
        create = self.client.create_async
        above = [create(path) for path in self.layout.above]
        return [*above, create(self.layout.of_session(self.name), ephemeral=True)]

    def why_not_ready(self) -> str:
        """Say why there is no connection although it was waited for.

        kazoo tells its listeners of no end that follows on another loss, such as a refused password.
        """
        if self.client.client_state not in {KeeperState.CLOSED, KeeperState.AUTH_FAILED}:
            return "no server can be reached"
        self.ended = True
        return "the session has ended, and begins anew with the next request"

    def hang_up(self) -> None:
        """End a connection whose server does not answer, so that kazoo looks for another.

        kazoo notices that by its own pings only, which it does not send while requests are under way.
        """
        shut_down(self.client)

    def close(self) -> None:
        """End the session, and with it our places. A server that hangs is not waited for."""
        thread = self.begin_to_close()
        if thread:
            thread.join(_CLOSING)

    def begin_to_close(self) -> threading.Thread | None:
        """End the session in the background, or else here: then there is nothing to wait for."""
        thread = threading.Thread(target=self._close, name="weblock-closing", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # The machine has no more threads.
            self._close()
            return None
        return thread

    def after_fork(self) -> None:
        """Keep a forked child from waiting, at its end, for kazoo's threads: they run in its parent."""
        atexit.unregister(self.client.handler.stop)

    def _new_client(self, settings: Settings) -> KazooClient:
        credentials = Unshown(settings.credentials)
        return KazooClient(
            ",".join(settings.hosts),
            timeout=settings.session_timeout,
            handler=Handler(),
            connection_retry=dict(_RETRY),
            auth_data=[("digest", credentials)] if credentials else None,
            default_acl=CREATOR_ALL_ACL if credentials else None,
        )

    def _close(self) -> None:
        self.client.stop()
        self.client.close()

    def _changed(self, state: KazooState) -> None:
        """Handle a change of state. Runs in kazoo's thread, which must not wait."""
        if state == KazooState.CONNECTED:
            self.prepare()
            self.ready.set(self)
            return
        if self.ready.ready():
            self.ready = self.client.handler.async_result()
        # A session that has expired is begun anew by kazoo; nothing follows on a closed one.
        self.ended = self.client.client_state == KeeperState.CLOSED


async def blocking_answer(result: AsyncResult, timeout: float) -> Any:
    """Wait in this thread for the result of an exchange, and return it."""
    return result.wait_for(timeout)


async def asyncio_answer(result: AsyncResult, timeout: float) -> Any:
    """Wait for an answer in a task: kazoo's thread passes it to the loop."""
    if not result.ready():
        loop = asyncio.get_running_loop()
        arrived = loop.create_future()

        def arrive(_result: AsyncResult) -> None:
            with contextlib.suppress(RuntimeError):  # The loop is closed, and its tasks with it.
                loop.call_soon_threadsafe(_set, arrived)

        result.rawlink(arrive)
        try:
            async with asyncio.timeout(max(0.0, timeout)):
                await arrived
        except TimeoutError:
            pass
        finally:
            result.unlink(arrive)
    return result.get(block=False)


def _set(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
