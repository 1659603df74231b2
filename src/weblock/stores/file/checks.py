"""What an operator should know of a lock directory: ``weblock doctor`` prints it.

What makes a directory useless is rejected when it is opened (``directory``). In a container, or on one of
many machines, ``file://`` may lock for itself alone, while another one with a directory of its own does the
same. Nothing tells for certain, so that is a warning, which is also logged when the directory is made.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from ..findings import Finding, bytes_of, warning
from .directory import file_system_of, is_pipe

try:
    import resource
except ImportError:  # On Windows, where open_engine() refuses.
    pass

ENOUGH_FILES: Final = 256
"""Descriptors that a process may need here: one for each record file, and some pipes."""

ENOUGH_SPACE: Final = 16 * 1024 * 1024

_MANY_MACHINES: Final = {
    "KUBERNETES_SERVICE_HOST": "Kubernetes",
    "ECS_CONTAINER_METADATA_URI_V4": "Amazon ECS",
    "AWS_LAMBDA_FUNCTION_NAME": "AWS Lambda",
    "K_SERVICE": "Cloud Run",
    "DYNO": "Heroku",
    "FLY_APP_NAME": "Fly.io",
    "RENDER": "Render",
    "RAILWAY_ENVIRONMENT_ID": "Railway",
    "WEBSITE_INSTANCE_ID": "Azure App Service",
}

_CONTAINERS: Final = {
    "/.dockerenv": "a Docker container",
    "/run/.containerenv": "a Podman container",
}

_CGROUPS: Final = re.compile(
    r"/(docker|kubepods|libpod|lxc|crio|cri-containerd|garden)(/|-[0-9a-f]{12}|\.slice|\.payload)"
)

told: list[str] = []
"""The warning that this process has logged, once for all directories."""


def findings(path: str, url: str, *, alone: bool) -> Iterator[Finding]:
    """Return what is found of a directory that is in use."""
    info, disk = os.stat(path), os.statvfs(path)
    mode = stat.S_IMODE(info.st_mode)
    yield Finding("directory", f"{path} belongs to user {info.st_uid}, with mode {mode:04o}.")
    yield Finding("mount", f"It is on a file system of the type {file_system_of(path)}.")
    yield container(path, url, alone=alone)
    count = sum(map(is_pipe, os.listdir(path)))
    yield Finding("processes", f"{count} have it open, or were killed while they had it open.")
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = "any number of" if soft == resource.RLIM_INFINITY else str(soft)
    text = f"A process of this user can open {limit} files, by the limits of this shell."
    few = soft != resource.RLIM_INFINITY and soft < ENOUGH_FILES
    remedy = "Raise it: ulimit -n, or LimitNOFILE= of systemd."
    yield warning("descriptors", text, remedy) if few else Finding("descriptors", text)
    free = disk.f_bavail * disk.f_frsize
    text = f"{bytes_of(free)} are free on it."
    remedy = "Free some space: without it, nothing can be locked."
    yield warning("space", text, remedy) if free < ENOUGH_SPACE else Finding("space", text)


def container(path: str, url: str, *, alone: bool) -> Finding:
    """Return whether others may have a directory of the same name, and exclude nobody here.

    ``alone``: the user says that there are no others, or that they share this one (``allow_container``).
    """
    here = platform_here()
    if not here:
        return Finding(
            "container", "This looks like an ordinary machine, whose processes all lock here."
        )
    if alone:
        text = f"This looks like {here}, and allow_container=true asserts that no other process locks elsewhere."
        return Finding("container", text)
    return warning(
        "container",
        f"weblock locks in {path}, for this container or machine only, but this looks like {here}:"
        " other containers or machines might run the same application, each with its own directory."
        " They would not exclude each other.",
        "Use an engine that all of them share (redis://...), or, for the containers of one host, a"
        " directory on a volume that all of them mount (file:///volume/locks). If they do, or if there is"
        f" only this one, set {url}?allow_container=true",
    )


def platform_here() -> str:
    """Return the platform that this looks like; empty for an ordinary machine."""
    found = [name for mark, name in _MANY_MACHINES.items() if mark in os.environ]
    found += [name for mark, name in _CONTAINERS.items() if os.path.exists(mark)]
    found += ["a container"] if _CGROUPS.search(_cgroups()) else []
    return found[0] if found else ""


def _cgroups() -> str:
    try:
        return Path("/proc/self/cgroup").read_text("utf-8", "replace")
    except OSError:
        return ""
