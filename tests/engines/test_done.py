"""What has been done once, when engines and machines fail; and work when its engine hangs."""

from __future__ import annotations

import asyncio
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from kazoo.client import KazooClient

from tests.servers import Server
from tests.servers.zookeeper import fresh_zookeeper
from tests.support.waiting import PATIENCE, eventually
from weblock import AsyncLocks, EngineUnavailable, LeaseLost, Locks
from weblock._core.ports import Store
from weblock._runtime.runtimes import drive
from weblock.stores import marks as names_of_marks

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


class Kept(NamedTuple):
    """An engine that keeps marks by their names."""

    store: Store
    names: Callable[[], list[str]]


@pytest.fixture(params=["file", "zookeeper"])
def kept(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Kept]:
    """One whose marks are all in one folder."""
    hash_of = names_of_marks.hash_of
    monkeypatch.setattr(names_of_marks, "hash_of", lambda key: f"000{hash_of(key)[3:]}")
    if request.param == "file":
        store = request.getfixturevalue("locks")._locker.store
        folder = request.getfixturevalue("folder")
        yield Kept(store, lambda: [each.name for each in marks(folder)])
        return
    url = fresh_zookeeper()
    hosts, root = url.removeprefix("zookeeper://").partition("?")[0].split("/")
    client = KazooClient(hosts)
    client.start()
    with Locks.from_url(url) as locks:
        yield Kept(locks._locker.store, lambda: client.get_children(f"/{root}/marks/000"))
    client.stop()
    client.close()


def test_marks_that_have_ended_do_not_pile_up(kept: Kept) -> None:
    """They are removed when another one is written in their folder, and no others are."""
    drive(kept.store.mark("forever", None))
    drive(kept.store.mark("for long", PATIENCE))
    for number in range(60):
        drive(kept.store.mark(f"for a moment {number}", 0.01))

    def are_removed() -> bool:
        drive(kept.store.mark("forever", None))
        return len(kept.names()) == 2

    eventually(are_removed)
    assert drive(kept.store.marked("forever"))
    assert drive(kept.store.marked("for long"))


@pytest.mark.parametrize("keep", [None, PATIENCE])
def test_a_mark_that_is_written_anew_while_it_is_removed_stays(
    kept: Kept, monkeypatch: pytest.MonkeyPatch, keep: float | None
) -> None:
    """Its name is another one. So of two processes that write one mark, neither removes the other's."""
    new_name = names_of_marks.new_name
    drive(kept.store.mark("k", 0.01))

    def late(*of: Any) -> str:
        monkeypatch.setattr(names_of_marks, "new_name", new_name)
        drive(kept.store.mark("k", keep))
        return new_name(*of)

    monkeypatch.setattr(names_of_marks, "new_name", late)
    drive(kept.store.mark("k", PATIENCE))
    assert names_of_marks.new_name is new_name
    assert len(kept.names()) == 2
    assert drive(kept.store.marked("k"))
    drive(kept.store.mark("k", 0))
    assert not drive(kept.store.marked("k"))
    assert not kept.names()


def test_marks_that_are_written_at_the_same_time_do_not_remove_each_other(
    kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two processes that mark one key anew, one for good, one mark at least stays."""
    replaced = names_of_marks.replaced
    drive(kept.store.mark("k", None))

    def late(*of: Any) -> list[str]:
        monkeypatch.setattr(names_of_marks, "replaced", replaced)
        drive(kept.store.mark("k", None))
        return replaced(*of)

    monkeypatch.setattr(names_of_marks, "replaced", late)
    drive(kept.store.mark("k", PATIENCE))
    assert drive(kept.store.marked("k"))


def test_a_shorter_mark_replaces_a_longer_one(kept: Kept) -> None:
    """The mark that was written last says how long."""
    drive(kept.store.mark("k", None))
    drive(kept.store.mark("other", None))
    drive(kept.store.mark("k", 0.01))
    eventually(lambda: not drive(kept.store.marked("k")))
    assert drive(kept.store.marked("other"))


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
