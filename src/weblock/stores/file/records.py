"""Record files: the states of the keys of one hash, each file behind its own ``flock``.

A file has pairs of slots, each pair twice as large as the one before. A write goes to a slot that
does not have the present state, with a higher sequence number and a checksum, so that a process
that is killed inside a write leaves the former state readable. The space of a slot is reserved
when it is made: on a full disk, a lease can still be renewed and released.

Nothing is synced to the disk: a crash of the machine voids every lease anyway, and the boot that
each slot names tells its leases from those of another.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import struct
import threading
import zlib
from collections.abc import Iterator
from typing import Final, NamedTuple

from ..._core.table import Claim, Grant, KeyState, Moment, Place, Step, Voided
from ...errors import ConfigurationError, EngineUnavailable
from ..cells import Transition
from .directory import Directory

FILES: Final = 64

_MAGIC: Final = b"WLR1"
_HEADER: Final = struct.Struct("<4sIQI8s")
_FIRST_SLOT: Final = 16 * 1024
_LARGEST_SLOT: Final = 16 * 1024 * 1024
_HEADROOM: Final = 512
"""Bytes that a state may grow by without anybody joining a queue."""


class _Slot(NamedTuple):
    offset: int
    size: int


class _Record(NamedTuple):
    """What a file says: the highest fence given, and the states of keys, still encoded."""

    sequence: int
    slot: _Slot | None
    fence: int
    rows: dict[bytes, bytes]
    length: int


_EMPTY: Final = _Record(0, None, 0, {}, 0)


def file_of(key: str) -> int:
    """The record file of a key. Not Python's ``hash``, which every process salts anew."""
    return zlib.crc32(key.encode()) % FILES


class DirectoryGone(Exception):
    """The directory has been deleted or moved away, and everything in it with it."""


class RecordFile:
    """One record file. ``try_lock`` and ``unlock`` bracket ``apply``."""

    def __init__(self, directory: Directory, index: int) -> None:
        self._directory = directory
        self._name = f"records-{index:02d}"
        self._path = f"{directory.path}/{self._name}"
        self._boot = bytes.fromhex(directory.boot)
        self._mutex = threading.Lock()
        self._fd = -1
        self._inode = -1
        self._size = 0
        self._known = _EMPTY

    def try_lock(self) -> bool:
        """Whether the file is ours now. Threads exclude one another by a mutex, for they share
        one open file. Raises ``DirectoryGone`` if there is no directory to have it in.
        """
        if not self._mutex.acquire(blocking=False):
            return False
        try:
            while not self._lock_what_is_there():
                self._reopen()
        except BlockingIOError:
            self._mutex.release()
            return False
        except BaseException:
            self._mutex.release()
            raise
        return True

    def unlock(self) -> None:
        fcntl.flock(self._fd, fcntl.LOCK_UN)
        self._mutex.release()

    def apply(self, key: str, transition: Transition, moment: Moment) -> Step:
        """Replaces the state of ``key``; a state that stays the same is not written again."""
        record = self._read()
        name = key.encode()
        row = record.rows.get(name)
        before = _decoded(row) if row else KeyState(record.fence)
        step = transition(before, moment)
        if step.state is not before:
            self._write(record, name, step.state)
        return step

    def stuck_for(self, seconds: float) -> str:
        """Says who is in the way."""
        pid = _flock_holder(self._fd)
        who = f"process {pid} has" if pid else "some process has"
        return (
            f"{who} been inside {self._path} for {seconds:g} s, where it should be for"
            " microseconds; it may be stopped (SIGSTOP, a debugger): continue or kill it"
        )

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _lock_what_is_there(self) -> bool:
        """Locks the file, and looks whether it is still the one that others would open."""
        if self._fd < 0:
            return False
        fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        try:
            there = os.stat(self._path)
        except FileNotFoundError:
            return False
        self._size = there.st_size
        return there.st_ino == self._inode

    def _reopen(self) -> None:
        self.close()
        if self._directory.deleted:
            raise DirectoryGone
        self._known = _EMPTY
        self._fd = self._directory.open_file(self._name)
        found = os.fstat(self._fd)
        self._inode = found.st_ino
        if found.st_size < 2 * _FIRST_SLOT:
            self._reserve(0, 2 * _FIRST_SLOT)

    def _read(self) -> _Record:
        headers = [
            (*_HEADER.unpack(os.pread(self._fd, _HEADER.size, slot.offset)), slot)
            for slot in _slots_in(self._size)
        ]
        torn = 0
        highest = max(sequence for _, sequence, *_ in headers)
        for header in sorted(headers, key=lambda header: header[1], reverse=True):
            if header[0] == bytes(4):
                continue
            if record := self._read_slot(*header, highest=highest):
                self._known = record
                return record
            torn += 1
        if torn > 1:
            raise EngineUnavailable(
                self._directory.engine,
                f"{self._path} is damaged: stop all processes that lock here, and remove it",
            )
        return _EMPTY._replace(sequence=highest)

    def _read_slot(
        self,
        magic: bytes,
        sequence: int,
        length: int,
        checksum: int,
        boot: bytes,
        slot: _Slot,
        *,
        highest: int,
    ) -> _Record | None:
        """The record in a slot, or ``None`` if its writer was killed while it wrote."""
        if magic != _MAGIC:
            raise ConfigurationError(
                f"{self._path} is no record file of this version of weblock (it starts with"
                f" {magic!r}, not {_MAGIC!r}): let all processes run the same version, or name"
                " another directory"
            )
        known = self._known
        if known.slot == slot and known.sequence == sequence == highest:
            return known
        payload = os.pread(self._fd, length, slot.offset + _HEADER.size)
        if len(payload) != length or zlib.crc32(payload, sequence & 0xFFFFFFFF) != checksum:
            return None
        fence, *lines = payload.split(b"\n")
        rows = dict(line.split(b"\t", 1) for line in lines)
        if boot != self._boot:
            self._directory.refuse_other_machine()
            rows = {}
        return _Record(highest, slot, int(fence), rows, length)

    def _write(self, record: _Record, name: bytes, state: KeyState) -> None:
        rows = dict(record.rows)
        if state.blank:
            rows.pop(name, None)
        else:
            rows[name] = _encoded(state)
        fence = max(record.fence, state.fence)
        lines = [str(fence).encode(), *(b"\t".join(row) for row in rows.items())]
        payload = b"\n".join(lines)
        sequence = record.sequence + 1
        checksum = zlib.crc32(payload, sequence & 0xFFFFFFFF)
        header = _HEADER.pack(_MAGIC, sequence, len(payload), checksum, self._boot)
        slot = self._slot_for(len(payload), record)
        self._known = _EMPTY
        _write_all(self._fd, header + payload, slot.offset)
        self._known = _Record(sequence, slot, fence, rows, len(payload))

    def _slot_for(self, length: int, record: _Record) -> _Slot:
        """The smallest slot that is not in use and has room, and headroom for what may not fail."""
        free = [slot for slot in _slots_in(self._size) if slot != record.slot]
        needed = _HEADER.size + length
        for slot in free:
            if slot.size >= needed + _HEADROOM:
                return slot
        try:
            return self._grow(needed + _HEADROOM)
        except EngineUnavailable:
            if length <= record.length + _HEADROOM // 8 and free[-1].size >= needed:
                return free[-1]
            raise

    def _grow(self, needed: int) -> _Slot:
        last = list(_slots_in(self._size))[-1]
        size = 2 * last.size
        if size > _LARGEST_SLOT:
            raise EngineUnavailable(
                self._directory.engine, "too many callers are waiting on this machine"
            )
        self._reserve(self._size, 2 * size)
        slot = _Slot(last.offset + last.size, size)
        return slot if size >= needed else self._grow(needed)

    def _reserve(self, offset: int, size: int) -> None:
        try:
            _allocate(self._fd, offset, size)
        except OSError as error:
            raise EngineUnavailable(
                self._directory.engine,
                f"no room for another lock in {self._directory.path}: {error.strerror}",
            ) from error
        self._size = offset + size


def _slots_in(file_size: int) -> Iterator[_Slot]:
    offset, size = 0, _FIRST_SLOT
    while offset + 2 * size <= file_size:
        yield _Slot(offset, size)
        yield _Slot(offset + size, size)
        offset += 2 * size
        size *= 2


def _encoded(state: KeyState) -> bytes:
    return json.dumps(state, separators=(",", ":")).encode()


def _decoded(row: bytes) -> KeyState:
    fence, grant, queue, voided = json.loads(row)
    return KeyState(
        fence,
        grant and Grant(Claim(*grant[0]), *grant[1:]),
        tuple(Place(Claim(*claim), until) for claim, until in queue),
        tuple(Voided(*each) for each in voided),
    )


def _allocate(fd: int, offset: int, size: int) -> None:
    try:
        os.posix_fallocate(fd, offset, size)
    except AttributeError:  # macOS has none
        _write_all(fd, bytes(size), offset)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):
            raise
        _write_all(fd, bytes(size), offset)


def _write_all(fd: int, data: bytes, offset: int) -> None:
    while data:
        written = os.pwrite(fd, data, offset)
        data, offset = data[written:], offset + written


def _flock_holder(fd: int) -> int | None:
    """The process that has locked a file, where Linux tells."""
    inode = str(os.fstat(fd).st_ino)
    try:
        with open("/proc/locks", encoding="ascii") as locks:
            for line in locks:
                fields = line.split()
                if "FLOCK" in fields and "->" not in fields and fields[5].endswith(f":{inode}"):
                    return int(fields[4])
    except OSError:
        pass
    return None
