"""The directory of an engine: private, local, and of this boot of this machine."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from ...errors import ConfigurationError, EngineUnavailable

FORMAT: Final = "weblock 1"
"""The first line of the marker: the version of everything in the directory."""

MARKER: Final = "weblock"

_SHARED_FILESYSTEMS: Final = frozenset(
    ["9p", "afs", "beegfs", "ceph", "cifs", "gfs2", "glusterfs", "lustre", "ncpfs", "nfs", "nfs4", "ocfs2", "smb3", "smbfs", "virtiofs", "webdav", "prl_fs", "vboxsf"]
)


class Directory:
    """An open directory that only this user can write to, and only this machine."""

    def __init__(self, path: str, engine: str) -> None:
        self.path = path
        self.engine = engine
        self.boot = _boot_digest()
        self.fd = _open_private(path)
        try:
            self._refuse_shared_filesystem()
            self._marker = self.open_file(MARKER)
        except BaseException:
            os.close(self.fd)
            raise

    def open_file(self, name: str) -> int:
        """Opens a file of ours in it, making it if it is not there."""
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            return os.open(name, flags, 0o600, dir_fd=self.fd)
        except PermissionError as error:
            raise ConfigurationError(
                f"{self.path}/{name} cannot be written: {error.strerror}; give it to user"
                f" {os.geteuid()}, or name another directory: file:///path"
            ) from error
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise ConfigurationError(
                    f"{self.path}/{name} is a symbolic link: remove it"
                ) from error
            raise EngineUnavailable(self.engine, f"{name}: {error.strerror}") from error

    @contextlib.contextmanager
    def claimed(self) -> Iterator[None]:
        """For the time that a process moves in: alone, and with the marker saying this boot."""
        fcntl.flock(self._marker, fcntl.LOCK_EX)
        try:
            said = os.pread(self._marker, 200, 0).decode(errors="replace").split("\n")
            if said != [""] and said[0] != FORMAT:
                raise ConfigurationError(
                    f"{self.path} was written by another version of weblock ({said[0][:40]!r}, and"
                    f" this one writes {FORMAT!r}): let all processes run the same version, or"
                    " name another directory"
                )
            if said[1:2] != [self.boot]:
                os.pwrite(self._marker, f"{FORMAT}\n{self.boot}\n".encode(), 0)
            yield
        finally:
            fcntl.flock(self._marker, fcntl.LOCK_UN)

    def refuse_other_machine(self) -> None:
        """Called where a record of another boot is met. It may be one from before this boot; but
        if the marker has changed too, since we live, then another machine is at work here.
        """
        if os.pread(self._marker, 200, 0).decode(errors="replace").split("\n")[1:2] != [self.boot]:
            raise EngineUnavailable(
                self.engine,
                "another machine uses this directory too; file:// locks on one machine only: give"
                " each its own directory, or use redis://",
            )

    @property
    def deleted(self) -> bool:
        """Whether the directory that ``path`` names is not this one any more."""
        try:
            there = os.stat(self.path)
        except OSError:
            return True
        ours = os.fstat(self.fd)
        return (there.st_dev, there.st_ino) != (ours.st_dev, ours.st_ino)

    def short_path(self, name: str) -> str:
        """A path of a file in it that fits into the address of a Unix socket."""
        path = f"{self.path}/{name}"
        if len(os.fsencode(path)) <= _LONGEST_SOCKET_PATH:
            return path
        if sys.platform == "linux":
            return f"/proc/self/fd/{self.fd}/{name}"
        raise ConfigurationError(
            f"{self.path} is too long for a Unix socket in it: name a directory of at most"
            f" {_LONGEST_SOCKET_PATH - len(name) - 1} bytes"
        )

    def close(self) -> None:
        os.close(self._marker)
        os.close(self.fd)

    def _refuse_shared_filesystem(self) -> None:
        kind = filesystem_of(self.path)
        if kind in _SHARED_FILESYSTEMS or kind.startswith(("fuse.", "fuse_")) or kind == "fuse":
            raise ConfigurationError(
                f"{self.path} is on {kind}, which other machines may share and where file locks"
                " cannot be trusted: name a directory on a local disk or in memory"
                " (file:///dev/shm/...), or use redis://"
            )


_LONGEST_SOCKET_PATH: Final = 103


def _open_private(path: str) -> int:
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        with contextlib.suppress(FileExistsError):
            os.mkdir(path, 0o700)
        fd = os.open(path, flags)
    except OSError as error:
        what = "it is no directory of its own" if _is_odd(path) else error.strerror
        raise ConfigurationError(
            f"the lock directory {path} cannot be used: {what}; name one that can be made or"
            " written: file:///path/to/locks"
        ) from error
    found = os.fstat(fd)
    if found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o022:
        os.close(fd)
        raise ConfigurationError(
            f"the lock directory {path} (owner {found.st_uid}, mode"
            f" {stat.S_IMODE(found.st_mode):04o}) could be changed by others than user"
            f" {os.geteuid()}: give it to that user with mode 0700, or name another:"
            " file:///path/to/locks"
        )
    return fd


def _is_odd(path: str) -> bool:
    return os.path.islink(path) or (os.path.exists(path) and not os.path.isdir(path))


def filesystem_of(path: str) -> str:
    """The type of the file system that ``path`` is on; empty where it cannot be told."""
    if sys.platform == "darwin":
        return _darwin_filesystem_of(os.path.realpath(path))
    device = os.stat(path).st_dev
    wanted = f"{os.major(device)}:{os.minor(device)}"
    with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as mounts:
        for line in mounts:
            fields = line.split()
            if fields[2] == wanted:
                return fields[fields.index("-") + 1]
    return ""


def _darwin_filesystem_of(path: str) -> str:
    listed = subprocess.run(["/sbin/mount"], capture_output=True, text=True, check=False).stdout
    best, kind = "", ""
    for line in listed.splitlines():
        _, _, rest = line.partition(" on ")
        place, _, options = rest.rpartition(" (")
        if Path(path).is_relative_to(place or "/nowhere") and len(place) > len(best):
            best, kind = place, options.split(",")[0].rstrip(")")
    return kind


def _boot_digest() -> str:
    """Names this boot of this machine, and the namespace in which its clock is read."""
    if sys.platform == "darwin":
        command = ["/usr/sbin/sysctl", "-n", "kern.bootsessionuuid"]
        boot = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    else:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text()
        with contextlib.suppress(OSError):
            boot += os.readlink("/proc/self/ns/time")
    return hashlib.blake2b(boot.strip().encode(), digest_size=8).hexdigest()
