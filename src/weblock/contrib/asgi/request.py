"""The leases of one request."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final, Unpack
from urllib.parse import quote

from ..._options import HoldOptions
from ..._platform.logs import logger
from ..._runtime.clock import acting_for, begin_whole
from ...aio import AsyncLease, AsyncLocks
from ...errors import ConfigurationError, LeaseLost
from ...keys import in_order
from .inbox import Inbox
from .policy import Policy
from .protocol import Scope
from .waiting import Waiting

SCOPE_KEY: Final = "weblock"


class RequestLocks:
    """Acquires for one request, and keeps what it has acquired until the layer releases it.

    ``policy`` says how the response is held back; it is ``None`` until the request locks. A
    framework's adapter may say that it has ``interrupted`` a request whose lease was lost.
    """

    __slots__ = (
        "_by_key",
        "_inbox",
        "_leases",
        "_method",
        "_one_at_a_time",
        "_over",
        "_path",
        "_policy",
        "_unwanted",
        "_waiting",
        "_whole",
        "headers",
        "interrupted",
        "locks",
        "policy",
        "streams",
    )

    def __init__(self, locks: AsyncLocks, scope: Scope, inbox: Inbox, policy: Policy) -> None:
        self.locks = locks
        self._inbox = inbox
        # Not the scope itself, which has us: that cycle would be left to the garbage collector.
        self._method: str | None = scope["method"] if scope["type"] == "http" else None
        self._path: str = scope["path"]
        self._policy = policy
        self._leases: list[AsyncLease] = []
        self._by_key: dict[str, AsyncLease] = {}
        self._one_at_a_time = asyncio.Lock()
        self._whole: object = None
        self._waiting: Waiting | None = None
        self._unwanted = False
        self._over = False
        self.headers: list[tuple[bytes, bytes]] = []
        """What the response is to have besides its own."""
        self.policy: Policy | None = None
        self.streams = False
        self.interrupted = False

    def begin(self) -> None:
        """Has all that runs in this context, and comes of it, know what the request holds."""
        self._whole = begin_whole()

    @property
    def any_held(self) -> bool:
        """Whether something is to be released."""
        return bool(self._leases)

    @property
    def over(self) -> bool:
        """Whether the request has ended."""
        return self._over

    def stop_waiting(self) -> None:
        """Has the request wait for no lock, neither for the present one nor for another."""
        self._unwanted = True
        if self._waiting:
            self._waiting.end()

    def hold_back(self, background: Callable[[], bool] | None = None) -> None:
        """Have the response wait until the work is done, if none of it has been sent yet.

        ``background`` tells whether tasks follow the response, for which it does not wait.
        """
        if self._method is None:
            return
        if background:
            self.policy = replace(self._policy, background=background)
        elif self.policy is None:
            self.policy = self._policy

    async def acquire(self, *keys: str, **options: Unpack[HoldOptions]) -> AsyncLease:
        """The lease of the keys; those that this request holds already are not acquired again.

        Waits as ``AsyncLocks.acquire`` does, and raises what it raises; gives up when the client
        has gone. Two requests that acquire the same keys one by one, in different orders, wait for
        one another until one of them times out: acquire keys that belong together in one call.
        Raises ``ConfigurationError`` when the request has ended, for nobody would release.
        """
        wanted = in_order(keys)
        self.hold_back()
        async with self._one_at_a_time:
            self._refuse_if_over()
            missing = [key for key in wanted if key not in self._by_key]
            if missing:
                lease = await self._wait_for(missing, options)
                await self._keep(lease, missing)
                if len(missing) == len(wanted):
                    return lease
        leases = [self._by_key[key] for key in wanted]
        lease = leases[0] if wanted == leases[0].keys else AsyncLease.joined(leases, wanted)
        lease.check()
        return lease

    def loss(self) -> LeaseLost | None:
        """What says that a lease is lost, if one is."""
        for lease in self._leases:
            try:
                lease.check()
            except LeaseLost as error:
                return error
        return None

    async def release(self) -> LeaseLost | None:
        """Gives back everything. Returns the loss, if a lease was lost before."""
        self._over = True
        loss: LeaseLost | None = None
        for lease in reversed(self._leases):
            try:
                await lease.release()
            except LeaseLost as error:
                loss = error
            except Exception:  # The others are to be released all the same.
                logger.exception("the lease of %s was not released", lease.keys)
        self._leases.clear()
        self._by_key.clear()
        if self.policy:
            self.policy = self._policy  # What tells of background tasks may refer to us.
        return loss

    def _refuse_if_over(self) -> None:
        if self._over:
            raise ConfigurationError(
                "this request has ended: a task that outlives it holds its locks by itself, with"
                " AsyncLocks.hold"
            )

    async def _keep(self, lease: AsyncLease, keys: Sequence[str]) -> None:
        if self._over:
            await lease.release()
            self._refuse_if_over()
        self._leases.append(lease)
        self._by_key.update(dict.fromkeys(keys, lease))
        self._inbox.withhold_disconnect()

    async def _wait_for(self, keys: Sequence[str], options: HoldOptions) -> AsyncLease:
        options.setdefault("label", self._label())
        began = time.perf_counter()
        try:
            return await self._while_client_is_there(keys, options)
        finally:  # Also where it was in vain: a 409 tells how long it took.
            waited = 1000 * (time.perf_counter() - began)
            self.headers.append((b"server-timing", f"lock;dur={waited:.1f}".encode()))

    async def _while_client_is_there(self, keys: Sequence[str], options: HoldOptions) -> AsyncLease:
        try:
            with (
                Waiting(self._inbox, unwanted=self._unwanted) as self._waiting,
                acting_for(self._whole),
            ):
                return await self.locks.acquire(*keys, **options)
        finally:
            self._waiting = None

    def _label(self) -> str:
        method = self._method or "WEBSOCKET"
        return f"{self.locks.label} {method} {quote(self._path, errors='replace')}"


def request_locks(scope: Scope) -> RequestLocks:
    """The locks of the request whose scope this is.

    Raises ``ConfigurationError`` where there is no request layer around the application, or no
    rule of a ``LockMiddleware`` matches.
    """
    found = scope.get(SCOPE_KEY)
    if not isinstance(found, RequestLocks):
        raise ConfigurationError(
            "this application has no lock layer: call"
            ' weblock.contrib.fastapi.install(app, "redis://...") where the app is made, once;'
            " or, under LockMiddleware, have a rule for this request"
        )
    return found
