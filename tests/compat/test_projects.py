"""The suites of projects that use redis-py's lock, with weblock's in its place: see ``projects``.

The projects and their tests come from the package index, in their newest releases. celery-once is missing,
whose releases have no tests in them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
from dataclasses import asdict, dataclass, field
from pathlib import Path

import pytest

from tests.servers import Server, binary

TOP = Path(__file__).parents[2]


@dataclass(frozen=True)
class Project:
    """A project, which of its tests to run, and what they need."""

    arguments: list[str]
    requires: list[str] = field(default_factory=list)
    replaced: list[str] = field(default_factory=list)
    different: dict[str, str] = field(default_factory=dict)
    """What fails on purpose, and why: ``docs/migrate.md`` says so."""


PROJECTS = {
    "dogpile.cache": Project(["tests/cache/test_redis_backend.py"]),
    "pydocket": Project(
        ["--override-ini=addopts=", "--timeout=120", "tests/worker"],
        [
            "docker",
            "opentelemetry-exporter-prometheus",
            "opentelemetry-instrumentation-redis",
            "pytest-asyncio",
            "pytest-timeout",
            "pytest-xdist",
        ],
        replaced=["docker"],
    ),
    "celery-redbeat": Project(
        ["tests"],
        [
            "celery<5.7",
            "fakeredis",
            "pytz",
        ],  # A header that later releases send fails a test of it.
        replaced=["fakeredis"],
        different=dict.fromkeys(
            ["test_acquires_lock", "test_connection_error"],
            "it replaces the script of extend, which raises LockError",
        ),
    ),
    "django-redis": Project(
        # There is neither a Sentinel nor the socket that some settings name.
        [
            "--override-ini=addopts=",
            "tests/test_backend.py",
            "-k",
            "lock and not (sentinel or usock)",
        ],
        ["lz4", "msgpack", "pytest-xdist"],
        different=dict.fromkeys(
            ["test_lock", "test_lock_not_blocking"],
            "it looks for the lock's key, which has another name",
        ),
    ),
}


@pytest.mark.skipif(
    "WEBLOCK_LONG" not in os.environ, reason="it installs a project: WEBLOCK_LONG=1"
)
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", PROJECTS)
def test_a_project_does_not_notice_whose_lock_it_uses(name: str, tmp_path: Path) -> None:
    """Its tests of what locks pass, but for those that differ on purpose, which fail."""
    project, pip = PROJECTS[name], [sys.executable, "-m", "pip"]
    run([sys.executable, "-m", "venv", tmp_path / "venv"])
    python = tmp_path / "venv" / "bin" / "python"
    run(
        [
            python,
            "-m",
            "pip",
            "install",
            "--quiet",
            f"{TOP}[redis]",
            name,
            "pytest",
            *project.requires,
        ]
    )
    run([*pip, "download", "--quiet", "--no-deps", "--no-binary", name, "-d", tmp_path, name])
    (archive,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive) as opened:
        opened.extractall(tmp_path, filter="data")
    with Server() as server:
        (folder,) = [each for each in tmp_path.iterdir() if (each / "PKG-INFO").exists()]
        for settings in folder.glob("tests/settings/*.py"):
            text = settings.read_text().replace("127.0.0.1:6379", f"127.0.0.1:{server.port}")
            settings.write_text(text)
        facts = asdict(project) | {"port": server.port, "server": str(binary())}
        environment = {
            "PYTHONPATH": str(Path(__file__).with_name("projects")),
            "WEBLOCK_FACTS": json.dumps(facts),
            "DOGPILE_REDIS_PORT": str(server.port),
        }
        command = [python, "-m", "pytest", "-p", "weblock_for_redis_py", *project.arguments]
        run(command, cwd=folder, env={**os.environ, **environment})


def run(command: list[str | Path], **options: object) -> None:
    """Run it to its end; what it prints is seen if it fails."""
    subprocess.run(command, check=True, **options)  # type: ignore[call-overload]
