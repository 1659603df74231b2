"""Waiting, waking, and dying: what the pipes are for."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support.aio import until_waited_for
from tests.support.handovers import IN_NO_HURRY, in_no_hurry
from tests.support.renewals import renewed
from tests.support.waiting import PATIENCE, eventually, waiters
from weblock import AsyncLocks, EngineUnavailable, LeaseLost, Locks
from weblock._core.ports import Granted, Message
from weblock._engines import engine_for
from weblock._runtime.runtimes import now
from weblock.stores.file import FileEngine, processes

from .processes import Child


def test_a_waiter_gets_its_turn_although_the_message_was_lost(
    locks: Locks, child: Callable[..., Child]
) -> None:
    """Its heartbeat finds out within a bounded time."""
    deaf = """
    from weblock.stores.file.processes import Processes
    Processes._send = lambda self, process, message: True
    """
    holder, waiter = child(before=deaf).open(), child(before=deaf).open()
    holder.run("lease = locks.acquire('k')")
    waiter.begin("locks.acquire('k', wait=None).fence")
    eventually(lambda: waiters(locks, "k") == 1)
    holder.run("lease.release()")
    assert waiter.outcome() > 0  # It fails where nothing is heard of the waiter for long.


def test_an_attempt_to_open_the_directory_that_failed_does_no_harm(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pipe that it has made already, under the name of this process, is made again."""
    engine, pipe = FileEngine(str(folder)), processes.Pipe

    def fails(*_arguments: object) -> None:
        monkeypatch.setattr(processes, "Pipe", pipe)
        raise OSError(errno.EMFILE, "Too many open files")

    engine.leave(engine.home)
    monkeypatch.setattr(processes, "Pipe", fails)
    with pytest.raises(EngineUnavailable, match="EMFILE"):
        engine.open()
    engine.open()
    engine.close()


class Recorder:
    """A mailbox that remembers what was put into it."""

    def __init__(self) -> None:
        self.notified: list[Message] = []

    def put(self, message: Message) -> None:
        self.notified.append(message)


OWNER = "0123456789abcdef" * 2


@pytest.mark.parametrize(
    "garbage",
    [
        b"\0",
        b"no line break",
        b"\xff" * 48,  # its owner is no UTF-8
        b"x" * 10_000,
        f"{OWNER} 1 nan\n".encode(),
        f"{OWNER} 1\n".encode(),
    ],
    ids=["zero", "no line", "no UTF-8", "long", "no time", "short"],
)
def test_a_line_that_no_weblock_writes_is_dropped(
    url: str, folder: Path, locks: Locks, garbage: bytes
) -> None:
    """The thread that listens goes on, and passes the next grant on to its waiter."""
    engine = engine_for(url)
    assert isinstance(engine, FileEngine)
    assert engine.home
    engine.home.processes.watch(OWNER, [engine.process], first=False)  # It starts the thread.
    engine.switchboard.mailboxes[OWNER] = recorder = Recorder()
    (pipe,) = folder.glob(f"{engine.process}.*.bell")
    with pipe.open("wb", buffering=0) as stranger:
        stranger.write(garbage)
    theirs = FileEngine(str(folder))
    theirs.notify(engine.process, OWNER, Granted(7, 12.5))
    theirs.close()
    eventually(lambda: recorder.notified)
    assert recorder.notified == [Granted(7, 12.5)]


def stop_outside_files(process: Child, folder: Path) -> None:
    """Stops a process while it is in no record file, where it would be in the way of others."""
    process.stop()
    while not all(is_free(record) for record in folder.glob("records-*")):
        process.resume()
        process.stop()


def is_free(record: Path) -> bool:
    with record.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


def test_a_pipe_that_is_full_delays_nobody_else(
    folder: Path, locks: Locks, child: Callable[..., Child]
) -> None:
    """Grants to a stopped process pile up and are dropped; others go on; later it goes on too."""
    stopped = child().open()
    keys = [f"key {n}" for n in range(1500)]  # More lines than fit into a pipe.
    held = [locks.acquire(key, ttl=3600) for key in keys]
    stopped.begin(f"""
    async def main():
        locks = AsyncLocks.from_url(url)
        async def one(key):
            try:
                async with locks.hold(key, wait=None):
                    return 1
            except weblock.LeaseLost:  # Too slow to confirm so many at once, but had each.
                return 1
        served = sum(await asyncio.gather(*map(one, {keys!r})))
        await locks.close()
        return served
    asyncio.run(main())
    """)
    eventually(lambda: waiters(locks, keys[-1]) == 1)
    stop_outside_files(stopped, folder)
    for lease in held:
        lease.release()
    for key in keys[:5]:
        locks.acquire(key, wait=PATIENCE).release()
    stopped.resume()
    assert stopped.outcome() == len(keys)


async def test_three_hundred_waiters_for_one_key_are_all_served(url: str) -> None:
    """The record file grows as the queue does, and nobody is forgotten in it."""
    inside = served = 0

    async with AsyncLocks.from_url(url, wait=None) as locks, asyncio.TaskGroup() as group:
        lease = await locks.acquire("k", ttl=3600)

        async def one() -> None:
            nonlocal inside, served
            try:
                async with locks.hold("k"):
                    inside += 1
                    assert inside == 1
                    await asyncio.sleep(0)
                    inside -= 1
            except LeaseLost:  # On a machine too slow to confirm it in time.
                pass
            served += 1

        for _ in range(300):
            group.create_task(one())
        await until_waited_for(locks, "k", by=300)
        await lease.release()
    assert served == 300


def test_two_thousand_keys_are_held_at_once(url: str) -> None:
    """All are renewed, and released."""
    with Locks.from_url(url, ttl=600) as locks:
        leases = [locks.acquire(f"key {n}") for n in range(2000)]
        renewed(locks)
        for lease in leases:
            lease.release()


def test_a_stopped_process_with_many_places_in_a_queue_costs_the_others_little(
    folder: Path, locks: Locks, child: Callable[..., Child], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once it did not take up a lease that was handed to it, no other of its places is given one."""
    # What the holder hands over ends soon. The other one keeps what it gets, however slow the machine is.
    in_no_hurry(monkeypatch)
    holder, stopped = child().open(), child().open(wait=None)
    other = child(before=IN_NO_HURRY).open(wait=None)
    holder.run("lease = locks.acquire('k', ttl=3600)")
    stopped.run("""
    import threading
    def one():
        with locks.hold('k'):
            pass
    threads = [threading.Thread(target=one) for _ in range(5)]
    for thread in threads:
        thread.start()
    """)
    eventually(lambda: waiters(locks, "k") == 5)
    other.begin("locks.acquire('k', ttl=3600).fence")
    eventually(lambda: waiters(locks, "k") == 6)
    stop_outside_files(stopped, folder)
    holder.run("lease.release()")
    with ThreadPoolExecutor(1) as pool:
        served, grants = pool.submit(other.outcome), set()
        while not served.done():
            if (info := locks.inspect("k")) and info.holder:
                grants.add(info.fence)
            time.sleep(0.01)
    assert len(grants - {served.result()}) <= 1
    other.run("None")
    stopped.resume()


def test_idle_waiters_cost_next_to_nothing(url: str, child: Callable[..., Child]) -> None:
    """Fifty who wait neither poll nor gather threads or files."""
    holder, idle = child().open(), child()
    holder.run("lease = locks.acquire('k', ttl=3600)")
    idle.run("""
    import threading
    calls = 0
    def count(frame, event, argument):
        global calls
        calls += event == 'call'
    threading.setprofile(count)
    locks = Locks.from_url(url, wait=None)
    def one():
        with locks.hold('k'):
            pass
    threads = [threading.Thread(target=one) for _ in range(50)]
    for thread in threads:
        thread.start()
    def spent():
        return [calls, threading.active_count(), len(os.listdir('/dev/fd'))]
    """)
    with Locks.from_url(url) as locks:
        eventually(lambda: waiters(locks, "k") == 50)
        idle.run("time.sleep(1.2)")  # Past the first heartbeats.
        before, threads, files = idle.run("spent()")
        started = now()
        idle.run("time.sleep(2)")
        later = idle.run("spent()")
        # A heartbeat a second takes each of them some 50 calls; looking each 10 ms would take thousands.
        assert (later[0] - before) / (now() - started) < 50 * 150
        assert later[1] < threads + 10
        assert later[2] < files + 10
        holder.run("lease.release()")
        idle.run("[thread.join() for thread in threads] and None")


def open_files() -> Counter[str]:
    """The files and sockets that this process has open, and how often."""
    found: Counter[str] = Counter()
    for each in Path("/dev/fd").iterdir():
        with suppress(OSError):  # It was closed meanwhile.
            found[str(each.readlink())] += 1
    return found


def test_asking_after_many_processes_leaves_no_file_open(
    url: str, locks: Locks, child: Callable[..., Child]
) -> None:
    """One who only ever tries keeps no connection to those who held."""
    locks.acquire("k").release()
    holders = [child().open() for _ in range(5)]
    before = open_files()
    for holder in holders:
        holder.run("lease = locks.acquire('k')")
        assert locks.try_acquire("k") is None
        holder.run("lease.release()")
    eventually(lambda: not open_files() - before)
