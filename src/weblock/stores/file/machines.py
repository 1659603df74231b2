"""Whether the machine that this process sees is a container, or one of many machines.

There, ``file://`` may lock for itself alone while another container, with a directory of its own,
does the same. Nothing tells for certain, so it is a warning.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

from ..._platform.logs import logger

_MANY_MACHINES: Final = {
    "KUBERNETES_SERVICE_HOST": "Kubernetes",
    "KUBERNETES_PORT": "Kubernetes",
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

_MEMORY: Final = ("tmpfs", "ramfs")

told: list[str] = []
"""The warnings that this process has logged."""


def warn_if_not_alone(path: str, *, named: bool) -> None:
    """Log a warning, once in a process, where others may have a directory of the same name.

    A directory that the user has named, on a volume that is mounted into the container, is taken to
    be the same for all.
    """
    platform = platform_here()
    if not platform or told or (named and is_on_volume(path)):
        return
    told.append(platform)
    logger.warning(
        "weblock locks in %s, for this container or machine only, but this looks like %s, where others"
        " may run the same application with a directory of their own. They would not exclude each"
        " other. Use an engine that all share (redis://...), or, for the containers of one host, a"
        " directory on a volume that all of them mount (file:///volume/locks). If there are no others,"
        " set file://%s?allow_container=true",
        path,
        platform,
        path if named else "",
    )


def platform_here() -> str:
    """Return the platform that this looks like; empty for an ordinary machine."""
    platform = next((name for mark, name in _MANY_MACHINES.items() if mark in os.environ), "")
    container = next((name for mark, name in _CONTAINERS.items() if os.path.exists(mark)), "")
    return platform or container or ("a container" if _CGROUPS.search(_cgroups()) else "")


def is_on_volume(path: str) -> bool:
    """Return whether ``path`` is on a volume, not in the container's own files or memory."""
    try:
        mounts = Path("/proc/self/mountinfo").read_text("utf-8", "replace")
    except OSError:
        return False
    return volume_in_mountinfo(mounts, os.path.realpath(path))


def volume_in_mountinfo(mounts: str, path: str) -> bool:
    """Find the volume in ``/proc/self/mountinfo``. A container's own memory has another root."""
    best = root = kind = ""
    for line in mounts.splitlines():
        fields = line.split(" ")
        place = fields[4].replace("\\040", " ")
        if len(place) >= len(best) and Path(path).is_relative_to(place):
            best, root, kind = place, fields[3], fields[fields.index("-") + 1]
    return best not in ("", "/") and not (kind in _MEMORY and root == "/")


def _cgroups() -> str:
    try:
        return Path("/proc/self/cgroup").read_text("utf-8", "replace")
    except OSError:
        return ""
