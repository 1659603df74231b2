"""The demo, as a stranger runs it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

TOP = Path(__file__).parents[2]


def start(*arguments: str, scratch: Path) -> subprocess.Popen[str]:
    """The demo, with its scratch files below ``scratch``."""
    return subprocess.Popen(
        [sys.executable, "-m", "demo", *arguments],
        cwd=TOP,
        env={**os.environ, "TMPDIR": str(scratch), "COLUMNS": "100"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.fixture
def scratch():
    """A short path: Unix sockets are made below it."""
    with tempfile.TemporaryDirectory(prefix="wl-") as directory:
        yield Path(directory)


def workers_below(directory: Path) -> list[int]:
    """The processes whose environment names a database below ``directory``."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if f"DEMO_DATABASE={directory}".encode() in (process / "environ").read_bytes():
                found.append(int(process.name))
        except OSError:
            continue
    return found


def wait_until(condition, seconds: float = 30) -> None:
    """Waits for a condition, and fails if it does not come true."""
    give_up_at = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < give_up_at
        time.sleep(0.01)


def test_it_shows_the_race_and_its_end(scratch):
    """The demo sees the race without the lock, none with it, and a killed holder's lock freed."""
    demo = start("--no-color", scratch=scratch)
    output, errors = demo.communicate(timeout=100)
    assert demo.returncode == 0, output + errors
    assert errors == ""
    assert "BOUND BROKEN" in output
    assert "3 of 3: bound kept" in output
    assert "kill -9" in output
    assert "The lock held." in output
    assert "\x1b" not in output
    assert list(scratch.iterdir()) == []


def test_it_is_clean_when_interrupted(scratch):
    """Ctrl-C while its servers run leaves no process and no file, and says so in one line."""
    demo = start(scratch=scratch)
    wait_until(lambda: workers_below(scratch))
    demo.send_signal(signal.SIGINT)
    output, errors = demo.communicate(timeout=60)
    assert demo.returncode == 130
    assert "Interrupted" in output
    assert errors == ""
    assert workers_below(scratch) == []
    assert list(scratch.iterdir()) == []


@pytest.mark.parametrize("arguments", [("--workers", "1"), ("--requests", "many"), ("--fast",)])
def test_bad_arguments_are_named(arguments, scratch):
    """An argument that cannot work is named in the error, and nothing is started."""
    demo = start(*arguments, scratch=scratch)
    output, errors = demo.communicate(timeout=60)
    assert demo.returncode == 2
    assert output == ""
    assert arguments[-1] in errors
