"""A process that is stopped inside a record file, where it should be for microseconds."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.renewals import hurry, renewed
from tests.support.waiting import PATIENCE, eventually
from weblock import AsyncLocks, EngineUnavailable, Locks
from weblock._runtime.runtimes import now
from weblock.stores import file as file_engine
from weblock.stores.file.records import RecordFile

from .keys import key_outside, keys_in, record_of
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


async def refusal(acquiring: Awaitable[object]) -> str:
    """The message with which an acquisition fails, also if it would wait for ever."""
    with pytest.raises(EngineUnavailable) as failure:
        async with asyncio.timeout(PATIENCE):
            await acquiring
    return str(failure.value)


async def test_a_process_stopped_inside_a_record_file_blocks_only_the_keys_in_it(
    url: str, folder: Path, child: Callable[..., Child]
) -> None:
    """Others are told within about 5 s what is in the way, and asyncio goes on meanwhile."""
    record = record_of(folder, "stuck")
    elsewhere = key_outside(record)
    stopped = child()
    async with AsyncLocks.from_url(url) as locks:
        await (await locks.acquire("stuck")).release()
        held = await locks.acquire("held" if record_of(folder, "held") != record else "held 2")
        stop_inside(stopped, record)
        waiting = [
            asyncio.create_task(refusal(locks.acquire("stuck", wait=wait, ttl=3)))
            for wait in (1, 5, None)
        ]
        sections = 0
        while not all(task.done() for task in waiting):
            async with locks.hold(elsewhere):
                sections += 1
            await asyncio.sleep(0.05)
        for task in waiting:
            message = task.result()
            assert f"a process has been inside {record}" in message
            assert "might be stopped (SIGSTOP, a debugger): find it with lslocks" in message
        assert sections > 5
        held.check()
        stopped.resume()
        stopped.outcome()
        await (await locks.acquire("stuck")).release()
        await held.release()


def test_a_stuck_file_does_not_keep_leases_in_other_files_from_being_renewed(
    url: str, folder: Path, child: Callable[..., Child], monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many leases are in the stuck file, they cost the keeper the patience of one."""
    monkeypatch.setattr(file_engine, "BEAT_PATIENCE", PATIENCE / 40)
    record = record_of(folder, "stuck")
    stopped = child()
    with Locks.from_url(url, ttl=3) as locks:
        # That of all of them would be longer than any test waits.
        stuck = [locks.acquire(key) for key in keys_in(record, 80)]
        other = locks.acquire(key_outside(record), ttl=PATIENCE)
        stop_inside(stopped, record)
        hurry(locks, *stuck)
        renewed(locks, other)
        eventually(lambda: not any(lease.held for lease in stuck))
        stopped.resume()
        stopped.outcome()
        other.release()


async def test_what_a_cancelled_caller_leaves_in_a_stuck_file_delays_no_renewal(
    url: str, folder: Path, child: Callable[..., Child]
) -> None:
    """To give it back has no more patience than a heartbeat: leases in other files are renewed."""
    record = record_of(folder, "stuck")
    stopped = child()
    async with AsyncLocks.from_url(url) as locks:
        await (await locks.acquire("stuck")).release()
        other = await locks.acquire(key_outside(record), ttl=3)
        stop_inside(stopped, record)
        caller = asyncio.create_task(locks.acquire("stuck", ttl=20))
        await asyncio.sleep(0)  # Now it waits for the file.
        caller.cancel()
        await asyncio.wait([caller])
        (holding,) = other._holdings
        until = holding.deadline
        await asyncio.to_thread(eventually, lambda: now() > until or not other.held)
        other.check()
        stopped.resume()
        stopped.outcome()
        await other.release()


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
        bind = processes.Processes._make_pipe
        def stopping(self):
            bind(self)
            os.kill(os.getpid(), signal.SIGSTOP)
        processes.Processes._make_pipe = stopping
        """
    )
    stopped.begin("locks = Locks.from_url(url)")
    stopped.wait_until_stopped()
    assert child().open().run("locks.acquire('a').fence") > 0
    stopped.resume()
    stopped.outcome()


class Unlucky:
    """Makes each of this process's attempts at a record file find that another process has just written it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, tries: int) -> None:
        self.left = tries
        really = RecordFile.run

        def run(record: RecordFile, *args: Any) -> Any:
            self.left -= 1
            if self.left < 0:
                return really(record, *args)
            os.utime(record.path, (self.left, self.left))
            return None

        monkeypatch.setattr(RecordFile, "run", run)


def test_a_file_where_others_go_in_and_out_is_waited_for_longer(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A caller that had no luck for longer than a stuck file is waited for gets in all the same."""
    monkeypatch.setattr(file_engine, "PATIENCE", 1e-6)
    monkeypatch.setattr(file_engine, "CROWDED", 1e9)
    with Locks.from_url(url) as locks:
        locks.acquire("k").release()
        Unlucky(monkeypatch, tries=5)
        locks.acquire("k", wait=0).release()


def test_a_file_that_stays_crowded_is_not_blamed_on_one_process(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error says that there are too many, and names no process that happened to be inside."""
    monkeypatch.setattr(file_engine, "PATIENCE", 0.1)
    with Locks.from_url(url) as locks:
        locks.acquire("k").release()
        with monkeypatch.context() as patch:
            Unlucky(patch, tries=10**9)
            with pytest.raises(
                EngineUnavailable, match=r"was busy for .* no process stays in it"
            ) as told:
                locks.acquire("k", wait=0)
    assert "start fewer at once" in str(told.value)
