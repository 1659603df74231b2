"""What is watched: functions that make items, one at a time or not."""

from __future__ import annotations

import asyncio
import itertools

from weblock import AsyncLocks, Locks

ENGINE = "memory://testing-shop"

locks = Locks.from_url(ENGINE, wait=60)
async_locks = AsyncLocks.from_url(ENGINE, wait=60)

_ids = itertools.count(1)


def make_item() -> int:
    """Makes one, and waits for nobody."""
    return next(_ids)


async def make_item_async() -> int:
    """Makes one, and lets other tasks run."""
    await asyncio.sleep(0)
    return next(_ids)


class Maker:
    @staticmethod
    def make_static() -> int:
        return next(_ids)

    @classmethod
    def make_class(cls) -> int:
        return next(_ids)

    def make(self) -> int:
        return next(_ids)


def locked() -> int:
    """Makes one, alone."""
    with locks.hold("item"):
        return make_item()


def two_at_once() -> int:
    """Makes one, beside one other."""
    with locks.hold("items", limit=2):
        return make_item()


async def two_at_once_async() -> int:
    """Makes one, beside one other task."""
    async with async_locks.hold("items_async", limit=2):
        return await make_item_async()


def unlocked() -> int:
    """Makes one, whoever else does."""
    return make_item()


def fails() -> int:
    """Makes one, alone, and fails."""
    with locks.hold("item"):
        make_item()
        raise OSError("the printer is on fire")


async def locked_async() -> int:
    """Makes one, alone."""
    async with async_locks.hold("item"):
        return await make_item_async()


async def unlocked_async() -> int:
    """Makes one, whoever else does."""
    return await make_item_async()


async def blocks_its_loop() -> int:
    """Makes one, while no other task can run."""
    return make_item()
