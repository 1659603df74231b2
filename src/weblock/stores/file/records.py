"""Record files: the states of the keys, each file behind its own ``flock``.

The hash of a key selects its file. A caller that changes states takes these steps (``run``):

1. It takes the file's permit, since ``flock`` does not exclude the threads of one process.
2. It locks the file, or leaves at once if another process is inside. Then it checks that the path
   still names this file: other processes would open the one that the path names.
3. It reads the newest record, unless no other process has written since it did so last.
4. It applies its changes, and writes the new record, if anything has changed.
5. It unlocks the file, and gives the permit back.

A file consists of two slots of one size. A slot has a record: a header (format, sequence number, length,
checksum, boot), the last fence of the file, and a row for each key: the key, a tab, and its state as
``codec`` writes it. The record with the highest sequence number is the valid one, and the next one goes
to the other slot. Where it does not fit, the file is made twice as large, with the valid record in the
first slot, which begins where it did.

A long queue would make each step long. So behind a record that is longer than ``_LONG``, callers write
entries with the rows that have changed, until the slot is full. Each entry has a header like a record,
with a higher sequence number. In a row without a state, the key is left out. A row with a ``+`` or ``-``
has the owners that have left the queue, and a state whose queue is only the places that are new (``+``).

What can fail:

- *A process is killed inside.* The kernel unlocks the file. If the record or entry is half written, its
  checksum is wrong, and what was before it is still there.
- *A process is stopped inside.* The others cannot lock the file: see ``_visit_later``.
- *The disk is full.* The space of a slot is reserved when it is made, and a record needs no more of it to
  renew or release a lease. What needs larger slots is rejected.
- *The machine crashes.* Nothing is synced, because leases end with the boot: of a record of another boot
  only the fence counts.
- *The file is removed.* Then its leases are gone, and their holders find out by their next renewal.
"""

from __future__ import annotations

import os
import struct
import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from queue import Empty
from typing import Final

from ..._core.table import KeyState, Moment, Place, current
from ..._platform.forks import close_in_children
from ...errors import EngineUnavailable
from ..cells import Done, Transition
from ..codec import from_bytes, to_bytes
from ..transport.pool import turns
from .directory import Directory, no_fork

try:
    import fcntl
except ImportError:  # On Windows, where open_engine() refuses.
    pass

FILES: Final = 64

_MAGIC: Final = b"WLR1"
_HEADER: Final = struct.Struct("<4sQII8s")
_FIRST_SLOT: Final = 16 * 1024
_LARGEST_SLOT: Final = 16 * 1024 * 1024
_LONG: Final = _FIRST_SLOT
"""Bytes of a record above which a change is written behind it."""

_BLOCK: Final = 4096
"""Bytes that are read at once: most records, or several entries."""

_HEADROOM: Final = 512
"""Bytes by which a record may grow while no caller joins a queue."""

_PERMIT_PATIENCE: Final = 0.1
"""Seconds to wait for another thread of this process to leave a file."""

States = dict[bytes, bytes | KeyState]
"""By key. The state of a long queue stays as it was decoded."""


@dataclass(slots=True)
class _Record:
    """What a file has: the newest record in the slot of that number, with the entries up to ``end``."""

    sequence: int = 0
    slot: int = 1
    end: int = 0
    fence: int = 0
    states: States = field(default_factory=dict)


Changes = Sequence[tuple[str, Transition]]
"""Keys, each with a function that changes its state."""

Visit = tuple[list[Done], States]
"""What became of each change, and the states of all keys of the file."""


def file_of(key: str) -> int:
    """Return the record file of a key. Python's ``hash`` would differ in each process."""
    return zlib.crc32(key.encode()) % FILES


class RecordFile:
    """One record file, as this process has it open."""

    def __init__(self, directory: Directory, index: int) -> None:
        self._directory = directory
        self._name = f"records-{index:02d}"
        self.path = f"{directory.path}/{self._name}"
        self._boot = bytes.fromhex(directory.boot)
        self._free = turns(1)
        self._fd = self._inode = -1
        self._size = self._half = self._room = 0
        """The size of the file, that of a slot, and that of a record when it is written."""
        self._known: _Record | None = None
        """What was read or written last; ``None`` if it must be read again."""
        self._headers = [b"", b""]
        """The headers of both slots then. The next record changes that of the other slot."""
        self._last = (b"", KeyState())
        """What was encoded last, and its state, which need not be decoded again."""
        self._closed = False
        self.waiting = 0
        """How many callers of this process wait for the file."""
        close_in_children(self)

    def run(
        self, changes: Changes, clock: Callable[[], float], alive: Callable[[str], bool]
    ) -> Visit | None:
        """Replace the states of keys; return ``None`` if another caller is inside.

        A permit is waited for, also by an event loop: the thread that has it continues only when it
        is given the interpreter. Raises ``FileNotFoundError`` if the directory is gone.
        """
        permits: list[None] = []
        try:
            permits += map(self._free.get, (True,), (_PERMIT_PATIENCE,))
            try:
                while not self._lock_what_is_there():
                    self._reopen()
                return self._apply(changes, Moment(clock(), time.time_ns() // 1000, alive))
            finally:
                if self._fd >= 0:
                    try:
                        fcntl.flock(self._fd, fcntl.LOCK_UN)
                    except BaseException:
                        self._let_go_of_file()
                        raise
        except (Empty, BlockingIOError):
            return None
        finally:
            if permits:
                self._free.put(None)

    @property
    def written_at(self) -> int:
        """Return a number that changes each time a process writes the file; 0 if there is none."""
        try:
            return os.stat(self.path).st_mtime_ns
        except OSError:
            return 0

    def close(self) -> None:
        """Close it when no caller is inside; later callers learn that it is gone."""
        permits: list[None] = []
        try:
            permits += map(self._free.get, (True,))
            self._closed = True
            self._let_go_of_file()
        finally:
            if permits:
                self._free.put(None)

    def fileno(self) -> int:
        """Return the number of its descriptor, which is negative if the file is closed."""
        return self._fd

    def _let_go_of_file(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def _lock_what_is_there(self) -> bool:
        """Lock the file, and check that other processes would open the same one."""
        if self._fd < 0:
            return False
        fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        try:
            there = os.stat(self.path)
        except OSError:
            return False
        if there.st_size != self._size:
            self._resized(there.st_size)
        return there.st_ino == self._inode

    def _reopen(self) -> None:
        self._let_go_of_file()
        if self._closed or not self._directory.is_at(self._directory.path):
            raise FileNotFoundError(self.path)
        self._known = None
        with no_fork.lock:
            self._fd = self._directory.open_file(self._name)
        self._inode = os.fstat(self._fd).st_ino

    def _apply(self, changes: Changes, moment: Moment) -> Visit:
        record = self._read()
        states, is_long = record.states, record.end > _LONG
        done: list[Done] = []
        rows: list[bytes] = []
        for key, transition in changes:
            name = key.encode()
            before = self._decoded(states[name]) if name in states else KeyState(record.fence)
            step = transition(before, moment)
            done.append(Done(step, moment.now))
            if (after := step.state) is not before:
                record.fence = max(record.fence, after.fence)
                rows.append(self._replace(states, name, before.places if is_long else None, after))
        if rows:
            self._write(record, rows, moment.now)
        self._known = record
        return done, states

    def _decoded(self, state: bytes | KeyState) -> KeyState:
        if isinstance(state, KeyState):
            return state
        last, known = self._last
        return known if state is last else from_bytes(state, self.path)

    def _replace(
        self, states: States, name: bytes, queue: dict[str, Place] | None, state: KeyState
    ) -> bytes:
        """Replace the state of a key, and return the row that says what has changed.

        If not all of it is to be written, ``queue`` is what the queue was before.
        """
        if state.blank:
            states.pop(name, None)
            return name
        if queue is not None:
            left, new = _differences(queue, state.places)
            if 2 * (len(left) + len(new)) < len(state.places):
                states[name] = state
                start = f"{'+' if new else '-'}{' '.join(left)}\t".encode()
                return name + b"\t" + start + to_bytes(state._replace(places=new))
        states[name] = encoded = to_bytes(state)
        self._last = encoded, state
        return name + b"\t" + encoded

    def _read(self) -> _Record:
        """Return what the file has. Until it is known again, after a failure too, all of it is read."""
        known, self._known = self._known, None
        if not self._half:
            self._reserve(0, 2 * _FIRST_SLOT)
        other = 1 - known.slot if known else 0
        former, header = self._headers[other], os.pread(self._fd, _HEADER.size, other * self._half)
        if known and former == header:
            if known.end > _LONG:
                self._follow(known)
            return known
        self._headers[other] = header
        self._headers[1 - other] = os.pread(self._fd, _HEADER.size, (1 - other) * self._half)
        headers = [_HEADER.unpack(each) for each in self._headers]
        highest = max(sequence for _, sequence, *_ in headers)
        for slot in (0, 1) if headers[0][1] == highest else (1, 0):
            record = _Record(slot=slot)
            self._follow(record)
            if record.end:
                record.sequence = max(record.sequence, highest)
                return record
        # Else the file is new, or its first writer was killed, or the machine has crashed.
        ours = all(_MAGIC.startswith(magic.rstrip(b"\0")) for magic, *_ in headers)
        if not ours or all(boot == self._boot for *_, boot in headers):
            raise self._directory.unavailable(
                f"{self.path} is damaged, or of another version of weblock: stop all processes that lock"
                " here, and remove it"
            )
        return _Record(highest)

    def _follow(self, record: _Record) -> None:
        """Add to a record the entries that are behind it by now."""
        changes: dict[bytes, list[bytes]] = {}
        block, at = b"", 0
        while not record.end or record.end > _LONG:
            room = self._half - record.end - _HEADER.size
            place = record.slot * self._half + record.end
            if len(block) < at + _HEADER.size:
                block, at = os.pread(self._fd, min(_BLOCK, room + _HEADER.size), place), 0
                if len(block) < _HEADER.size:
                    break
            magic, number, length, checksum, boot = _HEADER.unpack_from(block, at)
            if magic != _MAGIC or number <= record.sequence or not 0 < length <= room:
                break
            at += _HEADER.size + length
            payload = block[at - length : at]
            if len(block) < at:
                payload = os.pread(self._fd, length, place + _HEADER.size)
            if zlib.crc32(payload, number & 0xFFFFFFFF) != checksum:
                break
            record.sequence, record.end = number, record.end + _HEADER.size + length
            fence, *rows = payload.split(b"\n")
            record.fence = int(fence)
            for row in rows if boot == self._boot else ():
                name, _, state = row.partition(b"\t")
                if state.startswith((b"+", b"-")):
                    changes.setdefault(name, []).append(state)
                    continue
                changes.pop(name, None)
                record.states[name] = state
                if not state:
                    del record.states[name]
        for name, those in changes.items():
            record.states[name] = self._changed(record.states[name], those)

    def _changed(self, state: bytes | KeyState, changes: Sequence[bytes]) -> KeyState:
        """Return a state with changes of its queue, which others may be reading meanwhile."""
        places = self._decoded(state).places.copy()
        for count, change in enumerate(changes, start=1):
            left, _, encoded = change[1:].partition(b"\t")
            for owner in left.decode().split(" "):
                places.pop(owner, None)
            # The state of a later one replaces it, except for its places.
            if change.startswith(b"+") or count == len(changes):
                state = from_bytes(encoded, self.path)
                places.update(state.places)
        return self._decoded(state)._replace(places=places)

    def _write(self, record: _Record, rows: list[bytes], now: float) -> None:
        """Write rows that have changed behind a long record, else all rows into the other slot."""
        if record.end > _LONG:
            payload = b"\n".join([b"%d" % record.fence, *rows])
            if record.end + _HEADER.size + len(payload) <= self._half - _HEADROOM:
                self._put(record, payload, record.slot, record.end)
                return
        payload = _all_rows(record)
        if len(payload) > self._room:
            # Some keys may never be asked for again.
            for name, state in list(record.states.items()):
                if current(self._decoded(state), Moment(now, 0)).blank:
                    del record.states[name]
            payload = _all_rows(record)
            while len(payload) > self._room:
                try:
                    self._enlarge(record)
                except EngineUnavailable:
                    # The headroom is for renewals and releases, which add next to nothing.
                    former = max(record.end, self._half - _HEADROOM)
                    if len(payload) > min(former + _HEADROOM // 8, self._half) - _HEADER.size:
                        raise
                    break
        self._put(record, payload, 1 - record.slot, 0)

    def _put(self, record: _Record, payload: bytes, slot: int, offset: int) -> None:
        """Write an entry, with which the record ends then."""
        sequence = record.sequence + 1
        checksum = zlib.crc32(payload, sequence & 0xFFFFFFFF)
        header = _HEADER.pack(_MAGIC, sequence, len(payload), checksum, self._boot)
        _write_all(self._fd, header + payload, slot * self._half + offset)
        if not offset:
            self._headers[slot] = header
        record.sequence, record.slot = sequence, slot
        record.end = offset + _HEADER.size + len(payload)

    def _enlarge(self, record: _Record) -> None:
        """Make both slots twice as large. Only what is in the first one stays where it is."""
        if 2 * self._half > _LARGEST_SLOT:
            raise self._directory.unavailable("too many callers are waiting on this machine")
        if record.slot:
            former = _Record()
            self._follow(former)
            if former.end:
                former.sequence = record.sequence
                self._put(former, _all_rows(former), 0, 0)
                record.sequence = former.sequence
        self._reserve(2 * self._half, 2 * self._half)
        record.slot = 0

    def _reserve(self, offset: int, size: int) -> None:
        """Write zeros, so that later writes there need no more room."""
        try:
            _write_all(self._fd, bytes(size), offset)
        except OSError as error:
            raise self._directory.unavailable(
                f"no room for another lock in {self._directory.path}: {error.strerror}"
            ) from error
        self._resized(offset + size)

    def _resized(self, size: int) -> None:
        """Record a file's new size, and forget what was in its slots."""
        self._known = None
        self._half = _FIRST_SLOT if size >= 2 * _FIRST_SLOT else 0
        while 0 < 4 * self._half <= size:
            self._half *= 2
        # A long record has as much room again for entries behind it.
        self._room = self._half // 2 if self._half > _LONG else self._half - _HEADROOM
        self._size = size  # Last: after an exception of a signal handler, all of it is done again.


def _all_rows(record: _Record) -> bytes:
    rows = [
        name + b"\t" + (to_bytes(state) if isinstance(state, KeyState) else state)
        for name, state in list(record.states.items())
    ]
    return b"\n".join([b"%d" % record.fence, *rows])


def _differences(
    before: dict[str, Place], after: dict[str, Place]
) -> tuple[Sequence[str], dict[str, Place]]:
    """Return the owners that have left a queue, and the places that are new in it or have changed."""
    owners, former, later = [*before], [*before.values()], [*after.values()]
    first = later[0].claim.owner if later else ""
    gone = owners.index(first) if first in before else len(owners)
    stay = len(owners) - gone
    if former[gone:] == later[:stay]:  # As in most steps: all others stay as they are.
        return owners[:gone], {each.claim.owner: each for each in later[stay:]}
    kept = [owner for owner in owners if owner in after]
    if kept != [*after][: len(kept)]:  # One has left and has come again, to the end.
        return owners, after
    changed = {owner: each for owner, each in after.items() if before.get(owner) is not each}
    return [owner for owner in owners if owner not in after], changed


def _write_all(fd: int, data: bytes, offset: int) -> None:
    written = os.pwrite(fd, data, offset)
    while written < len(data):
        written += os.pwrite(fd, data[written:], offset + written)
