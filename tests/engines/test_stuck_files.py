"""A process that is stopped inside a record file, where it should be for microseconds."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from weblock import AsyncLocks, EngineUnavailable, Locks
from weblock._runtime.clock import now

from .keys import eventually, key_outside, keys_in, record_of
from .processes import Child

STOP_INSIDE = """
import fcntl, signal
fd = os.open({record!r}, os.O_RDWR)
fcntl.flock(fd, fcntl.LOCK_EX)
os.kill(os.getpid(), signal.SIGSTOP)
os.close(fd)
"""


def stop_inside(process: Child, record: Path) -> None:
    """Has a process stop while it has locked a record file."""
    process.begin(STOP_INSIDE.format(record=str(record)))
    process.wait_until_stopped()


async def timed(acquiring: object) -> tuple[float, str]:
    """How long it took until it failed, and with what message."""
    started = now()
    with pytest.raises(EngineUnavailable) as failure:
        await acquiring
    return now() - started, str(failure.value)


async def test_a_process_stopped_inside_a_record_file_blocks_only_the_keys_in_it(
    url: str, folder: Path, child: Callable[..., Child]
) -> None:
    """Others are told within about 5 s who is in the way, and asyncio goes on meanwhile."""
    record = record_of(folder, "stuck")
    elsewhere = key_outside(record)
    stopped = child()
    async with AsyncLocks.from_url(url) as locks:
        await (await locks.acquire("stuck")).release()
        held = await locks.acquire("held" if record_of(folder, "held") != record else "held 2")
        stop_inside(stopped, record)
        waiting = [
            asyncio.create_task(timed(locks.acquire("stuck", wait=wait, ttl=3)))
            for wait in (1, 5, 60)
        ]
        sections = 0
        while not all(task.done() for task in waiting):
            async with locks.hold(elsewhere):
                sections += 1
            await asyncio.sleep(0.01)
        for task in waiting:
            seconds, message = task.result()
            assert seconds < 9
            assert f"process {stopped.pid} " in message
            assert str(record) in message
        assert sections > 20
        held.check()
        stopped.resume()
        stopped.outcome()
        await (await locks.acquire("stuck")).release()
        await held.release()


def test_a_stuck_file_does_not_keep_leases_in_other_files_from_being_renewed(
    url: str, folder: Path, child: Callable[..., Child]
) -> None:
    """However many leases are in the stuck file, they cost the keeper the patience of one."""
    record = record_of(folder, "stuck")
    stopped = child()
    with Locks.from_url(url, ttl=3) as locks:
        stuck = [locks.acquire(key) for key in keys_in(record, 40)]
        other = locks.acquire(key_outside(record))
        stop_inside(stopped, record)
        eventually(lambda: not any(lease.held for lease in stuck))
        other.check()
        stopped.resume()
        stopped.outcome()
        other.release()


def test_a_process_killed_inside_a_record_file_frees_it(
    url: str, folder: Path, locks: Locks, child: Callable[..., Child]
) -> None:
    """The kernel gives the file back when the one who was stopped in it is killed."""
    locks.acquire("stuck").release()
    stopped = child()
    stop_inside(stopped, record_of(folder, "stuck"))
    stopped.kill()
    locks.acquire("stuck", wait=0).release()


def test_a_process_stopped_while_it_starts_hangs_nobody(
    url: str, folder: Path, child: Callable[..., Child]
) -> None:
    """Moving in takes no lock that a stopped process could keep."""
    stopped = child(
        before="""
        import signal
        from weblock.stores.file import directory, processes
        bind = processes.Processes._bind
        def stopping(self):
            bind(self)
            os.kill(os.getpid(), signal.SIGSTOP)
        processes.Processes._bind = stopping
        """
    )
    stopped.begin("locks = Locks.from_url(url)")
    stopped.wait_until_stopped()
    assert child().open().run("locks.acquire('a').fence") > 0
    stopped.resume()
    stopped.outcome()
