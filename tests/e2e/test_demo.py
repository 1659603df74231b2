"""The demo, as a stranger runs it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.waiting import PATIENCE, eventually

TOP = Path(__file__).parents[2]

pytestmark = pytest.mark.timeout(1800)

LONG = pytest.mark.skipif(not os.environ.get("WEBLOCK_LONG"), reason="a long test: WEBLOCK_LONG=1")


class Demo:
    """The demo in a process, with its scratch files below ``scratch``."""

    def __init__(self, scratch: Path, *arguments: str, **environment: str) -> None:
        self.scratch = scratch
        self.process = subprocess.Popen(
            [sys.executable, "-m", "demo", *arguments],
            cwd=TOP,
            env={**os.environ, "TMPDIR": str(scratch), "COLUMNS": "80", **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def until(self, condition: Callable[[], bool]) -> None:
        eventually(lambda: condition() or self.process.poll() is not None)
        assert self.process.poll() is None, "it ended"

    def end(self) -> tuple[str, str]:
        return self.process.communicate(timeout=10 * PATIENCE)

    @property
    def traces(self) -> list[str]:
        """What the workers have noted; one text for each application that runs."""
        found = []
        for trace in self.scratch.glob("*/trace.jsonl"):
            try:
                found.append(trace.read_text())
            except FileNotFoundError:
                continue
        return found


@pytest.fixture
def scratch() -> Iterator[Path]:
    """A short path: Unix sockets are made below it."""
    with tempfile.TemporaryDirectory(prefix="wl-") as directory:
        Path(directory).chmod(0o711)  # PostgreSQL, which does not run as root, must get below it.
        yield Path(directory)


@pytest.fixture
def demo(scratch: Path) -> Iterator[Callable[..., Demo]]:
    started: list[Demo] = []

    def start(*arguments: str, **environment: str) -> Demo:
        started.append(Demo(scratch, *arguments, **environment))
        return started[-1]

    yield start
    for each in started:
        if each.process.poll() is None:
            each.process.terminate()
            each.end()


def servers_below(scratch: Path) -> list[int]:
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            environment = (process / "environ").read_bytes()
            folder = str((process / "cwd").readlink())
        except OSError:
            continue
        if f"TMPDIR={scratch}\0".encode() in environment or folder.startswith(str(scratch)):
            found.append(int(process.name))
    return found


def at_work(demo: Demo) -> bool:
    return any('"enter"' in trace for trace in demo.traces)


def engine_starting(demo: Demo) -> bool:
    return bool(list(demo.scratch.glob("*/engine.log")))


def workers_starting(demo: Demo) -> bool:
    return bool(list(demo.scratch.glob("*/items.sqlite3")))


@pytest.mark.parametrize(
    ("name", "framework"),
    [
        ("file", "fastapi"),
        ("redis", "django"),
        pytest.param("file", "flask", marks=LONG),
    ],
)
def test_it_shows_the_race_and_its_end(
    name: str, framework: str, demo: Callable[..., Demo], scratch: Path
) -> None:
    """The demo sees the race without the lock, none with it, and a killed holder's lock freed.

    On the machine's own engine, which is the default, as on a server that it starts; in each of
    the frameworks.
    """
    options = () if name == "file" else ("--engine", name, "--workers", "2")
    running = demo("--framework", framework, *options)
    output, errors = running.end()

    assert running.process.returncode == 0, output + errors
    assert errors == ""
    assert f"Engine of the lock: {name}://" in output
    assert "bound of 3 BROKEN" in output
    assert "3: bound of 3 kept" in output
    assert len(re.findall(r"422 limit reached: 3 items", output)) >= 9
    assert re.search(r"\d\.\d\d s after its death, worker \d+ was at work", output)
    assert "The lock held." in output
    assert max(map(len, output.splitlines())) <= 80
    assert "\x1b" not in output
    assert list(scratch.iterdir()) == []


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="it looks for them in /proc")
@pytest.mark.parametrize(
    "moment",
    [
        engine_starting,
        at_work,
        *([workers_starting] if "WEBLOCK_LONG" in os.environ else []),
    ],
)
def test_it_is_clean_when_interrupted(
    moment: Callable[[Demo], bool], demo: Callable[..., Demo], scratch: Path
) -> None:
    """Ctrl-C, even if it is repeated, leaves no process and no file, and one line says so."""
    running = demo("--engine", "redis", "--workers", "2")
    running.until(lambda: moment(running))
    while running.process.poll() is None:
        running.process.send_signal(signal.SIGINT)
        time.sleep(0.01)
    _, errors = running.end()

    assert running.process.returncode == 130
    assert errors == "Interrupted: the servers are stopped, nothing is left behind.\n"
    assert servers_below(scratch) == []
    assert list(scratch.iterdir()) == []


@pytest.mark.parametrize(
    "url",
    ["redis://:s3cret@127.0.0.1:1", "s3cret@"],
)
def test_an_engine_that_cannot_be_used_is_named(
    url: str, demo: Callable[..., Demo], scratch: Path
) -> None:
    """One sentence says what is wrong with the engine, without the password, and nothing is left."""
    running = demo("--engine", url)
    _, errors = running.end()

    assert running.process.returncode == 2
    assert len(errors.splitlines()) == 1
    assert errors.startswith("scripts/demo: ")
    assert "s3cret" not in errors
    assert list(scratch.iterdir()) == []


def test_an_application_that_does_not_start_is_no_riddle(
    demo: Callable[..., Demo], scratch: Path
) -> None:
    """If uvicorn cannot run the application, the demo says what uvicorn said, and exits with 1."""
    broken = scratch / "broken" / "fastapi.py"
    broken.parent.mkdir()
    broken.write_text("raise ImportError('no such luck')\n")
    running = demo(PYTHONPATH=str(broken.parent))
    _, errors = running.end()

    assert running.process.returncode == 1
    assert "the application" in errors
    assert "no such luck" in errors
    assert "scripts/demo: " in errors
    assert list(scratch.iterdir()) == [broken.parent]
