"""A lease as a block of its own."""

from __future__ import annotations

import asyncio
import copy
import pickle
import uuid
from collections.abc import Callable

import pytest

from weblock import AsyncLocks, LeaseLost, Locks


def test_a_lease_ends_with_its_block() -> None:
    """Whoever has acquired may leave the release to a ``with`` block."""
    with Locks.from_url(f"memory://{uuid.uuid4().hex}") as locks:
        lease = locks.try_acquire("job")
        assert lease
        with lease as same:
            assert same is lease
            assert locks.try_acquire("job") is None
        with locks.acquire("job", wait=0):
            pass
        locks.acquire("job", wait=0).release()


async def test_a_lease_of_asyncio_does_too() -> None:
    """The same with ``async with``."""
    async with AsyncLocks.from_url(f"memory://{uuid.uuid4().hex}") as locks:
        async with await locks.acquire("job") as lease:
            assert lease.held
        assert not lease.held
        await (await locks.acquire("job", wait=0)).release()


def test_a_loss_is_told_at_the_end_of_the_block() -> None:
    """A block that overlooked the loss of its lease does not end as if nothing had happened."""
    with Locks.from_url(f"memory://{uuid.uuid4().hex}") as locks:
        with pytest.raises(LeaseLost), locks.acquire("job"):
            locks.force_release("job")
        failure = ValueError("mine")

        def fail() -> None:
            with locks.acquire("job"):
                locks.force_release("job")
                raise failure

        with pytest.raises(ValueError, match="mine"):
            fail()
        assert "was lost" in failure.__notes__[0]


async def never() -> None:
    """A callback that nobody would await."""


@pytest.mark.parametrize("what", ["on_lost", "on_ask_release"])
@pytest.mark.parametrize(("callback", "remedy"), [(never, "is async"), (7, "give a function")])
async def test_a_callback_that_would_do_nothing_is_refused(
    what: str, callback: object, remedy: str
) -> None:
    """It is refused where it is given, on either API: on the day of a loss nobody reads its error."""
    url = f"memory://{uuid.uuid4().hex}"
    with (
        Locks.from_url(url) as locks,
        locks.hold("a") as lease,
        pytest.raises(TypeError, match=remedy),
    ):
        getattr(lease, what)(callback)
    async with AsyncLocks.from_url(url) as async_locks, async_locks.hold("a") as async_lease:
        with pytest.raises(TypeError, match=remedy):
            getattr(async_lease, what)(callback)


@pytest.mark.parametrize("kind", [Locks, AsyncLocks])
@pytest.mark.parametrize("copied", [pickle.dumps, copy.copy, copy.deepcopy])
async def test_a_copy_is_refused_with_what_to_do_instead(
    kind: type[Locks | AsyncLocks], copied: Callable[[object], object]
) -> None:
    """Locks and leases belong to their process; the error names no internals but the remedy."""
    locks = kind.from_url(f"memory://{uuid.uuid4().hex}")
    with pytest.raises(TypeError, match=r"Locks.from_url\(\.\.\.\) where it is needed"):
        copied(locks)
    lease = locks.acquire("key") if isinstance(locks, Locks) else await locks.acquire("key")
    with pytest.raises(TypeError, match=r"take_over\(token\) there"):
        copied(lease)


async def test_a_trial_that_is_not_awaited_is_no_answer() -> None:
    """It was true before, and nothing was locked; awaited in any way, it is the lease or ``None``."""
    async with AsyncLocks.from_url(f"memory://{uuid.uuid4().hex}") as locks:
        with pytest.raises(TypeError, match="write 'await' before it"):
            bool(trial := locks.try_acquire("key"))
        lease = await trial
        assert lease
        task = asyncio.create_task(locks.try_acquire("key"))
        found = await asyncio.gather(task, asyncio.wait_for(locks.try_acquire("key"), 60))
        assert found == [None, None]
        await lease.release()
        del trial
        with pytest.warns(RuntimeWarning, match="never awaited"):
            locks.try_acquire("key")
