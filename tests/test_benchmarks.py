"""The benchmarks run. What they measure is no test's business."""

from __future__ import annotations

import subprocess
import sys


def test_the_quick_mode_of_a_case_prints_its_table() -> None:
    """Whoever runs one case gets its figures, with the goal and whether it was met."""
    command = [sys.executable, "-m", "benchmarks", "--quick", "--rounds=1", "--only=uncontended"]
    run = subprocess.run([*command, "--markdown"], capture_output=True, text=True, check=False)

    assert run.returncode == 0, run.stderr
    assert "**Uncontended, blocking**" in run.stdout
    assert "| weblock file:// |" in run.stdout
    assert "met |" in run.stdout
