"""A lease as a block of its own."""

from __future__ import annotations

import uuid

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
    """It is refused where it is given, on either face: on the day of a loss nobody reads its error."""
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
