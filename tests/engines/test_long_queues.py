"""The record of a long queue in a file: what a step costs, and that every process sees the same queue."""

from __future__ import annotations

import contextlib
import os
import random
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.core.simulation.steps import lines_run_by
from weblock._core import table
from weblock._core.ports import Pulse, Reply
from weblock._core.table import GONE, Claim, Held, KeyState, Step
from weblock._runtime.runtimes import BlockingRuntime, drive
from weblock.stores.codec import from_bytes, to_bytes
from weblock.stores.file import FileEngine, records
from weblock.stores.file.processes import Processes
from weblock.stores.file.records import _FIRST_SLOT, file_of

LONG = 3600.0
ROOM = 10_000


class Process:
    """What another process does: it knows nothing of what this one has read and written."""

    def __init__(self, folder: Path) -> None:
        self.engine = FileEngine(str(folder))
        self._store = self.engine.connect(BlockingRuntime())

    def acquire(self, owner: int, key: str = "k") -> None:
        claim = Claim(f"{owner:032x}", self.engine.process, LONG, f"host:{owner}")
        drive(self._store.acquire(key, claim, room=ROOM))

    def beat(self, *owners: int) -> object:
        pulses = [Pulse("k", f"{owner:032x}", LONG, waits=True) for owner in owners]
        return drive(self._store.refresh(pulses))[0]

    def release(self, owner: int, key: str = "k", *, void: float = 0) -> None:
        drive(self._store.release(key, f"{owner:032x}", void=void))

    def look(self) -> KeyState:
        """What it sees of the key, with times as they are written."""
        return from_bytes(to_bytes(drive(self._store.look("k")).state), "here")


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow the machine, no place and no hand-over ends."""
    monkeypatch.setattr(table, "PLACE", LONG)
    monkeypatch.setattr(table, "HANDOFF", LONG)


@pytest.fixture
def processes(folder: Path) -> Iterator[list[Process]]:
    with contextlib.ExitStack() as stack:
        some = [Process(folder) for _ in range(3)]
        for each in some:
            stack.callback(each.engine.close)
        yield some


def seen_anew(folder: Path) -> KeyState:
    """What a process sees that reads the whole file."""
    process = Process(folder)
    with contextlib.closing(process.engine):
        return process.look()


def hand_over(process: Process, turn: int, waiting: int) -> None:
    """The holder leaves and comes again, and the next one confirms its lease."""
    process.release(turn)
    reply = process.beat(turn + 1)
    assert isinstance(reply, Reply)
    assert isinstance(reply.answer, Held)
    process.acquire(turn + 1 + waiting)


def test_a_hand_over_costs_as_much_however_many_wait(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With 1,000 waiters it runs at most 1.3 times the lines of one with 8, and writes no more bytes."""
    written = 0
    really = os.pwrite

    def pwrite(fd: int, data: bytes, offset: int) -> int:
        nonlocal written
        written += len(data)
        return really(fd, data, offset)

    monkeypatch.setattr(os, "pwrite", pwrite)
    lines: list[int] = []
    bytes_written: list[int] = []
    for waiting in (8, 1000):
        one = Process(folder / str(waiting))
        for owner in range(waiting + 1):
            one.acquire(owner)
        written = 0
        for turn in range(500):  # Enough to fill slots, and begin new records.
            hand_over(one, turn, waiting)
        bytes_written.append(written)
        later = (partial(hand_over, one, turn, waiting) for turn in range(500, 510))
        lines.append(sum(map(lines_run_by, later)))
        one.engine.close()
    assert lines[1] < 1.3 * lines[0]
    assert bytes_written[1] < 1.3 * bytes_written[0]


@pytest.mark.parametrize("seed", range(4))
def test_all_processes_see_the_same_queue(
    folder: Path, processes: list[Process], monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Whatever they have read before, in whatever order the waiters come, ask and go."""
    monkeypatch.setattr(records, "_LONG", 1000)  # About six waiters.
    chance = random.Random(seed)
    chances = ["acquire", "acquire", "acquire", "beat", "beat", "release", "void", "other", "few"]
    other = next(key for key in map(str, range(1000)) if file_of(key) == file_of("k"))
    owners: list[int] = []
    most = 0
    for step in range(400):
        one = chance.choice(processes)
        match chance.choice(chances):
            case "acquire" if len(owners) < 150:
                one.acquire(step)
                owners.append(step)
            case "beat" if owners:
                one.beat(*chance.sample(owners, chance.randint(1, min(9, len(owners)))))
            case "release" if owners:
                one.release(
                    owners.pop(0 if chance.random() < 0.7 else chance.randrange(len(owners)))
                )
            case "void" if owners:
                one.release(owners.pop(), void=LONG)
            case "other":
                one.acquire(step, other)
                one.release(step, other)
            case "few" if step > 300:  # The queue becomes short again.
                while len(owners) > 3:
                    one.release(owners.pop())
            case _:
                pass
        seen = [each.look() for each in chance.sample(processes, 2)]
        anew = seen_anew(folder)
        assert seen[0] == seen[1] == anew
        holders = [grant.claim.owner for grant in anew.grants]
        for state in (*seen, anew):
            assert [*holders, *state.places] == [f"{owner:032x}" for owner in owners]
        most = max(most, len(owners))
    assert most > 15


def test_a_waiter_that_comes_again_is_the_last_for_every_process(
    folder: Path, processes: list[Process], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its place, of a dead process, goes with the step in which it joins the queue anew."""
    holder, dying, one = processes
    two = Process(folder)
    holder.acquire(0)
    dying.acquire(1)
    for owner in range(2, 200):
        one.acquire(owner)
    assert len(two.look().places) == 199
    dead = {holder.engine.process, dying.engine.process}
    monkeypatch.setattr(Processes, "alive", lambda _self, process: process not in dead)
    one.acquire(1)
    order = [f"{owner:032x}" for owner in (*range(3, 200), 1)]
    for each in (one.look(), two.look(), seen_anew(folder)):
        assert [*each.places] == order
    two.engine.close()


@pytest.mark.parametrize("what", ["entry", "record", "larger slots"])
def test_a_process_may_be_killed_wherever_it_writes(
    folder: Path, processes: list[Process], monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """Whatever is missing of what it wrote, who waits still waits, and all see what another one writes next."""
    one = processes[0]
    record = folder / f"records-{file_of('k'):02d}"
    writes: list[tuple[int, bytes]] = []
    really = os.pwrite

    def pwrite(fd: int, data: bytes, offset: int) -> int:
        writes.append((offset, data))
        return really(fd, data, offset)

    def kind() -> str:
        """With larger slots, a record in the second one is copied into the first."""
        half = len(before) // 2
        kinds = ["entry" if offset % half else "record" for offset, _ in writes]
        return kinds[0] if len(kinds) == 1 else "larger slots" if len(kinds) == 3 else ""

    def act(process: Process, owner: int) -> None:
        """Join the queue or leave it: the bytes of the latter are the same, whoever writes them."""
        (process.acquire if what == "larger slots" else process.release)(owner)

    if what == "larger slots":
        turns = iter(range(1000))
    else:
        turns = iter(range(1, 200))
        for owner in range(200):
            one.acquire(owner)
    monkeypatch.setattr(os, "pwrite", pwrite)
    for turn in turns:
        before = record.read_bytes() if record.exists() else b""
        writes.clear()
        act(one, turn)
        if before and kind() == what:
            break
    assert kind() == what
    all_writes = tuple(writes)
    monkeypatch.setattr(os, "pwrite", really)
    for number, (offset, data) in enumerate(all_writes):
        for cut in (1, 4, 8, 12, 16, 18, 20, 24, 28, 29, len(data) // 2, len(data) - 1, len(data)):
            if (number + 1, cut) == (len(all_writes), len(data)):
                break
            torn = bytearray(before)
            for at, whole in (*all_writes[:number], (offset, data[:cut])):
                torn[at : at + len(whole)] = whole
            with contextlib.ExitStack() as stack:
                two, three = (Process(folder) for _ in range(2))
                stack.callback(two.engine.close)
                stack.callback(three.engine.close)
                record.write_bytes(before)
                former = two.look()
                assert three.look() == former
                record.write_bytes(torn)
                assert three.look() == seen_anew(folder) == former
                act(two, turn)
                assert three.look() == seen_anew(folder) == two.look() != former
    assert len(before) > 2 * _FIRST_SLOT or what == "larger slots"


def test_a_state_that_was_returned_does_not_change_with_the_file(processes: list[Process]) -> None:
    """Another thread may be going through its queue."""
    one, two, _ = processes

    def state() -> KeyState:
        assert one.engine.home
        file = one.engine.home.records[file_of("k")]
        visit = file.run([("k", lambda state, _: Step(state, GONE))], time.monotonic, bool)
        assert visit
        (done,), _ = visit
        return done.step.state

    for owner in range(200):
        one.acquire(owner)
    former = state()
    places = [*former.places]
    two.release(100)
    assert [*state().places] == [each for each in places if each != f"{100:032x}"]
    assert [*former.places] == places
