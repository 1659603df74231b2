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
from collections.abc import Callable, Iterable, Mapping, Sequence
from queue import Empty
from typing import Final, NamedTuple

from ..._core.table import KeyState, Moment, Place, Step, current
from ..._platform.forks import close_in_children
from ...errors import EngineUnavailable
from ..cells import Transition
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

_HEADROOM: Final = 512
"""Bytes by which a record may grow while no caller joins a queue."""

_PERMIT_PATIENCE: Final = 0.1
"""Seconds to wait for another thread of this process to leave a file."""

States = dict[bytes, bytes | KeyState]
"""By key. The state of a long queue stays as it was decoded."""


class _Record(NamedTuple):
    """What a file has: the newest record in the slot of that number, with the entries up to ``end``."""

    sequence: int
    slot: int
    end: int
    fence: int
    states: States


class Visit(NamedTuple):
    """What a caller has done in a file, and when; ``names`` are the keys that are in it now."""

    steps: list[Step]
    now: float
    names: Iterable[bytes]


Changes = Sequence[tuple[str, Transition]]
"""Keys, each with a function that changes its state."""

_EMPTY: Final = _Record(0, 1, 0, 0, {})


class _Queue(dict[str, Place]):
    """A queue that knows the owners whose places have ``changed`` since it was written."""

    def __init__(self, places: Mapping[str, Place], changed: Iterable[str] = ()) -> None:
        super().__init__(places)
        self.changed = set(changed)

    def copy(self) -> _Queue:
        return _Queue(self, self.changed)

    def __setitem__(self, owner: str, place: Place) -> None:
        if owner in self.changed and owner not in self:  # It has left, and goes to the end.
            self.changed.update(self)
        self.changed.add(owner)
        super().__setitem__(owner, place)

    def __delitem__(self, owner: str) -> None:
        self.changed.add(owner)
        super().__delitem__(owner)


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
        self._size = self._half = 0
        """The size of the file, and that of a slot."""
        self._known = _EMPTY
        """What was read or written last; ``_EMPTY`` if it must be read again."""
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
                return self._apply(changes, Moment(clock(), int(time.time() * 1_000_000), alive))
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
        self._known = _EMPTY
        with no_fork.lock:
            self._fd = self._directory.open_file(self._name)
        self._inode = os.fstat(self._fd).st_ino

    def _apply(self, changes: Changes, moment: Moment) -> Visit:
        # After a failure on the way, everything is read anew.
        known, self._known = self._known, _EMPTY
        record = self._read(known)
        is_long = record.end > _LONG
        fence, states = record.fence, record.states
        rows: list[bytes] = []
        steps: list[Step] = []
        for key, transition in changes:
            name = key.encode()
            before = self._decoded(states[name]) if name in states else KeyState(fence)
            if is_long and not isinstance(before.places, _Queue):
                before = before._replace(places=_Queue(before.places))
            step = transition(before, moment)
            steps.append(step)
            if step.state is not before:
                fence = max(fence, step.state.fence)
                rows.append(self._replace(states, name, step.state, is_long=is_long))
        if rows:
            record = self._write(_Record(*record[:3], fence, states), rows, moment.now)
        self._known = record
        return Visit(steps, moment.now, states)

    def _decoded(self, state: bytes | KeyState) -> KeyState:
        if isinstance(state, KeyState):
            return state
        last, known = self._last
        return known if state is last else from_bytes(state, self.path)

    def _replace(self, states: States, name: bytes, state: KeyState, *, is_long: bool) -> bytes:
        """Replace the state of a key, and return the row that says what has changed."""
        if state.blank:
            states.pop(name, None)
            return name
        if isinstance(places := state.places, _Queue):
            changed, places.changed = places.changed, set()
            if is_long and 2 * len(changed) < len(places):
                states[name] = state
                new = {each: places[each] for each in changed if each in places}
                left = " ".join(each for each in changed if each not in places)
                start = f"{'+' if new else '-'}{left}\t".encode()
                return name + b"\t" + start + to_bytes(state._replace(places=new))
        states[name] = encoded = to_bytes(state)
        self._last = encoded, state
        return name + b"\t" + encoded

    def _read(self, known: _Record) -> _Record:
        """Return what the file has, of which this is known."""
        if not self._half:
            self._reserve(0, 2 * _FIRST_SLOT)
        slot, other = known.slot, 1 - known.slot
        former, self._headers[other] = self._headers[other], self._header_at(other, 0)
        if known is not _EMPTY and former == self._headers[other]:
            return self._followed(known) if known.end > _LONG else known
        self._headers[slot] = self._header_at(slot, 0)
        headers = [_HEADER.unpack(each) for each in self._headers]
        highest = max(sequence for _, sequence, *_ in headers)
        for slot in (0, 1) if headers[0][1] == highest else (1, 0):
            record = self._followed(_Record(0, slot, 0, 0, {}))
            if record.end:
                return record._replace(sequence=max(record.sequence, highest))
        # Else the file is new, or its first writer was killed, or the machine has crashed.
        ours = all(_MAGIC.startswith(magic.rstrip(b"\0")) for magic, *_ in headers)
        if not ours or all(boot == self._boot for *_, boot in headers):
            raise self._directory.unavailable(
                f"{self.path} is damaged, or of another version of weblock: stop all processes that lock"
                " here, and remove it"
            )
        return _EMPTY._replace(sequence=highest, states={})

    def _followed(self, record: _Record) -> _Record:
        """Return a record with the entries that are behind it by now."""
        sequence, slot, end, fence, states = record
        changes: dict[bytes, list[bytes]] = {}
        header = self._header_at(slot, end) if end else self._headers[slot]
        while len(header) == _HEADER.size:
            magic, number, length, checksum, boot = _HEADER.unpack(header)
            start = end + _HEADER.size
            if magic != _MAGIC or number <= sequence or not 0 < length <= self._half - start:
                break
            payload = os.pread(self._fd, length, slot * self._half + start)
            if zlib.crc32(payload, number & 0xFFFFFFFF) != checksum:
                break
            sequence, end = number, start + length
            header = self._header_at(slot, end) if end > _LONG else b""
            written, *rows = payload.split(b"\n")
            fence = int(written)
            for row in rows if boot == self._boot else ():
                name, _, state = row.partition(b"\t")
                if state.startswith((b"+", b"-")):
                    changes.setdefault(name, []).append(state)
                    continue
                changes.pop(name, None)
                states[name] = state
                if not state:
                    del states[name]
        for name, those in changes.items():
            states[name] = self._changed(states[name], those)
        return _Record(sequence, slot, end, fence, states)

    def _changed(self, state: bytes | KeyState, changes: Sequence[bytes]) -> KeyState:
        """Return a state with changes of its queue, which others may be reading meanwhile."""
        places = _Queue(self._decoded(state).places)
        for count, change in enumerate(changes, start=1):
            left, _, encoded = change[1:].partition(b"\t")
            for owner in left.decode().split(" "):
                places.pop(owner, None)
            # The state of a later one replaces it, except for its places.
            if change.startswith(b"+") or count == len(changes):
                state = from_bytes(encoded, self.path)
                places.update(state.places)
        return self._decoded(state)._replace(places=places)

    def _header_at(self, slot: int, offset: int) -> bytes:
        return os.pread(self._fd, _HEADER.size, slot * self._half + offset)

    def _write(self, record: _Record, rows: list[bytes], now: float) -> _Record:
        """Write rows that have changed behind a long record, else all rows into the other slot."""
        if record.end > _LONG:
            payload = b"\n".join([b"%d" % record.fence, *rows])
            if record.end + _HEADER.size + len(payload) <= self._half - _HEADROOM:
                return self._put(record, payload, record.slot, record.end)
        payload = _all_rows(record)
        if len(payload) > self._room:
            # Some keys may never be asked for again.
            for name, state in list(record.states.items()):
                if current(self._decoded(state), Moment(now, 0)).blank:
                    del record.states[name]
            payload = _all_rows(record)
            while len(payload) > self._room:
                try:
                    record = self._enlarge(record)
                except EngineUnavailable:
                    # The headroom is for renewals and releases, which add next to nothing.
                    former = max(record.end, self._half - _HEADROOM)
                    if len(payload) > min(former + _HEADROOM // 8, self._half) - _HEADER.size:
                        raise
                    break
        return self._put(record, payload, 1 - record.slot, 0)

    @property
    def _room(self) -> int:
        """The length of a record in this file. A long one has as much again for entries behind it."""
        return self._half // 2 if self._half > _LONG else self._half - _HEADROOM

    def _put(self, record: _Record, payload: bytes, slot: int, offset: int) -> _Record:
        """Write an entry, and return the record that ends with it."""
        sequence, end = record.sequence + 1, offset + _HEADER.size + len(payload)
        checksum = zlib.crc32(payload, sequence & 0xFFFFFFFF)
        header = _HEADER.pack(_MAGIC, sequence, len(payload), checksum, self._boot)
        _write_all(self._fd, header + payload, slot * self._half + offset)
        if not offset:
            self._headers[slot] = header
        return _Record(sequence, slot, end, record.fence, record.states)

    def _enlarge(self, record: _Record) -> _Record:
        """Make both slots twice as large. Only what is in the first one stays where it is."""
        if 2 * self._half > _LARGEST_SLOT:
            raise self._directory.unavailable("too many callers are waiting on this machine")
        if record.slot and (former := self._followed(_Record(0, 1, 0, 0, {}))).end:
            former = former._replace(sequence=record.sequence)
            record = record._replace(sequence=self._put(former, _all_rows(former), 0, 0).sequence)
        self._reserve(2 * self._half, 2 * self._half)
        return record._replace(slot=0)

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
        self._known = _EMPTY
        self._half = _FIRST_SLOT if size >= 2 * _FIRST_SLOT else 0
        while 0 < 4 * self._half <= size:
            self._half *= 2
        self._size = size  # Last: after an exception of a signal handler, all of it is done again.


def _all_rows(record: _Record) -> bytes:
    rows = [
        name + b"\t" + (to_bytes(state) if isinstance(state, KeyState) else state)
        for name, state in list(record.states.items())
    ]
    return b"\n".join([b"%d" % record.fence, *rows])


def _write_all(fd: int, data: bytes, offset: int) -> None:
    written = os.pwrite(fd, data, offset)
    while written < len(data):
        written += os.pwrite(fd, data[written:], offset + written)
