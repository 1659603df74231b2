"""``weblock`` as a program of its own."""

from __future__ import annotations

import os
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


class Program:
    """Runs ``python -m weblock`` on one engine."""

    def __init__(self, url: str) -> None:
        self._env = {**os.environ, "WEBLOCK_URL": url}

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
