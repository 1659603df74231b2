"""Locks and leases that send Django's signals."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Unpack

from django.db import connections

from ..._face import BaseLease
from ..._options import HoldOptions
from ..._platform.logs import logger
from ..._platform.threads import callbacks
from ...aio import AsyncLease, AsyncLocks
from ...errors import EngineUnavailable, LockTimeout
from ...sync import Lease, Locks
from . import signals
from .transactions import open_transaction


class AnnouncingLocks(Locks):
    """The locks of one alias, for threads."""

    alias = ""

    def acquire(self, *keys: str, **options: Unpack[HoldOptions]) -> Lease:
        """As ``Locks.acquire``, and says how it ended."""
        if alias := open_transaction():
            logger.warning(
                "the lock of %.200r is acquired inside a transaction on the database %r, and will"
                " be released before its COMMIT: put atomic() inside the lock",
                ", ".join(keys),
                alias,
            )
        return self._announced(super().acquire, keys, options)

    def acquire_patiently(
        self,
        *keys: str,
        before_waiting: Callable[[], None],
        **options: Unpack[HoldOptions],
    ) -> Lease:
        """As ``acquire``, and calls ``before_waiting`` if the keys are not free at once."""
        ask = super().acquire

        def acquire(*keys: str, **options: Unpack[HoldOptions]) -> Lease:
            if self._options.of_call(options)[1] != 0:
                at_once: HoldOptions = {**options, "wait": 0, "on_unavailable": "raise"}
                try:
                    return ask(*keys, **at_once)
                except (LockTimeout, EngineUnavailable):
                    before_waiting()
            return ask(*keys, **options)

        return self._announced(acquire, keys, options)

    def _announced(
        self, acquire: Callable[..., Lease], keys: tuple[str, ...], options: HoldOptions
    ) -> Lease:
        began = time.monotonic()
        try:
            lease = AnnouncedLease(self.alias, acquire(*keys, **options))
        except LockTimeout as error:
            signals.timed_out.send_robust(type(self), alias=self.alias, keys=keys, error=error)
            raise
        if facts := lease.begin(began):
            signals.acquired.send_robust(type(self), **facts)
        return lease


class AnnouncingAsyncLocks(AsyncLocks):
    """The locks of one alias, for tasks."""

    alias = ""

    async def acquire(self, *keys: str, **options: Unpack[HoldOptions]) -> AsyncLease:
        """As ``AsyncLocks.acquire``, and says how it ended."""
        return await self._announced(super().acquire, keys, options)

    async def acquire_patiently(
        self,
        *keys: str,
        before_waiting: Callable[[], Awaitable[None]],
        **options: Unpack[HoldOptions],
    ) -> AsyncLease:
        """As ``acquire``, and calls ``before_waiting`` if the keys are not free at once."""
        ask = super().acquire

        async def acquire(*keys: str, **options: Unpack[HoldOptions]) -> AsyncLease:
            if self._options.of_call(options)[1] != 0:
                at_once: HoldOptions = {**options, "wait": 0, "on_unavailable": "raise"}
                try:
                    return await ask(*keys, **at_once)
                except (LockTimeout, EngineUnavailable):
                    await before_waiting()
            return await ask(*keys, **options)

        return await self._announced(acquire, keys, options)

    async def _announced(
        self,
        acquire: Callable[..., Awaitable[AsyncLease]],
        keys: tuple[str, ...],
        options: HoldOptions,
    ) -> AsyncLease:
        began = time.monotonic()
        try:
            lease = AnnouncedAsyncLease(self.alias, await acquire(*keys, **options))
        except LockTimeout as error:
            facts = {"alias": self.alias, "keys": keys, "error": error}
            await signals.timed_out.asend_robust(type(self), **facts)
            raise
        try:
            if facts := lease.begin(began):
                await signals.acquired.asend_robust(type(self), **facts)
        except BaseException:  # Whoever was cancelled meanwhile gets no lease.
            await lease.release()
            raise
        return lease


class _Announced(BaseLease):
    """What the leases of both faces say."""

    __slots__ = ("_alias", "_since")

    def __init__(self, alias: str, lease: BaseLease) -> None:
        super().__init__(lease._locker, lease._holdings)  # noqa: SLF001 - it takes the other's place
        self._alias = alias
        self._since: float | None = None

    def begin(self, began: float) -> dict[str, Any]:
        """What there is to say of an acquisition: nothing, where the section runs without lease."""
        if self.fence is None:
            return {}
        self._since = time.monotonic()
        self._on_lost(partial(callbacks.call, self._tell_loss))
        return {"alias": self._alias, "lease": self, "waited": self._since - began}

    def _end(self) -> dict[str, Any]:
        """What there is to say of a release: nothing, the second time."""
        since, self._since = self._since, None
        if since is None:
            return {}
        return {"alias": self._alias, "lease": self, "held_for": time.monotonic() - since}

    def _tell_loss(self) -> None:
        if signals.lost.receivers:
            _send_lost({"alias": self._alias, "lease": self})


def _send_lost(facts: Mapping[str, Any]) -> None:
    try:
        sender = AnnouncingLocks if isinstance(facts["lease"], Lease) else AnnouncingAsyncLocks
        signals.lost.send_robust(sender, **facts)
    finally:
        connections.close_all()


class AnnouncedLease(_Announced, Lease):
    """A lease of threads."""

    __slots__ = ()

    def release(self) -> None:
        """As ``Lease.release``, and says so."""
        super().release()
        if facts := self._end():
            signals.released.send_robust(AnnouncingLocks, **facts)


class AnnouncedAsyncLease(_Announced, AsyncLease):
    """A lease of tasks."""

    __slots__ = ()

    async def release(self) -> None:
        """As ``AsyncLease.release``, and says so."""
        await super().release()
        if facts := self._end():
            await signals.released.asend_robust(AnnouncingAsyncLocks, **facts)
