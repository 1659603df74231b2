"""What has been done once, when engines and machines fail; and work when its engine hangs."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.servers import Server
from tests.support.waiting import PATIENCE, eventually, now
from weblock import AsyncLocks, EngineUnavailable, LeaseLost, Locks
from weblock._runtime.blocking import drive
from weblock.stores.file.marks import Marks
from weblock.stores.marks import PORTION

from .processes import Child
from .test_directories import OTHER_BOOT

DONE = "locks.once('init', lambda: None)"


def marks(folder: Path) -> list[Path]:
    """The files that say that something has been done."""
    return [
        each for each in folder.iterdir() if each.name.startswith("done-") and "." not in each.name
    ]


def ended_mark(folder: Path, locks: Locks) -> None:
    """Makes the mark of ``init``, the only one there, whose time is over."""
    locks.once("init", lambda: None, expiry=PATIENCE)
    (mark,) = marks(folder)
    mark.write_text("1.0\n")


def test_what_is_done_outlives_a_boot(child: Callable[..., Child]) -> None:
    """A machine that was booted anew has forgotten the leases, and not what was done."""
    before = child(before=OTHER_BOOT.format(1)).open(ttl=300)
    assert before.run(DONE)
    before.run("lease = locks.acquire('init')")
    before.kill()
    after = child(before=OTHER_BOOT.format(2)).open()
    after.run("locks.acquire('init', wait=0).release()")
    assert not after.run(DONE)


def test_a_mark_that_was_half_written(folder: Path, locks: Locks) -> None:
    """A process that was killed while it wrote has done nothing; what is damaged is said."""
    locks.once("init", lambda: None)
    (mark,) = marks(folder)
    mark.rename(f"{mark}.0123456789abcdef")
    assert locks.once("init", lambda: None)
    mark.write_bytes(b"")
    with pytest.raises(EngineUnavailable, match="is damaged: remove it"):
        locks.once("init", lambda: None)


def test_a_directory_that_was_deleted_takes_it_along(folder: Path, locks: Locks) -> None:
    """What was done in it is done again in the new one."""
    assert locks.once("init", lambda: None)
    for each in folder.iterdir():
        each.unlink()
    folder.rmdir()
    assert locks.once("init", lambda: None)
    assert not locks.once("init", lambda: None)


class TestEnded:
    """Marks that have ended are removed, and no others."""

    @pytest.fixture(autouse=True)
    def _rounds_at_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Nothing is waited for before the marks are listed again."""
        monkeypatch.setattr("weblock.stores.marks.ROUND_EVERY", 0.0)

    def test_they_do_not_pile_up(self, folder: Path, locks: Locks) -> None:
        """The files of marks whose time is over are removed as others are written, a few with each."""
        store = locks._locker.store
        drive(store.mark("default:forever", None))
        drive(store.mark("default:for long", PATIENCE))
        (half_written := folder / f"{marks(folder)[0].name}.0123456789abcdef").touch()
        for number in range(3 * PORTION):
            drive(store.mark(f"default:for a moment {number}", 0.01))

        def are_removed() -> bool:
            before = len(marks(folder))
            drive(store.mark("default:forever", None))
            after = len(marks(folder))
            assert before - after <= PORTION
            return after == 2

        eventually(are_removed)
        assert half_written.exists()
        assert not locks.once("forever", lambda: None)
        assert not locks.once("for long", lambda: None)

    def test_one_that_is_written_anew_stays(
        self, folder: Path, locks: Locks, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A mark that ended, and was written again when it was to be removed, is there."""
        ended_mark(folder, locks)
        remove = Marks._remove

        def remove_late(self: Marks, names: list[str]) -> None:
            monkeypatch.undo()
            assert names
            assert self.put("default:init", None)
            remove(self, names)

        monkeypatch.setattr(Marks, "_remove", remove_late)
        locks.once("another", lambda: None)
        assert not locks.once("init", lambda: None)

    def test_none_is_removed_while_one_is_written(self, folder: Path, locks: Locks) -> None:
        """Nor is one written while some are removed: that waits, and says so if it lasts too long."""
        ended_mark(folder, locks)
        home = locks._engine.home_at(now())
        with home.directory.locked(shared=True):
            home.marks.remove_ended(now())
        assert len(marks(folder)) == 1
        ran = threading.Event()
        with home.directory.locked(shared=False):
            waits = threading.Thread(target=locks.once, args=("another", ran.set))
            waits.start()
            assert ran.wait(PATIENCE)
            assert len(marks(folder)) == 1
        waits.join(PATIENCE)
        assert not locks.once("another", lambda: None)

    def test_a_process_that_has_stopped_while_it_removes(
        self, locks: Locks, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It is not waited for without end."""
        monkeypatch.setattr("weblock.stores.file.PATIENCE", 0.1)
        locks.once("init", lambda: None)
        home = locks._engine.home_at(now())
        with (
            home.directory.locked(shared=False),
            pytest.raises(EngineUnavailable, match="has stopped"),
        ):
            drive(locks._locker.store.mark("default:another", None))


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
