"""Record files: the states of the keys, each file behind its own ``flock``.

The hash of a key selects its file. A caller that changes states takes these steps (``run``):

1. It takes the file's permit, since ``flock`` does not exclude the threads of one process.
2. It locks the file, or leaves at once if another process is inside. Then it checks that the path
   still names this file: other processes would open the one that the path names.
3. It reads the newest record, unless no other process has written since it did so last.
4. It applies its changes, and writes the new record, if anything has changed.
5. It unlocks the file, and gives the permit back.

A file consists of two slots of one size. A slot has a record: a header (format, sequence number, length,
checksum, boot), the last fence of the file, and a line for each key: the key, a tab, and its state as
``codec`` writes it. The record with the highest sequence number is the valid one, and the next one goes
to the other slot. Where it does not fit, the file is made twice as large, with the valid record in the
first slot, which begins where it did.

What can fail:

- *A process is killed inside.* The kernel unlocks the file. If the record is half written, its
  checksum is wrong, and the one before it is still there.
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
from collections.abc import Callable, Mapping, Sequence
from queue import Empty
from typing import Final, NamedTuple

from ..._core.table import KeyState, Moment, Step, current
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
_HEADROOM: Final = 512
"""Bytes by which a record may grow while no caller joins a queue."""

_PERMIT_PATIENCE: Final = 0.1
"""Seconds to wait for another thread of this process to leave a file."""


class _Record(NamedTuple):
    """What a file has in its newest valid slot, of that number."""

    sequence: int
    slot: int
    fence: int
    lines: dict[bytes, bytes]
    length: int


class Visit(NamedTuple):
    """What a caller has done in a file, and when; ``lines`` by key are what is in it now."""

    steps: list[Step]
    now: float
    lines: Mapping[bytes, bytes]


Changes = Sequence[tuple[str, Transition]]
"""Keys, each with a function that changes its state."""

_EMPTY: Final = _Record(0, 1, 0, {}, 0)


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
        self._headers = [b"", b""]
        self._known = _EMPTY
        """The record that was read or written last; ``_EMPTY`` if it must be read again."""
        self._last = (b"", KeyState())
        """The line that was written last, and its state, which need not be read again."""
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
        record = self._read()
        self._known = _EMPTY  # After a failure on the way, everything is read anew.
        fence, lines, changed, steps = record.fence, record.lines, False, []
        for key, transition in changes:
            name = key.encode()
            line = lines.get(name)
            before = self._state_in(line) if line else KeyState(fence)
            step = transition(before, moment)
            steps.append(step)
            state = step.state
            if state is not before:
                changed = True
                fence = max(fence, state.fence)
                if state.blank:
                    lines.pop(name, None)
                else:
                    lines[name] = line = name + b"\t" + to_bytes(state)
                    self._last = line, state
        if changed:
            record = self._write(record, fence, moment.now)
        self._known = record
        return Visit(steps, moment.now, record.lines)

    def _state_in(self, line: bytes) -> KeyState:
        last, state = self._last
        return state if line is last else from_bytes(line.partition(b"\t")[2], self.path)

    def _read(self) -> _Record:
        other = 1 - self._known.slot  # The first that has written since has written there.
        if self._known is not _EMPTY and self._header_in(other) == self._headers[other]:
            return self._known
        self._known = _EMPTY
        if not self._half:
            self._reserve(0, 2 * _FIRST_SLOT)
        self._headers = [self._header_in(0), self._header_in(1)]
        headers = [_HEADER.unpack(each) for each in self._headers]
        highest = max(sequence for _, sequence, *_ in headers)
        for slot in (0, 1) if headers[0][1] == highest else (1, 0):
            magic, sequence, length, checksum, boot = headers[slot]
            if magic != _MAGIC or not 0 < length < self._half:
                continue
            payload = os.pread(self._fd, length, slot * self._half + _HEADER.size)
            if zlib.crc32(payload, sequence & 0xFFFFFFFF) == checksum:
                fence, *rows = payload.split(b"\n")
                lines = {line.partition(b"\t")[0]: line for line in rows if boot == self._boot}
                return _Record(highest, slot, int(fence), lines, length)
        # Else the file is new, or its first writer was killed, or the machine has crashed.
        ours = all(_MAGIC.startswith(magic.rstrip(b"\0")) for magic, *_ in headers)
        if not ours or all(boot == self._boot for *_, boot in headers):
            raise self._directory.unavailable(
                f"{self.path} is damaged, or of another version of weblock: stop all processes that lock"
                " here, and remove it"
            )
        return _EMPTY._replace(sequence=highest, lines={})

    def _header_in(self, slot: int) -> bytes:
        return os.pread(self._fd, _HEADER.size, slot * self._half)

    def _write(self, record: _Record, fence: int, now: float) -> _Record:
        """Write the lines of a record, and return it as it is now."""
        lines = record.lines
        payload = _payload(fence, lines)
        if len(payload) > self._half - _HEADROOM:
            # Some keys may never be asked for again.
            for name, line in tuple(lines.items()):
                if current(self._state_in(line), Moment(now, 0)).blank:
                    del lines[name]
            payload = _payload(fence, lines)
        while len(payload) > self._half - _HEADROOM:
            try:
                record = self._enlarge(record)
            except EngineUnavailable:
                # The headroom is for renewals and releases, which add next to nothing.
                if len(payload) > min(record.length + _HEADROOM // 8, self._half - _HEADER.size):
                    raise
                break
        number, sequence = 1 - record.slot, record.sequence + 1
        checksum = zlib.crc32(payload, sequence & 0xFFFFFFFF)
        header = _HEADER.pack(_MAGIC, sequence, len(payload), checksum, self._boot)
        _write_all(self._fd, header + payload, number * self._half)
        self._headers[number] = header
        return _Record(sequence, number, fence, lines, len(payload))

    def _enlarge(self, record: _Record) -> _Record:
        """Make both slots twice as large. Only the record in the first one stays where it is."""
        if 2 * self._half > _LARGEST_SLOT:
            raise self._directory.unavailable("too many callers are waiting on this machine")
        if record.slot and record.length:
            copy = os.pread(self._fd, _HEADER.size + record.length, self._half)
            _write_all(self._fd, copy, 0)
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
        self._known, self._headers = _EMPTY, [b"", b""]
        self._half = _FIRST_SLOT if size >= 2 * _FIRST_SLOT else 0
        while 0 < 4 * self._half <= size:
            self._half *= 2
        self._size = size  # Last: after an exception of a signal handler, all of it is done again.


def _payload(fence: int, lines: Mapping[bytes, bytes]) -> bytes:
    return b"\n".join([b"%d" % fence, *lines.values()])


def _write_all(fd: int, data: bytes, offset: int) -> None:
    written = os.pwrite(fd, data, offset)
    while written < len(data):
        written += os.pwrite(fd, data[written:], offset + written)
