"""The directory of an engine: private, and on a file system of this machine.

A process that opens the directory rejects one in which leases could not be trusted:

1. *Others could change it.* It must be a directory of this user's, no link, that no other user may
   write to. Everything above it must belong to this user or to root, and be writable for no other
   user, as OpenSSH requires for its keys: a user who may rename a directory on the way could put
   another one in its place, which would be a second set of leases.
2. *Other machines could share it.* File locks do not work across them. Only types of file systems that
   are known to belong to one machine are accepted.
3. *Another version of weblock has written it.* The *marker*, a file, says so.

While the directory is in use, its path may come to name another directory or none. Then the engine leaves
it, and the leases in it are gone.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
import os
import stat
from pathlib import Path
from typing import Final

from ..._platform.forks import Mutex, close_in_children
from ...errors import ConfigurationError, EngineUnavailable

try:
    import fcntl
    import grp
    import pwd
except ImportError:  # On Windows, where open_engine() refuses.
    pass

MARKER: Final = "weblock"
FORMAT: Final = "weblock 1"
"""What the marker says: the version of everything in the directory."""

no_fork: Final = Mutex(delays_forks=True)
"""It is held while a file is opened that a child must not keep: a lock or a life would depend on it."""

_LOCAL_FILESYSTEMS: Final = (
    " aufs bcachefs btrfs ecryptfs ext2 ext3 ext4 f2fs hfsplus jfs nilfs2 overlay overlayfs ramfs"
    " reiserfs rootfs tmpfs ubifs xfs zfs "
)


class Directory:
    """An open directory that only this user can write to, and only this machine."""

    is_new = False
    """Whether this process was the first that opened it."""

    def __init__(self, path: str, engine: str) -> None:
        self.path = path
        self.engine = engine
        self.boot = _boot_digest()
        self.fd = _open_private(path)
        close_in_children(self)
        # systemd-tmpfiles, which removes old temporary files, spares a directory that is locked.
        with contextlib.suppress(OSError):
            fcntl.flock(self.fd, fcntl.LOCK_SH | fcntl.LOCK_NB)

    def fileno(self) -> int:
        """Return the number of its descriptor, which is negative if it is closed."""
        return self.fd

    def open_file(self, name: str) -> int:
        """Open one of our files in it, and create it if it does not exist."""
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            fd = os.open(name, flags, 0o600, dir_fd=self.fd)
        except OSError as error:
            if error.errno == errno.ELOOP:
                fault = "is a symbolic link: remove it"
            elif error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
                fault = (
                    f"cannot be written: {error.strerror}; give it to user {os.geteuid()}, or name"
                    " another directory: file:///path"
                )
            else:
                raise
            raise ConfigurationError(
                f"{self.path}/{name} {fault}", code="lock_directory"
            ) from error
        if stat.S_IMODE(os.fstat(fd).st_mode) != 0o600:  # The umask took away too much.
            os.fchmod(fd, 0o600)
        return fd

    def check_version(self) -> None:
        """Raise ``ConfigurationError`` if no file can be written here, or another version has written them."""
        with io.FileIO(self.open_file(MARKER), "r+") as marker:
            line = (marker.read(99) or b"").strip(b"\0").partition(b"\n")[0]
            written = line.decode(errors="replace")
            if not written:  # It is new, or a crash of the machine has emptied it.
                marker.seek(0)
                marker.write(f"{FORMAT}\n".encode())
                self.is_new = True
        if written not in ("", FORMAT):
            raise ConfigurationError(
                f"{self.path} was written by another version of weblock ({written[:20]!r}, and this one"
                f" writes {FORMAT!r}): let all processes run the same version, or name another directory",
                code="other_format",
            )

    def is_at(self, path: str) -> bool:
        """Return whether ``path``, perhaps through symbolic links, names this directory now."""
        try:
            there, ours = os.lstat(path), os.fstat(self.fd)
        except OSError:  # It is not there, or another thread has just left this one.
            return False
        return (there.st_dev, there.st_ino) == (ours.st_dev, ours.st_ino)

    def unavailable(self, reason: str) -> EngineUnavailable:
        return EngineUnavailable(self.engine, reason)

    def close(self) -> None:
        fd, self.fd = self.fd, -1
        os.close(fd)


def lacks_descriptors(error: BaseException) -> bool:
    """Return whether an error means that the process or machine has too many open files."""
    return isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE)


def is_pipe(name: str) -> bool:
    """Return whether a file in the directory is the pipe of a process, by its name."""
    return ".bell" in name


def _open_private(path: str) -> int:
    try:
        _make(path, 0o700)
        stranger = stranger_above(path)
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        if lacks_descriptors(error):
            raise
        odd = os.path.islink(path) or (os.path.exists(path) and not os.path.isdir(path))
        what = "it is not a directory itself" if odd else error.strerror
        raise ConfigurationError(
            f"the lock directory {path} cannot be used: {what}; name one that can be made or"
            " written: file:///path/to/locks",
            code="lock_directory",
        ) from error
    found, kind = os.fstat(fd), file_system_of(path)
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
    elif not is_local(kind):
        reason = (
            f"{path} is on a file system ({kind}) that other machines may share and where file locks"
            " cannot be trusted: name a directory on a local disk (ext4, xfs, ...) or in memory"
            " (file:///dev/shm/...), or use redis://"
        )
    if reason:
        os.close(fd)
        raise ConfigurationError(reason, code="lock_directory")
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
    place = ""
    for name in path.split("/")[:-1]:
        there = f"{place}/{name}"
        info = os.lstat(there)
        if not (info.st_uid in (0, os.geteuid()) or _is_nobody_here(info.st_uid)):
            return f"{there} belongs to user {info.st_uid}"
        if stat.S_ISLNK(info.st_mode):
            # With a last part that is not looked at, since it is the way to the target that counts.
            if stranger := stranger_above(os.path.join(place or "/", os.readlink(there), "")):
                return stranger
            place = os.path.realpath(there)
            continue
        place, mode = there.rstrip("/"), stat.S_IMODE(info.st_mode)
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


def file_system_of(path: str, mountinfo: Path = Path("/proc/self/mountinfo")) -> str:
    """Return the type of the innermost mount that a path is in, and of several at one place the last."""
    path, longest, kind = os.path.realpath(path), "", "unknown"
    with contextlib.suppress(OSError):
        for line in mountinfo.read_text("utf-8", "replace").splitlines():
            fields = line.split(" ")
            place = fields[4].replace("\\040", " ")
            if len(place) >= len(longest) and Path(path).is_relative_to(place):
                longest, kind = place, fields[fields.index("-") + 1]
    return kind


def is_local(kind: str) -> bool:
    """Return whether a file system of this type belongs to one machine, and locks files as the kernel does."""
    return f" {kind} " in _LOCAL_FILESYSTEMS


def _boot_digest() -> str:
    """Return a name of this boot of this machine, and of its clock's namespace."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text()
    with contextlib.suppress(OSError):
        boot += os.readlink("/proc/self/ns/time")
    return hashlib.blake2b(boot.strip().encode(), digest_size=8).hexdigest()
