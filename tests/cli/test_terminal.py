"""What a person at a terminal sees and types."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path
from shlex import quote

import pytest

from weblock import Locks

from .programs import Program, Terminal

SHELL = shutil.which("bash") or ""


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"file://{tmp_path}/locks?allow_container=true"


@pytest.fixture
def weblock(url: str) -> Program:
    return Program(url)


def test_a_live_table_fits_the_terminal(weblock: Program, url: str) -> None:
    """A live table is drawn again and again, as wide as the terminal at most."""
    with Locks.from_url(url) as locks, locks.hold("item:" + "7" * 200, label="web-1"):
        watching = weblock.at_terminal("watch", "--interval", "0.1", "--count", "2")
        screens = watching.until("1 held, 0 waiting.*web-1.*1 held, 0 waiting")
        assert watching.close() == 0
    drawn = re.sub(r"\x1b\[[0-9;?]*[a-z]", "", re.sub(r"\x1b\[[0-9;]*H", "\n", screens))
    assert max(map(len, drawn.splitlines())) <= 100


def test_the_command_is_in_the_foreground(weblock: Program, url: str) -> None:
    """The command of ``run`` reads from the terminal, and Ctrl-C reaches it there."""
    script = "trap 'exit 9' INT; read x; echo \"got $x\"; while :; do sleep 0.02; done"
    running = weblock.at_terminal("run", "k", "--", "sh", "-c", script)
    running.type("hello\n")
    running.until("got hello")
    running.type("\x03")
    assert running.close() == 9
    with Locks.from_url(url) as locks:
        assert locks.inspect("k") is None


@pytest.mark.skipif(not SHELL, reason="job control is a shell's")
def test_ctrl_z_stops_the_job_and_fg_goes_on(url: str) -> None:
    """Ctrl-Z stops the command and ``weblock``, fg brings both back, and Ctrl-C ends the command."""
    script = "trap 'echo continued' CONT; echo ready; while :; do read x && echo got $x; done"
    env = {"WEBLOCK_URL": url, "PS1": "$ ", "SCRIPT": script}
    shell = Terminal(SHELL, "--norc", "--noprofile", "-i", env=env)
    shell.type(f'{quote(sys.executable)} -m weblock run k -- sh -c "$SCRIPT"\n')
    shell.until("ready")
    shell.type("one\n")
    shell.until("got one")
    shell.type("\x1a")
    shell.until("Stopped")
    shell.type("fg\n")
    shell.until("continued")
    shell.type("two\n")
    shell.until("got two")
    shell.type("\x03")
    shell.until(r"\$ ")
    shell.type("echo code=$?; exit\n")
    shell.until("code=130")
    assert shell.close() == 0
