"""Which users could move the lock directory away: those that may write to a directory above it.

A second directory in its place would be a second set of leases. So everything on the way to it must
belong to this user or to root, and be writable for no one else, as OpenSSH requires for its keys.
"""

from __future__ import annotations

import os
import stat
from collections import deque
from pathlib import Path
from typing import Final

try:
    import grp
    import pwd
except ImportError:  # On Windows, where open_engine() refuses.
    pass

_MOST_LINKS: Final = 40
"""The most symbolic links on one path, as in the kernel."""


def stranger_above(path: str) -> str | None:
    """Say which directory or link on the way to ``path`` others could change; ``None`` if none.

    A directory like ``/tmp`` passes, whose sticky bit keeps them from each other's files. Links are
    followed, for others must not be able to change them either. Raises ``OSError``.
    """
    place, ahead, links = "/", deque(_parts(os.path.dirname(path))), 0
    if found := _told(place, os.lstat(place)):
        return found
    while ahead:
        name = ahead.popleft()
        there = os.path.dirname(place) if name == ".." else os.path.join(place, name)
        info = os.lstat(there)
        if found := _told(there, info):
            return found
        if not stat.S_ISLNK(info.st_mode):
            place = there
            continue
        links += 1
        if links > _MOST_LINKS:
            return f"{there} is a symbolic link without end"
        target = os.readlink(there)
        place = "/" if target.startswith("/") else place
        ahead.extendleft(reversed(_parts(target)))
    return None


def _parts(path: str) -> list[str]:
    return [part for part in path.split("/") if part not in ("", ".")]


def _told(path: str, info: os.stat_result) -> str | None:
    """Return what is wrong with one directory or link."""
    if not _is_trusted(info.st_uid):
        return f"{path} belongs to user {info.st_uid}"
    if stat.S_ISLNK(info.st_mode) or info.st_mode & stat.S_ISVTX:
        return None
    others = info.st_mode & 0o002 or (info.st_mode & 0o020 and not _is_private_group(info.st_gid))
    mode = stat.S_IMODE(info.st_mode)
    return f"{path} (mode {mode:04o}) may be written by others" if others else None


def _is_trusted(owner: int) -> bool:
    return owner in (0, os.geteuid()) or _is_nobody_here(owner)


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
