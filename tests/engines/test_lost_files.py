"""A directory that is deleted, moved away or cleaned while it is in use."""

from __future__ import annotations

import fcntl
import os
import shutil
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import pytest

from tests.support.renewals import renew_often
from tests.support.waiting import PATIENCE, eventually, waiters
from weblock import AsyncLocks, EngineUnavailable, LeaseLost, Locks, LockTimeout
from weblock.stores.file import FileEngine

from .keys import record_of
from .processes import Child


def delete(folder: Path) -> None:
    shutil.rmtree(folder)


def move(folder: Path) -> None:
    folder.rename(folder.with_name("moved"))


def replace(folder: Path) -> None:
    """Moves the directory out of the way, and puts an empty one there."""
    move(folder)
    folder.mkdir(0o700)


def of_the_key(folder: Path) -> None:
    record_of(folder, "k").unlink()


@pytest.mark.parametrize("lose", [delete, move, replace, of_the_key])
def test_a_holder_whose_record_is_lost_is_told(
    url: str, folder: Path, lose: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its next renewal finds out; the one who waited goes on, with a higher fence."""
    renew_often(monkeypatch)
    lost = threading.Event()
    with Locks.from_url(url, ttl=PATIENCE, wait=None) as locks, ThreadPoolExecutor(1) as pool:
        lease = locks.acquire("k")
        waiting = pool.submit(locks.acquire, "k")
        eventually(lambda: waiters(locks, "k") == 1)
        lease.on_lost(lost.set)
        lose(folder)
        assert lost.wait(PATIENCE)
        with pytest.raises(LeaseLost) as loss:
            lease.check()
        assert loss.value.reason == "taken"
        later = waiting.result(PATIENCE)
        assert later.fence > lease.fence
        later.release()


@pytest.mark.parametrize("lose", [delete, move, replace, of_the_key])
def test_a_release_finds_out_that_the_record_is_lost(
    url: str, folder: Path, lose: Callable[[Path], None]
) -> None:
    """One who gives back what nobody knows any more is told, and can have it again."""
    with Locks.from_url(url, ttl=60) as locks:
        lease = locks.acquire("k")
        lose(folder)
        with pytest.raises(LeaseLost) as loss:
            lease.release()
        assert loss.value.reason == "taken"
        assert locks.acquire("k", wait=0).fence > lease.fence


@pytest.mark.parametrize("lose", [delete, move, replace])
def test_processes_that_wait_meet_in_the_new_directory(
    folder: Path, child: Callable[..., Child], lose: Callable[[Path], None]
) -> None:
    """All who waited get the key, one after the other: they are at one about where it is now."""
    holder, *others = [child().open(ttl=3600, wait=None) for _ in range(4)]
    holder.run("lease = locks.acquire('k')")
    for other in others:
        other.begin("""
        with locks.hold('k') as lease:
            entered = time.monotonic()
            time.sleep(0.02)
            left = time.monotonic()
        entered, left, lease.fence
        """)
    with Locks.from_url(f"file://{folder}") as probe:
        eventually(lambda: waiters(probe, "k") == 3)
        lose(folder)
        sections = sorted(other.outcome() for other in others)
        for (_, left, fence), (entered, _, next_fence) in pairwise(sections):
            assert left <= entered
            assert fence < next_fence


def test_a_process_that_left_a_directory_is_not_dead_when_it_comes_back(folder: Path) -> None:
    """The directory was moved away and back: others, who saw the process leave, heed its later leases."""
    ours, theirs = FileEngine(str(folder)), FileEngine(str(folder))
    with (
        Locks(ours, ttl=PATIENCE) as locks,
        Locks(theirs, ttl=PATIENCE) as other,
        ThreadPoolExecutor(1) as pool,
    ):
        lost = locks.acquire("k")
        waiting = pool.submit(other.acquire, "k", wait=None)
        assert ours.home
        assert theirs.home
        watched = theirs.home.processes._theirs
        eventually(lambda: watched)  # Else there is no proof of a death.
        ours.leave(ours.home)
        waiting.result(PATIENCE).release()
        with pytest.raises(LeaseLost):
            lost.release()
        with locks.hold("k"), pytest.raises(LockTimeout):
            other.acquire("k", wait=0)


def test_a_directory_that_cannot_be_made_again_makes_the_engine_unavailable(
    tmp_path: Path,
) -> None:
    """A holder keeps its lease until its deadline at most; who asks is told what is wrong."""
    above = tmp_path / "above"
    above.mkdir()
    with Locks.from_url(f"file://{above}/locks", ttl=1) as locks:
        lease = locks.acquire("k", wait=PATIENCE)
        shutil.rmtree(above)
        above.write_text("")
        with pytest.raises(EngineUnavailable, match="locks cannot be used: Not a directory"):
            locks.acquire("other", wait=0)
        eventually(lambda: not lease.held)
        above.unlink()
        locks.acquire("k", wait=PATIENCE, ttl=PATIENCE).release()


@pytest.mark.parametrize("name", ["*.bell", "weblock"])
def test_a_cleaner_that_removes_pipes_or_marker_only_makes_it_slower(
    folder: Path, name: str, child: Callable[..., Child]
) -> None:
    """Leases stay what they are, and who waits gets its turn by its heartbeat."""
    holder, waiter = child().open(ttl=3600), child().open(wait=None)
    holder.run("lease = locks.acquire('k')")
    waiter.begin("locks.acquire('k').fence")
    with Locks.from_url(f"file://{folder}") as probe:
        eventually(lambda: waiters(probe, "k") == 1)
        for each in folder.glob(name):
            each.unlink()
        assert waiters(probe, "k") == 1
        holder.run("lease.release()")
        assert waiter.outcome() > 0


def test_systemd_spares_a_directory_in_use(folder: Path, locks: Locks) -> None:
    """It removes old temporary files, but not from a directory that it cannot lock."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with pytest.raises(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        locks.close()
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    finally:
        os.close(descriptor)


def test_the_pipes_of_the_dead_are_their_proof_and_go_when_they_are_old(
    folder: Path, locks: Locks, child: Callable[..., Child]
) -> None:
    """A lease of a dead process is void also to those who start later, or had never met it."""
    victim, bystander = child().open(ttl=3600), child().open()
    victim.run("lease = locks.acquire('k')")
    victim.kill()
    child().open()  # It tidies up.
    assert bystander.run("locks.acquire('k', wait=0).fence") > 0
    (dead,) = [each for each in folder.glob("*.bell") if not each.stat().st_atime]
    os.utime(dead, (0, 1))
    before = set(folder.glob("*.bell"))
    child().open()
    assert len(before - set(folder.glob("*.bell"))) == 1


async def test_the_loop_goes_on_while_the_directory_is_lost_again_and_again(
    url: str, folder: Path
) -> None:
    """Moving into a new directory needs no help from outside, and leaves no thread behind."""
    before = set(threading.enumerate())  # One of another test may just be ending.
    async with AsyncLocks.from_url(url) as locks:
        for _ in range(5):
            lease = await locks.acquire("k", wait=PATIENCE)
            shutil.rmtree(folder)
            with pytest.raises(LeaseLost):
                await lease.release()
        started = set(threading.enumerate()) - before
        assert sum(each.name == "weblock-listener" for each in started) <= 1
