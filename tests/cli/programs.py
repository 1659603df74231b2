"""``weblock`` as a program of its own."""

from __future__ import annotations

import io
import os
import pty
import re
import subprocess
import sys
from typing import Any

from tests.support.waiting import PATIENCE


class Process(subprocess.Popen[str]):
    """A process that ends with its block, where a test fails in it."""

    def __exit__(self, exc_type: type[BaseException] | None, *others: object) -> None:
        if exc_type:
            self.kill()
        super().__exit__(exc_type, *others)


class Typed(io.BytesIO):
    """The standard input of a command inside this process: what a person types at a terminal."""

    def isatty(self) -> bool:
        return True


class Program:
    """Runs ``python -m weblock`` on one engine."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._env = {**os.environ, "WEBLOCK_URL": url}

    def at_terminal(self, *arguments: str) -> Terminal:
        """The command in the foreground of a terminal."""
        return Terminal(sys.executable, "-m", "weblock", *arguments, env={"WEBLOCK_URL": self._url})

    def start(self, *arguments: str, env: dict[str, str] | None = None, **options: Any) -> Process:
        """A process that runs; its output can be read line by line."""
        options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True} | options
        command = [sys.executable, "-m", "weblock", *arguments]
        return Process(command, env=self._env | (env or {}), **options)

    def run(self, *arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
        """What came of a command that has ended."""
        with self.start(*arguments, **options) as process:
            try:
                out, err = process.communicate(timeout=PATIENCE)
            finally:
                process.kill()
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)


class Terminal:
    """A terminal, and a command that runs in its foreground."""

    def __init__(self, *command: str, env: dict[str, str]) -> None:
        self.said = ""
        self._controller, terminal = pty.openpty()
        name = os.ttyname(terminal)
        # The first terminal that the leader of a session opens is the one that controls it.
        shell = f'exec "$@" <>{name} >&0 2>&0'
        self._process = subprocess.Popen(
            ["sh", "-c", shell, "sh", *command],
            env={**os.environ, "TERM": "xterm", "COLUMNS": "100", **env},
            start_new_session=True,
        )
        self._terminal = terminal  # Kept open, so that reading waits where nobody has it yet.

    def type(self, text: str) -> None:
        """Types, which the terminal echoes."""
        os.write(self._controller, text.encode())

    def until(self, pattern: str) -> str:
        """Reads until the output matches; what was read is not read again."""
        while not (found := re.search(pattern, self.said, re.DOTALL)):
            self.said += os.read(self._controller, 4096).decode()
        seen, self.said = self.said[: found.end()], self.said[found.end() :]
        return seen

    def close(self) -> int:
        """Waits for the command's end, and returns its code."""
        try:
            return self._process.wait(PATIENCE)
        finally:
            self._process.kill()
            self._process.wait()
            os.close(self._controller)
            os.close(self._terminal)
