"""Many processes that wait for one key: what each costs the others, and that no death goes unnoticed."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import pytest

from tests.servers import fresh_memcached
from tests.servers.postgres import fresh_postgresql
from tests.support.handovers import FOR_EVER, in_no_hurry
from tests.support.waiting import PATIENCE, eventually, waiters
from weblock import LeaseLost, Locks
from weblock._core import table
from weblock._core.ports import Pulse, Reply
from weblock._core.table import Claim, Held, KeyState, Moment, Step
from weblock._runtime.runtimes import BlockingRuntime, drive
from weblock.stores import file as file_engine
from weblock.stores.cells import CellStore, Heartbeats
from weblock.stores.file import FileEngine
from weblock.stores.file.processes import Processes
from weblock.stores.memcached import open_engine as on_memcached
from weblock.stores.postgresql import open_engine as on_postgresql

from .processes import Child, Failed

CROWD = 32
SECTIONS = 3

WITHOUT_HEARTBEATS = """
from weblock._core import keeping, table
keeping.BEAT = table.PLACE = 3600
"""

AT_ONCE = 200 if "WEBLOCK_LONG" in os.environ else 40
"""Processes that start together: many more than there are processors."""

STARTS_CROWDS = """
import json
from weblock._core import acquiring, table
from weblock.stores import file
table.PLACE = table.HANDOFF = acquiring.HANDOFF = file.CROWDED = 3600

def section(inside):
    with Locks.from_url(url, wait=None, ttl=3600) as locks, locks.hold("k") as lease:
        os.close(os.open(inside, os.O_CREAT | os.O_EXCL))
        os.unlink(inside)
        return lease.fence

def start(size, inside):
    start, started = os.pipe()
    outcomes, outcome = os.pipe()
    for _ in range(size):
        if not os.fork():
            os.close(started)
            os.read(start, 1)
            try:
                told = section(inside)
            except BaseException as error:
                told = f"{type(error).__name__}: {error}"
            finally:
                os.write(outcome, json.dumps(told).encode() + b"\\n")
                os._exit(0)
    os.close(started)
    os.close(outcome)
    with os.fdopen(outcomes) as lines:
        told = [json.loads(line) for line in lines]
    for _ in range(size):
        os.wait()
    return told
"""
"""``start(size, inside)`` forks so many processes, lets all of them go at once, and returns their fences or errors.

In its section, each creates the file ``inside``, which must not exist. However slow the machine is, no place and no
hand-over ends too early.
"""

GIVES_UP = """
import signal
def give_up(*_):
    raise KeyboardInterrupt  # For threading, an Exception would say that the thread that listens could not be started.
signal.signal(signal.SIGUSR1, give_up)
try:
    locks.acquire("k", wait=None)
except KeyboardInterrupt:
    raise weblock.LockTimeout("k", wait=0) from None
"""
"""Waits until a signal says that its time is up."""


class Calls:
    """Counts the calls of a method, whoever calls it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, owner: type, name: str) -> None:
        self.count = 0
        really = getattr(owner, name)

        def counted(*args: Any, **options: Any) -> Any:
            self.count += 1
            return really(*args, **options)

        monkeypatch.setattr(owner, name, counted)


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow the machine, no waiter has to ask again for what it had, and none is passed over."""
    monkeypatch.setattr(file_engine, "BEAT_PATIENCE", PATIENCE)
    monkeypatch.setattr(table, "PLACE", FOR_EVER)
    in_no_hurry(monkeypatch)


@contextlib.contextmanager
def crowd(folder: Path, size: int) -> Iterator[list[Locks]]:
    """Locks that know one another as if each were in a process of its own."""
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(Locks(FileEngine(str(folder)))) for _ in range(size)]


def until_wait(locks: Locks, count: int) -> None:
    eventually(lambda: waiters(locks, "k") == count)


@pytest.mark.usefixtures("patient")
def test_each_waiter_watches_one_process_only(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a queue of n processes n pipes are watched, and not n * n."""
    watched = Calls(monkeypatch, Processes, "_look_again")
    with crowd(folder, CROWD) as processes, ThreadPoolExecutor(CROWD) as pool:
        holder, *others = processes
        lease = holder.acquire("k", ttl=300)
        waiting = []
        for count, each in enumerate(others, start=1):
            waiting.append(pool.submit(each.acquire, "k", wait=None))
            until_wait(holder, count)
        made = watched.count
        lease.release()
        for future in waiting:
            with contextlib.suppress(LeaseLost):  # On a machine too slow to confirm it.
                future.result(PATIENCE).release()
    assert 0 < made <= len(others)


@pytest.mark.usefixtures("patient")
def test_a_section_costs_as_much_in_a_large_crowd_as_in_a_small_one(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One request and about one pipe to watch, although processes keep leaving the queue."""
    requests = Calls(monkeypatch, CellStore, "acquire")
    watched = Calls(monkeypatch, Processes, "_look_again")
    barrier = threading.Barrier(CROWD)

    def work(locks: Locks) -> None:
        barrier.wait(PATIENCE)
        for _ in range(SECTIONS):
            with contextlib.suppress(LeaseLost), locks.hold("k", wait=None):
                pass
        locks.close()  # To the others, this process is dead from now on.

    with crowd(folder, CROWD) as processes, ThreadPoolExecutor(CROWD) as pool:
        list(pool.map(work, processes))
    assert requests.count < 2 * CROWD * SECTIONS
    assert watched.count < 2 * CROWD * SECTIONS


def queue_up(locks: Locks, children: list[Child]) -> None:
    """Has children wait for the key, one behind the other."""
    for child in children:
        before = waiters(locks, "k")
        child.begin("locks.acquire('k', wait=None, ttl=3600).fence")
        until_wait(locks, before + 1)


def test_processes_that_start_at_once_all_get_their_turn(
    folder: Path, child: Callable[..., Child]
) -> None:
    """None of them takes another for stuck in a record file, and no two are in their sections together."""
    told = child(before=STARTS_CROWDS).run(f"start({AT_ONCE}, {str(folder / 'inside')!r})")
    assert [each for each in told if not isinstance(each, int)] == []
    assert len(set(told)) == AT_ONCE


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2), (1, 2, 0)])
def test_deaths_in_a_queue_are_noticed_in_any_order(
    locks: Locks, child: Callable[..., Child], order: tuple[int, ...]
) -> None:
    """Without any heartbeat, the last in the queue hears that the holder and all before it are dead."""
    dying = [child(before=WITHOUT_HEARTBEATS).open() for _ in range(3)]
    last = child(before=WITHOUT_HEARTBEATS).open()
    dying[0].run("lease = locks.acquire('k', ttl=3600)")
    queue_up(locks, [*dying[1:], last])
    for index in order:
        dying[index].kill()
    assert last.outcome() > 0


def test_a_waiter_behind_one_that_gave_up_notices_the_death_of_the_holder(
    locks: Locks, child: Callable[..., Child]
) -> None:
    """Without any heartbeat: the one that gives up tells the one behind it whom to watch now."""
    holder, impatient, last = [child(before=WITHOUT_HEARTBEATS).open() for _ in range(3)]
    holder.run("lease = locks.acquire('k', ttl=3600)")
    impatient.begin(GIVES_UP)
    until_wait(locks, 1)
    queue_up(locks, [last])
    os.kill(impatient.pid, signal.SIGUSR1)
    with pytest.raises(Failed, match="LockTimeout"):
        impatient.outcome()
    holder.kill()
    assert last.outcome() > 0


@pytest.mark.parametrize(
    "opened",
    [lambda: on_memcached(fresh_memcached()), lambda: on_postgresql(fresh_postgresql())],
    ids=["memcached", "postgresql"],
)
def test_renewals_come_before_all_other_callers_of_their_process(
    monkeypatch: pytest.MonkeyPatch, opened: Callable[[], Any]
) -> None:
    """A lease is renewed although callers change its key between each read and write of its heartbeats."""
    engine = opened()
    keeper, callers = (engine.connect(BlockingRuntime()) for _ in range(2))
    really, arrived = Heartbeats.__call__, itertools.count()

    def acquire(owner: str) -> Reply:
        claim = Claim(owner, callers.process, 60.0, "", limit=1000)
        return drive(callers.acquire("k", claim, room=9))

    def beat(self: Heartbeats, state: KeyState, moment: Moment) -> Step:
        """Another caller comes now. It gets the key before the heartbeats are written, unless it waits."""
        rivals.append(pool.submit(acquire, f"rival {next(arrived)}"))
        wait(rivals, timeout=1)
        return really(self, state, moment)

    acquire("holder")
    rivals: list[Future[Reply]] = []
    monkeypatch.setattr(Heartbeats, "__call__", beat)
    with ThreadPoolExecutor() as pool:
        (reply,) = drive(keeper.refresh([Pulse("k", "holder", 60.0, 1000)]))
    engine.close()
    assert isinstance(reply, Reply)
    assert isinstance(reply.answer, Held)
