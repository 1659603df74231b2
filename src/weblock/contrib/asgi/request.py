"""The leases of one request."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final, Unpack

from ..._face import HoldOptions
from ...aio import AsyncLease, AsyncLocks
from ...errors import ConfigurationError, LeaseLost
from .inbox import Inbox
from .outbox import Outbox
from .protocol import Scope

SCOPE_KEY: Final = "weblock"

LOOK_AFTER: Final = 0.05
"""Seconds of waiting after which it is looked whether the client is still there."""


class ClientGone(Exception):
    """The client left while its request was waiting for a lock."""


class RequestLocks:
    """Acquires for one request, and keeps what it has acquired until the layer releases it."""

    def __init__(
        self, locks: AsyncLocks, scope: Scope, inbox: Inbox, outbox: Outbox, hold_back: float
    ) -> None:
        self.locks = locks
        self._inbox = inbox
        self._outbox = outbox
        self._hold_back = hold_back
        self._scope = scope
        self._leases: dict[tuple[str, ...], AsyncLease] = {}
        self.background: Callable[[], bool] = lambda: False

    @property
    def any_held(self) -> bool:
        """Whether something is to be released."""
        return bool(self._leases)

    async def acquire(self, *keys: str, **options: Unpack[HoldOptions]) -> AsyncLease:
        """The lease of the keys: the one that this request has already, or a new one.

        Waits as ``AsyncLocks.acquire`` does, and raises what it raises; gives up when the client
        has gone.
        """
        wanted = tuple(sorted(keys))
        if wanted not in self._leases:
            options.setdefault("label", self._label())
            if self._scope["type"] == "http":
                self._outbox.hold_back(self._hold_back)
            began = time.perf_counter()
            self._leases[wanted] = await self._while_client_is_there(wanted, options)
            self._note_wait(time.perf_counter() - began)
            self._inbox.withhold_disconnect()
        return self._leases[wanted]

    async def release(self) -> LeaseLost | None:
        """Gives back everything. Returns the loss, if a lease was lost before."""
        loss: LeaseLost | None = None
        while self._leases:
            _, lease = self._leases.popitem()
            try:
                await lease.release()
            except LeaseLost as error:
                loss = error
        return loss

    async def _while_client_is_there(
        self, keys: tuple[str, ...], options: HoldOptions
    ) -> AsyncLease:
        watch: asyncio.Task[None] | None = None
        waiting = asyncio.timeout(None)

        def look() -> None:
            nonlocal watch
            watch = asyncio.ensure_future(self._inbox.until_gone())
            watch.add_done_callback(stop_waiting)

        def stop_waiting(ended: asyncio.Task[None]) -> None:
            if watch is ended and not ended.cancelled():
                waiting.reschedule(0)

        timer = asyncio.get_running_loop().call_later(LOOK_AFTER, look)
        try:
            async with waiting:
                return await self.locks.acquire(*keys, **options)
        except TimeoutError:
            if waiting.expired():
                raise ClientGone from None
            raise
        finally:
            timer.cancel()
            if watch:
                watch.cancel()
                watch = None

    def _label(self) -> str:
        method = self._scope.get("method", "WEBSOCKET")
        return f"{self.locks.label} {method} {self._scope['path']}"

    def _note_wait(self, seconds: float) -> None:
        timing = f"lock;dur={seconds * 1000:.1f}"
        self._outbox.headers.append((b"server-timing", timing.encode()))


def request_locks(scope: Scope) -> RequestLocks:
    """The locks of the request whose scope this is.

    Raises ``ConfigurationError`` where the request layer was not installed.
    """
    found = scope.get(SCOPE_KEY)
    if not isinstance(found, RequestLocks):
        raise ConfigurationError(
            "this application has no lock layer: call"
            ' weblock.contrib.fastapi.install(app, "redis://...") where the app is made, once'
        )
    return found
