"""What has been done once, when engines and machines fail; and work when its engine hangs."""

from __future__ import annotations

import asyncio
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.servers import Server
from tests.support.waiting import PATIENCE, eventually
from weblock import AsyncLocks, EngineUnavailable, LeaseLost, Locks
from weblock._runtime.blocking import drive
from weblock.stores.file import marks as of_files

from .processes import Child
from .test_directories import OTHER_BOOT

DONE = "locks.once('init', lambda: None)"


def marks(folder: Path) -> list[Path]:
    """The files that say that something has been done."""
    return [*folder.glob("done-*/*")]


def test_what_is_done_outlives_a_boot(child: Callable[..., Child]) -> None:
    """A machine that was booted anew has forgotten the leases, and not what was done."""
    before = child(before=OTHER_BOOT.format(1)).open(ttl=300)
    assert before.run(DONE)
    before.run("lease = locks.acquire('init')")
    before.kill()
    after = child(before=OTHER_BOOT.format(2)).open()
    after.run("locks.acquire('init', wait=0).release()")
    assert not after.run(DONE)


def test_a_process_that_is_killed_before_it_has_written_a_mark(folder: Path, locks: Locks) -> None:
    """It has done nothing."""
    locks.once("init", lambda: None)
    (mark,) = marks(folder)
    mark.unlink()
    assert locks.once("init", lambda: None)


def test_a_directory_that_was_deleted_takes_it_along(folder: Path, locks: Locks) -> None:
    """What was done in it is done again in the new one."""
    assert locks.once("init", lambda: None)
    shutil.rmtree(folder)
    assert locks.once("init", lambda: None)
    assert not locks.once("init", lambda: None)


def test_marks_that_have_ended_do_not_pile_up(
    folder: Path, locks: Locks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are removed when another one is written in their folder, and no others are."""
    place_of = of_files._place_of
    monkeypatch.setattr(
        of_files, "_place_of", lambda at, key: (Path(at, "done-00"), place_of(at, key)[1])
    )
    store = locks._locker.store
    drive(store.mark("default:forever", None))
    drive(store.mark("default:for long", PATIENCE))
    for number in range(60):
        drive(store.mark(f"default:for a moment {number}", 0.01))

    def are_removed() -> bool:
        drive(store.mark("default:forever", None))
        return len(marks(folder)) == 2

    eventually(are_removed)
    assert not locks.once("forever", lambda: None)
    assert not locks.once("for long", lambda: None)


@pytest.mark.parametrize("keep", [None, PATIENCE])
def test_a_mark_that_is_written_anew_while_it_is_removed_stays(
    folder: Path, locks: Locks, monkeypatch: pytest.MonkeyPatch, keep: float | None
) -> None:
    """Its name is another one. So of two processes that write one mark, neither removes the other's."""
    store = locks._locker.store
    drive(store.mark("k", 0.01))
    listed = Path.iterdir

    def late(path: Path) -> list[Path]:
        found = [*listed(path)]
        monkeypatch.undo()
        drive(store.mark("k", keep))
        return found

    monkeypatch.setattr(Path, "iterdir", late)
    drive(store.mark("k", PATIENCE))
    assert drive(store.marked("k"))
    drive(store.mark("k", 0))
    assert not drive(store.marked("k"))
    assert not marks(folder)


def test_marks_that_are_written_at_the_same_time_do_not_remove_each_other(
    locks: Locks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two processes that mark one key anew, one for good, one mark at least stays."""
    store = locks._locker.store
    drive(store.mark("k", None))
    touch = Path.touch

    def late(path: Path, mode: int) -> None:
        touch(path, mode)
        monkeypatch.undo()
        drive(store.mark("k", None))

    monkeypatch.setattr(Path, "touch", late)
    drive(store.mark("k", PATIENCE))
    assert drive(store.marked("k"))


def test_marks_are_read_in_no_directory_that_would_be_rejected(folder: Path, locks: Locks) -> None:
    """Whoever puts another directory in place of a removed one has no step skipped."""
    assert locks.once("init", lambda: None)
    moved = folder.rename(folder.with_name("moved"))
    folder.mkdir()
    folder.chmod(0o777)
    (mark,) = marks(moved)
    (folder / mark.parent.name).mkdir()
    (folder / mark.parent.name / mark.name).touch()
    with pytest.raises(EngineUnavailable, match="could be changed by others"):
        locks.once("init", lambda: None)


def test_a_mark_that_is_read_is_not_old(folder: Path, locks: Locks) -> None:
    """Programs that clean ``/tmp`` go by when a file was touched last."""
    locks.once("init", lambda: None)
    (mark,) = marks(folder)
    os.utime(mark, (0, 0))
    assert not locks.once("init", lambda: None)
    assert mark.stat().st_mtime > 0


def test_any_majority_knows_what_is_done() -> None:
    """A server that was away when it was noted, or that has lost it, changes nothing."""
    servers = [Server() for _ in range(3)]
    urls = [server.url(recovery="off", timeout=2) for server in servers]
    try:
        with Locks.from_url(urls) as locks:
            servers[0].kill()
            assert locks.once("init", lambda: None, wait=PATIENCE)
            servers[0].start()
        with Locks.from_url(urls) as locks:
            servers[1].kill()
            assert not locks.once("init", lambda: None)
            servers[2].kill()
            with pytest.raises(EngineUnavailable):
                locks.once("init", lambda: None)
    finally:
        for server in servers:
            server.close()


def test_a_step_never_fails_open() -> None:
    """Who lets sections run without a lease does not let steps: every process would run them."""
    with (
        Server() as server,
        Locks.from_url(server.url(timeout=0.2), on_unavailable="open") as locks,
    ):
        server.kill()
        with pytest.raises(EngineUnavailable):
            locks.once("init", lambda: pytest.fail("it ran"))


def test_a_step_is_noted_when_the_engine_is_back() -> None:
    """An engine that is away when a step ends is asked again: the step has not run in vain."""
    with Server() as server, Locks.from_url(server.url(recovery="off", timeout=0.2)) as locks:

        def step() -> None:
            server.stop()
            threading.Timer(1, server.cont).start()

        assert locks.once("init", step, wait=PATIENCE, ttl=PATIENCE)
        assert not locks.once("init", lambda: pytest.fail("it ran again"))


async def test_work_is_cancelled_while_the_engine_hangs() -> None:
    """Work whose lease cannot be renewed ends with it, before the engine has answered anybody."""
    with Server() as server:
        url = server.url(recovery="off", timeout=5)
        async with AsyncLocks.from_url(url) as locks:
            began = asyncio.Event()

            async def work() -> None:
                began.set()
                await asyncio.Event().wait()

            running = asyncio.create_task(locks.run("work", work, ttl=2, wait=PATIENCE))
            await began.wait()
            server.stop()
            with pytest.raises(LeaseLost):
                await running
            server.cont()
