"""``weblock`` as a program: what it needs, and what it does to a terminal that knows only ASCII."""

from __future__ import annotations

import errno
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from weblock import Locks
from weblock.cli import main

from .programs import Program


def test_both_names_are_the_same_program() -> None:
    """``weblock`` and ``python -m weblock`` are one program, which tells its version."""
    script = Path(sys.executable).with_name("weblock")
    commands = [[sys.executable, "-m", "weblock"]]
    commands += [[str(script)]] if script.exists() else []  # Not in an environment that is older.
    for command in commands:
        done = subprocess.run([*command, "--version"], capture_output=True, text=True, check=True)
        assert done.stdout.startswith("weblock ")


@pytest.mark.parametrize("missing", ["click", "rich"])
def test_without_its_packages_it_says_what_to_install(missing: str, tmp_path: Path) -> None:
    """Without the extra ``cli``, one line says how to install it; it does not end as an answer would."""
    (tmp_path / f"{missing}.py").write_text(f"raise ModuleNotFoundError('no', name='{missing}')")
    done = subprocess.run(
        [sys.executable, "-m", "weblock", "list"],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.startswith("weblock: the command line needs ")
    assert done.stderr.endswith("pip install 'pyweblock[cli]' [weblock.missing_package]\n")


def test_an_ascii_terminal_can_show_any_key(tmp_path: Path) -> None:
    """Where standard output knows only ASCII, other characters are escaped; nothing fails."""
    url = f"file://{tmp_path}?allow_container=true"
    with Locks.from_url(url) as locks, locks.hold("ключ", label="café"):
        for command in (["show", "ключ"], ["list", "--json"]):
            done = Program(url).run(
                *command, env={"PYTHONIOENCODING": "ascii", "LC_ALL": "C.UTF-8"}
            )
            assert done.returncode == 0, done.stderr
            assert "caf\\" in done.stdout
            assert done.stdout.isascii()


@pytest.mark.parametrize(
    ("closed", "command", "code"),
    [
        ("2>&-", "show a", 1),
        ("2>&-", "nonsense", 2),
        ("1>&-", "show a", 1),
        ("1>&-", "list", 0),
        ("1>&-", "watch --count 1", 0),
        ("1>&- 2>&-", "list", 0),
        ("<&-", "list", 0),
        ("<&-", "release a", 1),
        ("> /dev/full", "list", 74),
        ("> /dev/full", "list --json", 74),
        ("> /dev/full", "show a --json", 74),
        ("> /dev/full", "watch --count 1", 74),
        ("> /dev/full", "--version", 74),
        ("> /dev/full", "--help", 74),
        ("> /dev/full", "run a -- true", 0),
        ("2> /dev/full", "show a", 1),
        ("2> /dev/full", "--url nosuch:// list", 2),
    ],
)
def test_a_stream_that_is_closed_or_full(
    closed: str, command: str, code: int, tmp_path: Path
) -> None:
    """The exit code says what happened, and no traceback does; ``1`` stays the answer no."""
    if "full" in closed and not Path("/dev/full").exists():
        pytest.skip("this system has no /dev/full")
    program = f'"{sys.executable}" -m weblock {command} {closed}'
    done = subprocess.run(
        ["/bin/sh", "-c", program],
        env={**os.environ, "WEBLOCK_URL": f"file://{tmp_path}?allow_container=true"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    if code == 74:
        assert done.stderr.startswith("weblock: the output cannot be written: No space left")


def test_a_failure_of_something_else_is_a_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only what the output ends with is said in one line."""
    failing = OSError(errno.EACCES, "of this test")

    def app(**_options: object) -> None:
        raise failing

    monkeypatch.setattr("weblock.cli.app.app", app)
    with pytest.raises(PermissionError, match="of this test"):
        main()


def test_the_status_page_prints_an_address_that_it_serves() -> None:
    """A port that another program has is an error, and no address is printed."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        done = Program("memory://").run("status", "--port", str(other.getsockname()[1]))
    assert done.returncode == 3
    assert "address already in use" in done.stderr
    assert "http://" not in done.stderr
