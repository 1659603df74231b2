"""What many leases and many keys cost, counted."""

from __future__ import annotations

import fcntl
import os
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from weblock import Locks
from weblock._core.keeping import PORTION
from weblock._core.ports import Pulse
from weblock._runtime.runtimes import drive
from weblock.stores.file import FileEngine, records
from weblock.stores.redis.calls import Call, Layout
from weblock.stores.redis.store import RedisStore


class Wire:
    """A way to a server that renews each lease."""

    def __init__(self) -> None:
        self.calls: list[Call] = []

    async def run_all(self, calls: Sequence[Call]) -> list[list[list[Any]]]:
        self.calls += calls
        return [[[b"held", 1, 7, 10_000_000, 1]] * (len(call.args) // 2) for call in calls]


def test_a_script_renews_one_lease_where_each_has_its_own_key() -> None:
    """However many leases a keeper has, no script stops the server for more than one of them."""
    wire = Wire()
    store = RedisStore("redis", Layout("weblock", 1), wire)  # type: ignore[arg-type]
    pulses = [Pulse(f"shop:{n}", f"{n:032x}", 10.0) for n in range(PORTION)]
    drive(store.refresh(pulses))
    assert [call.args for call in wire.calls] == [(each.owner, "10000000") for each in pulses]


def test_one_script_renews_the_leases_of_one_key() -> None:
    """It renews as many as the keeper sends in one request, which is a portion at most."""
    wire = Wire()
    store = RedisStore("redis", Layout("weblock", 1), wire)  # type: ignore[arg-type]
    drive(store.refresh([Pulse("shop:1", f"{n:032x}", 10.0) for n in range(PORTION)]))
    assert [len(call.args) // 2 for call in wire.calls] == [PORTION] == [200]


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """The system calls on files, by name."""
    counts: Counter[str] = Counter()

    def count(name: str, call: Callable[..., Any], *args: Any, **options: Any) -> Any:
        counts[name] += 1
        return call(*args, **options)

    for module, names in ((fcntl, ["flock"]), (os, ["stat", "fstat", "open", "pread", "pwrite"])):
        for name in names:
            monkeypatch.setattr(module, name, partial(count, name, getattr(module, name)))
    return counts


SECTION = {"flock": 4, "stat": 2, "pread": 2, "pwrite": 2}
"""To acquire a key and to release it: lock, see whether the file is still there and what has changed, write, unlock."""


@pytest.mark.parametrize("keys", [1, 1000])
def test_a_section_on_files_makes_as_many_system_calls_with_any_number_of_keys(
    keys: int, locks: Locks, counted: Counter[str]
) -> None:
    """It reads one header each time, in whichever of the files its key is."""
    names = [f"key-{n}" for n in range(keys)]
    for _ in range(2):  # The first time, the files are opened and made.
        counted.clear()
        for name in names:
            with locks.hold(name):
                pass
    assert counted == {name: keys * count for name, count in SECTION.items()}


def test_what_another_process_has_written_is_read_once(
    folder: Path, locks: Locks, counted: Counter[str]
) -> None:
    """A caller that finds a new header reads the other one, and then the newest record."""
    with Locks(FileEngine(str(folder))) as others:
        for _ in range(3):
            with others.hold("k"):
                pass
            counted.clear()
            with locks.hold("k"):
                pass
    assert counted == SECTION | {"pread": SECTION["pread"] + 2}


def test_a_section_on_files_calls_few_functions(locks: Locks) -> None:
    """Each of its two visits writes one payload, and does nothing that only a long record needs."""
    calls: Counter[str] = Counter()

    def note(frame: FrameType, event: str, _argument: object) -> None:
        if event == "call" and frame.f_code.co_filename == records.__file__:
            calls[frame.f_code.co_name] += 1

    for _ in range(3):
        calls.clear()
        sys.setprofile(note)
        try:
            with locks.hold("k"):
                pass
        finally:
            sys.setprofile(None)
    del calls["<listcomp>"]  # Python 3.12 and later inline these.
    assert calls.total() <= 21
