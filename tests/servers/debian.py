"""Programs that the tests take from Debian's packages, installed when they are first needed."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

_PLACES = ("/usr/sbin", "/usr/share/zookeeper/bin")


def program(name: str, package: str, *more: str) -> Path:
    """The path of a program; where it is missing, ``package`` (and ``more``) are installed.

    That takes root, or a ``sudo`` that asks no password. Raises ``LookupError`` where there is neither.
    """
    if (found := _find(name)) is None:
        _install(package, *more)
        found = _find(name)
    if found is None:
        raise LookupError(f"there is no {name} on PATH: install the package {package}")
    return found


def _find(name: str) -> Path | None:
    path = os.pathsep.join([os.environ.get("PATH", ""), *_PLACES])
    found = shutil.which(name, path=path)
    return Path(found) if found else None


def _install(*packages: str) -> None:
    rights = [] if os.getuid() == 0 else ["sudo", "-n"]
    apt = [
        *rights,
        "env",
        "DEBIAN_FRONTEND=noninteractive",
        "apt-get",
        "-qq",
        "-o",
        "DPkg::Lock::Timeout=300",
    ]
    import fcntl  # Not on Windows, where apt-get is not either.

    with (Path(tempfile.gettempdir()) / "weblock-apt.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # Others may be at it, side by side.
        for words in (["update"], ["install", "-y", "--no-install-recommends", *packages]):
            done = subprocess.run([*apt, *words], capture_output=True, text=True, check=False)
            if done.returncode:
                raise LookupError(
                    f"{' '.join(packages)} could not be installed: {done.stderr.strip()[-500:]}"
                )
