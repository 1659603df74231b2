"""What there is to know of a lock directory: whose it is, where it is, and for whom it locks."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from typing import Final

from ..findings import Finding, bytes_of, warning
from .directory import filesystem_of
from .machines import is_on_volume, platform_here

try:
    import pwd
    import resource
except ImportError:  # On Windows, where open_engine() refuses.
    pass

ENOUGH_FILES: Final = 256
"""Descriptors that a process may need here: one for each record file, and some sockets."""

ENOUGH_SPACE: Final = 16 * 1024 * 1024


def diagnose(path: str, *, alone: bool) -> Iterator[Finding]:
    """Return what is found of a directory that is in use. ``alone`` is what ``allow_container`` says."""
    info = os.stat(path)
    mode = stat.S_IMODE(info.st_mode)
    yield Finding("directory", f"{path} belongs to {_user(info.st_uid)}, with mode {mode:04o}.")
    yield Finding(
        "mount", f"It is on a file system of the type {filesystem_of(path) or 'unknown'}."
    )
    yield _container(path, alone=alone)
    yield _processes(path)
    yield _descriptors()
    yield _space(path)


def _user(uid: int) -> str:
    try:
        return f"user {pwd.getpwuid(uid).pw_name}"
    except KeyError:
        return f"user {uid}"


def _container(path: str, *, alone: bool) -> Finding:
    platform = platform_here()
    if not platform:
        return Finding(
            "container", "This looks like an ordinary machine, and all of it locks here."
        )
    if alone:
        text = f"This looks like {platform}, and allow_container=true says that no other locks."
        return Finding("container", text)
    if is_on_volume(path):
        text = (
            f"This looks like {platform}, and the directory is on a volume that is mounted into it."
        )
        return Finding("container", text)
    return warning(
        "container",
        f"This looks like {platform}, and the directory is in its own files: other containers lock in"
        " directories of their own, and exclude nobody here.",
        "Use redis:// for several machines, or a directory on a volume that all containers of one"
        " host mount. If no other runs the application, add ?allow_container=true.",
    )


def _processes(path: str) -> Finding:
    count = sum(name.endswith(".life") for name in os.listdir(path))
    return Finding("processes", f"{count} have it open, or were killed while they had.")


def _descriptors() -> Finding:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = "any number of" if soft == resource.RLIM_INFINITY else str(soft)
    text = f"A process of this user may open {limit} files, as far as this shell is concerned."
    if soft != resource.RLIM_INFINITY and soft < ENOUGH_FILES:
        return warning("descriptors", text, "Raise it: ulimit -n, or LimitNOFILE= of systemd.")
    return Finding("descriptors", text)


def _space(path: str) -> Finding:
    info = os.statvfs(path)
    free = info.f_bavail * info.f_frsize
    text = f"{bytes_of(free)} are free there."
    if free < ENOUGH_SPACE:
        return warning(
            "space", text, "Make room: where a record cannot be written, nothing is locked."
        )
    return Finding("space", text)
