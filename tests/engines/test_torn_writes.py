"""Writes that were never finished."""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.waiting import PATIENCE
from weblock import EngineUnavailable, Locks, LockTimeout
from weblock.stores.file import FileEngine
from weblock.stores.file.records import _FIRST_SLOT, _HEADER

from .keys import keys_in, record_of
from .processes import Child

STAGES = {
    "one byte": 1,
    "half the magic": 2,
    "the magic": 4,
    "half the sequence": 8,
    "the sequence": 12,
    "the length": 16,
    "half the checksum": 18,
    "the checksum": 20,
    "half the boot": 24,
    "the header": 28,
    "one byte of the payload": 29,
    "half of the payload": -0.5,
    "all but one byte": -1,
}


def _as_another_process(folder: Path) -> Locks:
    """Locks that know nothing of what this process has read and written so far.

    An engine that is opened by a URL is shared by every spelling of its directory.
    """
    return Locks(FileEngine(str(folder)))


@pytest.mark.parametrize("stage", STAGES.values(), ids=STAGES)
@pytest.mark.parametrize("slot", ["new", "used"])
def test_a_write_torn_at_any_byte_leaves_the_former_state(
    url: str, folder: Path, stage: float, slot: str
) -> None:
    """What was true before a torn write is true after it, and the next write is whole."""
    record = record_of(folder, "k")
    with Locks.from_url(url) as locks:
        if slot == "used":
            for _ in range(5):
                locks.acquire("k").release()
        lease = locks.acquire("k")
        before = record.read_bytes()
        lease.release()  # This write is torn: it is the lease that must be there again.
        after = record.read_bytes()
        at = next(n for n in itertools.count() if before[n] != after[n]) // _FIRST_SLOT
        start = at * _FIRST_SLOT
        length = _HEADER.size + _HEADER.unpack_from(after, start)[2]
        cut = int(length * -stage if -1 < stage < 0 else stage % length)
        torn = after
        while torn == after:  # The bytes that are missing may be those that were there before.
            torn = before[:start] + after[start : start + cut] + before[start + cut :]
            cut -= 1
        record.write_bytes(torn)
        with _as_another_process(folder) as other:
            with pytest.raises(LockTimeout):
                other.acquire("k", wait=0)
            (another,) = keys_in(record, 1)
            with other.hold(another) as later:
                assert later.fence > lease.fence
            with pytest.raises(LockTimeout):
                other.acquire("k", wait=0)


def test_a_first_write_torn_at_any_stage_leaves_the_key_free(locks: Locks, folder: Path) -> None:
    """A process killed in the very first write of a record file has not made it useless."""
    locks.acquire("k").release()
    record = record_of(folder, "k")
    whole = record.read_bytes()
    for cut in (1, 3, 4, 12, 20, 28, 40):
        record.write_bytes((whole[:cut]).ljust(2 * _FIRST_SLOT, b"\0"))
        locks.acquire("k", wait=0).release()


def test_a_file_with_no_whole_slot_is_called_damaged(locks: Locks, folder: Path) -> None:
    """Where both slots are broken, no lease is guessed: an error names the file and the remedy."""
    locks.acquire("k").release()
    record = record_of(folder, "k")
    broken = bytearray(record.read_bytes())
    for slot in (0, _FIRST_SLOT):
        broken[slot + _HEADER.size] ^= 0xFF
    record.write_bytes(broken)
    damaged = pytest.raises(EngineUnavailable, match=r"records-\d\d is damaged, .*remove it")
    with _as_another_process(folder) as fresh, damaged:
        fresh.acquire("k", wait=0)


def test_processes_killed_while_they_hammer_leave_every_state_readable(
    url: str, folder: Path, child: Callable[..., Child]
) -> None:
    """After each kill -9, at whatever point, all keys can be had at once, with higher fences."""
    keys = keys_in(record_of(folder, "k"), 6)
    chance = random.Random(1)
    hammer = f"""
    import threading
    locks = Locks.from_url(url, wait=None, ttl=3600)
    def hammer(key):
        while True:
            with locks.hold(key):
                pass
    for key in {keys!r} * 2:
        threading.Thread(target=hammer, args=(key,), daemon=True).start()
    locks.acquire("started").release()
    """
    fences = dict.fromkeys(keys, 0)
    with Locks.from_url(url) as locks:
        for _ in range(30 if "WEBLOCK_LONG" in os.environ else 6):
            victim, survivor = child(), child()
            victim.begin(hammer)
            survivor.run(hammer)
            victim.outcome()
            for _ in range(chance.randrange(200)):
                locks.acquire("elsewhere").release()
            victim.kill()
            survivor.kill()
            for key in keys:
                with locks.hold(key, wait=PATIENCE) as lease:
                    assert lease.fence > fences[key]
                    fences[key] = lease.fence
