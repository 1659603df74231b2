"""The benchmarks run. What they measure is no test's business."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def test_the_quick_mode_of_a_case_prints_its_table() -> None:
    """Whoever runs one case gets its figures, with the goal and whether it was met."""
    command = [sys.executable, "-m", "benchmarks", "--quick", "--rounds=1", "--only=uncontended"]
    run = subprocess.run([*command, "--markdown"], capture_output=True, text=True, check=False)

    assert run.returncode == 0, run.stderr
    assert "**Uncontended, blocking**" in run.stdout
    assert "| weblock file:// |" in run.stdout
    assert "met |" in run.stdout


def test_the_redis_engine_is_measured_beside_other_locks(tmp_path: Path) -> None:
    """Its cases start a server of their own; a plot of the rates is written where it is wanted."""
    plot = tmp_path / "plot.svg"
    command = [sys.executable, "-m", "benchmarks", "--quick", "--rounds=1", "--only=redis-alone"]
    command += ["--markdown", "--plot", str(plot)]
    run = subprocess.run(command, capture_output=True, text=True, check=False)

    assert run.returncode == 0, run.stderr
    assert "**Redis, no contention, blocking, one thread**" in run.stdout
    assert "| redis-py Lock |" in run.stdout
    assert ">weblock, asyncio</text>" in plot.read_text()


def test_the_adapters_are_measured_beside_the_bare_application() -> None:
    """The same requests go to servers with and without them, whose answers are looked at."""
    command = [sys.executable, "-m", "benchmarks", "--quick", "--rounds=1", "--only=web"]
    run = subprocess.run([*command, "--markdown"], capture_output=True, text=True, check=False)

    assert run.returncode == 0, run.stderr
    assert "| FastAPI, bare |" in run.stdout
    assert "| LockMiddleware, uncontended |" in run.stdout
