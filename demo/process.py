"""Servers in processes of their own, which end with the block that runs them."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

START_LIMIT: Final = 60.0
"""Seconds."""


class ServerError(Exception):
    """A server could not be run; the message has what it said."""


class Process:
    """A server that is starting or running, and what it says."""

    def __init__(self, what: str, process: subprocess.Popen[bytes], log: Path) -> None:
        self.pid = process.pid
        self.what = what
        self._process = process
        self._log = log

    async def until_it_says(self, pattern: str) -> re.Match[str]:
        """Waits for words of its log. Raises ``ServerError`` if they are not to come."""
        give_up_at = time.monotonic() + START_LIMIT
        alive = True
        while alive and time.monotonic() < give_up_at:
            alive = self._process.poll() is None  # Asked first: what it said last counts, too.
            if found := re.search(pattern, self._said()):
                return found
            await asyncio.sleep(0.02)
        last = "\n".join(self._said().splitlines()[-30:])
        raise ServerError(f"{self.what} did not start; it said:\n{last}")

    def _said(self) -> str:
        return self._log.read_text(errors="replace")


@contextmanager
def running(
    what: str, command: Sequence[str], log: Path, environment: Mapping[str, str]
) -> Iterator[Process]:
    """Runs a command while the block lasts; then it is killed, for it has nothing to save."""
    with (
        log.open("wb") as output,
        subprocess.Popen(
            command,
            cwd=Path(__file__).parents[1],
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C is for the demo alone, which then ends all in order.
        ) as process,
    ):
        try:
            yield Process(what, process, log)
        finally:
            process.kill()
