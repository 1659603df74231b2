"""A disk that is full."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.renewals import renewed
from tests.support.waiting import PATIENCE
from weblock import AsyncLocks, EngineUnavailable, LeaseLost, Locks
from weblock.stores.file import FileEngine

from .keys import key_outside, record_of


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "disk"
    place.mkdir()
    mounting = ["mount", "-t", "tmpfs", "-o", "size=2m,mode=0755", "tmpfs", str(place)]
    try:
        done = subprocess.run(mounting, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("there is no mount command, and so no small disk to fill")
    if done.returncode:
        pytest.skip(f"no small disk to fill can be mounted here: {done.stderr.strip()}")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def fill(disk: Path) -> None:
    """Leaves no byte free."""
    with (disk / "filler").open("wb", buffering=0) as filler:
        try:
            while True:
                filler.write(bytes(4096))
        except OSError:
            pass


def test_on_a_full_disk_leases_are_renewed_and_released(disk: Path) -> None:
    """What a lease needs was reserved when it was made."""
    with Locks.from_url(f"file://{disk}/locks", ttl=PATIENCE) as locks:
        leases = [locks.acquire(f"key {n}") for n in range(100)]
        fill(disk)
        renewed(locks)
        for lease in leases:
            lease.extend(1)
            lease.release()
        for n in range(100):
            locks.acquire(f"key {n}", wait=0).release()


def test_on_a_full_disk_who_needs_more_room_is_told(disk: Path) -> None:
    """A key whose record file would have to be made first cannot be had, and the error says why."""
    with Locks.from_url(f"file://{disk}/locks") as locks:
        locks.acquire("k").release()
        fill(disk)
        other = key_outside(record_of(disk / "locks", "k"))
        with pytest.raises(EngineUnavailable, match="No space left on device"):
            locks.acquire(other, wait=0)
        locks.acquire("k", wait=0).release()
        (disk / "filler").unlink()
        locks.acquire(other, wait=0).release()


async def test_on_a_full_disk_a_queue_that_outgrows_its_room_refuses_and_goes_on(
    disk: Path,
) -> None:
    """Those who are in the queue are served; who would be too many is told; the holder releases."""
    async with AsyncLocks.from_url(f"file://{disk}/locks", wait=PATIENCE) as locks:
        lease = await locks.acquire("k", ttl=PATIENCE)
        fill(disk)

        async def one() -> str:
            try:
                async with locks.hold("k"):
                    return "served"
            except LeaseLost:  # On a machine too slow to confirm it in time.
                return "served"
            except EngineUnavailable as full:
                return full.message[-24:]

        waiting = [asyncio.create_task(one()) for _ in range(300)]
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        lease.check()
        await lease.release()
        outcomes = await asyncio.gather(*waiting)
        assert set(outcomes) == {"served", " No space left on device"}
        assert outcomes.count("served") > 50


def test_an_engine_can_be_opened_where_the_disk_is_full(disk: Path) -> None:
    """A new process needs nothing of a full disk to lock keys that were locked before."""
    with Locks.from_url(f"file://{disk}/locks") as locks:
        locks.acquire("k").release()
        fill(disk)
        with Locks(FileEngine(f"{disk}/locks")) as others:
            others.acquire("k", wait=0).release()
