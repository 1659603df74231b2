"""The directory of an engine: private, on a local disk, and of this boot of this machine.

A process that opens the directory rejects one in which leases could not be trusted:

1. *Others could change it.* It must be a directory of this user's, no link, that no other user may
   write to. Everything above it must belong to this user or to root, and be writable for no other
   user, as OpenSSH requires for its keys: a user who may rename a directory on the way could put
   another one in its place, which would be a second set of leases.
2. *Other machines could share it.* File locks do not work across them. Network file systems are
   rejected by their type. The *marker*, a file, names the boot that the leases are of: a process that
   opens the directory writes its own boot there, and checks every second that it is still there. If
   it has changed, another machine has written it, and the marker is changed to stop both.
3. *Another version of weblock has written it.* The marker says so.

While the directory is in use, its path may come to name another directory or none (``deleted``). Then the
engine leaves it, and the leases in it are gone. Programs that remove old temporary files spare the files
here, because they are touched from time to time.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import stat
import subprocess
import sys
from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from ..._platform.forks import close_in_children
from ...errors import ConfigurationError, EngineUnavailable

try:
    import fcntl
    import grp
    import pwd
except ImportError:  # On Windows, where open_engine() refuses.
    pass

FORMAT: Final = "weblock 1"
"""The first line of the marker: the version of everything in the directory."""

MARKER: Final = "weblock"
"""The file that says the version, and the boot that the leases are of."""

CONTESTED: Final = "several machines"
"""The marker's text instead of a boot when two machines have used the directory."""

_LONGEST_SOCKET_PATH: Final = 103

_MOST_LINKS: Final = 40
"""The most symbolic links on one path, as in the kernel."""

_SHARED_FILESYSTEMS: Final = (
    " 9p afs beegfs ceph cifs fuse gfs2 glusterfs lustre ncpfs nfs nfs4 ocfs2 prl_fs smb3 smbfs"
    " vboxsf virtiofs webdav "
)


class Directory:
    """An open directory that only this user can write to, and only this machine."""

    def __init__(self, path: str, engine: str) -> None:
        self.path = path
        self.engine = engine
        self.boot = _boot_digest()
        self._marker_seen: tuple[int, int] | None = None
        self.fd = _open_private(path)
        close_in_children(self)
        try:
            os.close(self.open_file(MARKER))  # Raises if no file can be written here.
        except BaseException:
            self.close()
            raise

    def fileno(self) -> int:
        """Return the number of its descriptor, which is negative if it is closed."""
        return self.fd

    def open_file(self, name: str) -> int:
        """Open one of our files in it, and create it if it does not exist.

        Raises ``OSError`` where no descriptor is left, or else what is to be said of the file.
        """
        try:
            fd = self._open(name, os.O_RDWR | os.O_CREAT)
        except OSError as error:
            if lacks_descriptors(error):
                raise
            if error.errno == errno.ELOOP:
                raise ConfigurationError(
                    f"{self.path}/{name} is a symbolic link: remove it"
                ) from error
            if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
                raise ConfigurationError(
                    f"{self.path}/{name} cannot be written: {error.strerror}; give it to user"
                    f" {os.geteuid()}, or name another directory: file:///path"
                ) from error
            raise self.unavailable(f"{name}: {error.strerror}") from error
        if stat.S_IMODE(os.fstat(fd).st_mode) != 0o600:  # The umask took away too much.
            os.fchmod(fd, 0o600)
        return fd

    def replace(self, name: str, data: bytes, *, durably: bool) -> None:
        """Write one of our files, so that nobody ever reads half of it.

        ``durably``: not even after a crash of the machine. Raises ``EngineUnavailable``.
        """
        fresh = f"{name}.{os.urandom(8).hex()}"
        fd = self.open_file(fresh)
        try:
            with open(fd, "wb") as file:
                file.write(data)
                if durably:
                    file.flush()
                    os.fsync(fd)
            os.rename(fresh, name, src_dir_fd=self.fd, dst_dir_fd=self.fd)
            if durably:
                os.fsync(self.fd)
        except OSError as error:
            with contextlib.suppress(OSError):
                os.unlink(fresh, dir_fd=self.fd)
            raise self.unavailable(f"{self.path}/{name}: {error.strerror}") from error

    def read(self, name: str) -> bytes | None:
        """Return one of our files as ``replace`` wrote it last; ``None`` if it does not exist."""
        try:
            fd = self._open(name, os.O_RDONLY)
        except FileNotFoundError:
            return None
        with open(fd, "rb") as file:
            return file.read()

    def remove(self, name: str, *, durably: bool) -> None:
        """Remove one of our files, if it exists; with ``durably``, no crash of the machine brings it back."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=self.fd)
            if durably:
                os.fsync(self.fd)

    @contextlib.contextmanager
    def locked(self, *, shared: bool) -> Iterator[bool]:
        """Lock the directory itself; yield whether that was possible at once.

        The lock is that of a descriptor of its own, so that threads exclude one another, too. A child
        that is forked meanwhile has a copy of it, hence to close it would not be enough.
        """
        fd = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=self.fd)
        locked = False
        try:
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(fd, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
                locked = True
            yield locked
        finally:
            fcntl.flock(fd, fcntl.LOCK_UN)
            os.close(fd)

    def check_machine(self, *, moving_in: bool = False) -> None:
        """Raise ``EngineUnavailable`` if another machine uses the directory too.

        A process that is ``moving_in``, after it has found no living process of another boot, replaces
        the boot in the marker. While the marker is unchanged it is not opened, because a renewal must
        not need a descriptor.
        """
        written = None
        with contextlib.suppress(OSError):
            marker = os.stat(MARKER, dir_fd=self.fd, follow_symlinks=False)
            written = marker.st_ino, marker.st_mtime_ns
        if written and written == self._marker_seen:
            return
        boot = self._boot_of_marker()
        if not boot or (moving_in and boot not in (self.boot, CONTESTED)):
            self._write_marker(self.boot)
        elif boot == self.boot:
            self._marker_seen = written
        else:
            if boot != CONTESTED:
                self._write_marker(CONTESTED)
            raise self.unavailable(
                f"another machine uses {self.path} too, and file:// locks on one machine only: give"
                f" each its own directory, or use redis://; then remove {self.path}"
            )

    def freshen(self) -> None:
        """Keep the files here from programs that remove what was not touched for long."""
        for name in os.listdir(self.fd):
            if not is_socket(name):
                with contextlib.suppress(OSError):
                    os.utime(name, dir_fd=self.fd)

    @property
    def deleted(self) -> bool:
        """Return whether the directory that ``path`` names is no longer this one."""
        return not self.is_at(self.path)

    def is_at(self, path: str) -> bool:
        """Return whether ``path``, perhaps through symbolic links, names this directory now."""
        try:
            there, ours = os.lstat(path), os.fstat(self.fd)
        except OSError:  # It is not there, or another thread has just left this one.
            return False
        return (there.st_dev, there.st_ino) == (ours.st_dev, ours.st_ino)

    def check_names(self, paths: Iterable[str]) -> None:
        """Raise ``ConfigurationError`` if another path in use names another directory."""
        for path in paths:
            if not self.is_at(path):
                raise ConfigurationError(
                    f"{self.path} and {path} were one directory when this process began to lock"
                    " there, and now they are two: name one of them everywhere, and restart"
                )

    def short_path(self, name: str) -> str:
        """Return a path of a file in it that fits into the address of a Unix socket."""
        path = f"{self.path}/{name}"
        if len(os.fsencode(path)) <= _LONGEST_SOCKET_PATH:
            return path
        if sys.platform == "linux":
            return f"/proc/self/fd/{self.fd}/{name}"
        raise ConfigurationError(
            f"{self.path} is too long for a Unix socket in it: name a directory of at most"
            f" {_LONGEST_SOCKET_PATH - len(name) - 1} bytes"
        )

    def unavailable(self, reason: str) -> EngineUnavailable:
        return EngineUnavailable(self.engine, reason)

    def close(self) -> None:
        fd, self.fd = self.fd, -1
        os.close(fd)

    def _boot_of_marker(self) -> str:
        """Return the boot that the marker names; empty if there is no marker."""
        marker = self.read(MARKER) or b""
        version, _, boot = marker.decode(errors="replace").partition("\n")
        if version not in ("", FORMAT):  # A crash of the machine may empty a file.
            raise ConfigurationError(
                f"{self.path} was written by another version of weblock ({version[:40]!r}, and"
                f" this one writes {FORMAT!r}): let all processes run the same version, or"
                " name another directory"
            )
        return boot.strip()

    def _write_marker(self, boot: str) -> None:
        self.replace(MARKER, f"{FORMAT}\n{boot}\n".encode(), durably=False)

    def _open(self, name: str, flags: int) -> int:
        return os.open(name, flags | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600, dir_fd=self.fd)


def lacks_descriptors(error: BaseException) -> bool:
    """Return whether an error means that the process or machine has too many open files."""
    return isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE)


def is_socket(name: str) -> bool:
    """Return whether a file in the directory is a socket of a process, by its name."""
    return name.endswith((".bell", ".life"))


def _open_private(path: str) -> int:
    try:
        _make(path, 0o700)
        stranger = stranger_above(path)
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        if lacks_descriptors(error):
            raise
        odd = os.path.islink(path) or (os.path.exists(path) and not os.path.isdir(path))
        what = "it is no directory of its own" if odd else error.strerror
        raise ConfigurationError(
            f"the lock directory {path} cannot be used: {what}; name one that can be made or"
            " written: file:///path/to/locks"
        ) from error
    found, kind = os.fstat(fd), mount_of(path).kind
    mode = stat.S_IMODE(found.st_mode)
    reason = ""
    if found.st_uid != os.geteuid() or mode & 0o022:
        reason = (
            f"the lock directory {path} (owner {found.st_uid}, mode {mode:04o}) could be changed by"
            f" others than user {os.geteuid()}: give it to that user with mode 0700, or name another:"
            " file:///path/to/locks"
        )
    elif stranger:
        reason = (
            f"{stranger}, who could put another directory in place of the lock directory {path}:"
            f" give what is above it to user {os.geteuid()} or root and take the right to write from"
            " all others (chmod go-w), or name another: file:///path/to/locks"
        )
    elif is_shared(kind):
        reason = (
            f"{path} is on {kind}, which other machines may share and where file locks cannot be"
            " trusted: name a directory on a local disk or in memory (file:///dev/shm/...), or use"
            " redis://"
        )
    if reason:
        os.close(fd)
        raise ConfigurationError(reason)
    return fd


def _make(path: str, mode: int) -> None:
    """Create a directory, and the missing ones above it."""
    try:
        os.mkdir(path, mode)
    except FileExistsError:
        return
    except FileNotFoundError:
        _make(os.path.dirname(path), 0o755)
        with contextlib.suppress(FileExistsError):
            os.mkdir(path, mode)
    # A umask may have taken away more than from others.
    os.chmod(path, stat.S_IMODE(os.stat(path).st_mode) | 0o700)


def stranger_above(path: str) -> str | None:
    """Say which directory or link on the way to ``path`` others could change; ``None`` if none.

    A directory like ``/tmp`` passes, whose sticky bit keeps them from each other's files. Links are
    followed, for others must not be able to change them either. Raises ``OSError``.
    """

    def parts(path: str) -> list[str]:
        return [part for part in path.split("/") if part not in ("", ".")]

    place, ahead, links = "/", deque(["", *parts(os.path.dirname(path))]), 0
    while ahead:
        name = ahead.popleft()
        there = os.path.dirname(place) if name == ".." else os.path.join(place, name)
        info = os.lstat(there)
        if not (info.st_uid in (0, os.geteuid()) or _is_nobody_here(info.st_uid)):
            return f"{there} belongs to user {info.st_uid}"
        if stat.S_ISLNK(info.st_mode):
            links += 1
            if links > _MOST_LINKS:
                return f"{there} is a symbolic link without end"
            target = os.readlink(there)
            place = "/" if target.startswith("/") else place
            ahead.extendleft(reversed(parts(target)))
            continue
        place, mode = there, stat.S_IMODE(info.st_mode)
        by_group = mode & 0o020 and not _is_private_group(info.st_gid)
        if (by_group or mode & 0o002) and not mode & stat.S_ISVTX:
            return f"{there} (mode {mode:04o}) may be written by others"
    return None


def _is_nobody_here(owner: int) -> bool:
    """Return whether no user can be this owner: user namespaces show outside owners so."""
    try:
        overflow = int(Path("/proc/sys/kernel/overflowuid").read_text())
        mapped = [list(map(int, line.split())) for line in _uid_map().splitlines()]
    except (OSError, ValueError):
        return False
    inside = any(start <= owner < start + count for start, _, count in mapped)
    return owner == overflow and not inside


def _uid_map() -> str:
    return Path("/proc/self/uid_map").read_text()


def _is_private_group(group: int) -> bool:
    """Return whether a group is root's or this user's own: many systems give each user one."""
    try:
        found, user = grp.getgrgid(group), pwd.getpwuid(os.geteuid())
    except KeyError:
        return False
    ours = group == 0 or (group == user.pw_gid and found.gr_name == user.pw_name)
    return ours and set(found.gr_mem) <= {"root", user.pw_name}


class Mount(NamedTuple):
    """The mount that a path is in: where, which part of its file system, and of which type."""

    place: str = ""
    root: str = ""
    kind: str = ""


def mount_of(path: str) -> Mount:
    """Return the mount that ``path`` is in; an empty one if unknown."""
    path = os.path.realpath(path)
    if sys.platform == "darwin":
        command = ["/sbin/mount"]
        listed = subprocess.run(command, capture_output=True, text=True, check=False).stdout
        return mount_in(macos_mounts(listed), path)
    try:
        return mount_in(
            linux_mounts(Path("/proc/self/mountinfo").read_text("utf-8", "replace")), path
        )
    except OSError:
        return Mount()


def linux_mounts(mountinfo: str) -> Iterator[Mount]:
    """Yield the mounts in ``/proc/self/mountinfo``."""
    for line in mountinfo.splitlines():
        fields = line.split(" ")
        yield Mount(fields[4].replace("\\040", " "), fields[3], fields[fields.index("-") + 1])


def macos_mounts(listed: str) -> Iterator[Mount]:
    """Yield the mounts that macOS's ``mount`` prints."""
    for line in listed.splitlines():
        place, _, options = line.partition(" on ")[2].rpartition(" (")
        yield Mount(place, "/", options.rstrip(")").split(", ")[0])


def mount_in(mounts: Iterable[Mount], path: str) -> Mount:
    """Return the innermost mount of a path, and of several at one place the last."""
    around = [each for each in mounts if Path(path).is_relative_to(each.place)]
    return max(reversed(around), key=lambda each: len(each.place), default=Mount())


def is_shared(kind: str) -> bool:
    """Return whether this type of file system may be shared, or lock in its own way."""
    return f" {kind} " in _SHARED_FILESYSTEMS or kind.startswith(("fuse.", "fuse_"))


def _boot_digest() -> str:
    """Return a name of this boot of this machine, and of its clock's namespace."""
    if sys.platform == "darwin":
        command = ["/usr/sbin/sysctl", "-n", "kern.bootsessionuuid"]
        boot = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    else:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text()
        with contextlib.suppress(OSError):
            boot += os.readlink("/proc/self/ns/time")
    return hashlib.blake2b(boot.strip().encode(), digest_size=8).hexdigest()
