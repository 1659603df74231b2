"""A server of a database, as a test holds it: on a free port, in a folder that goes with it."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import time
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Self

from tests.support.waiting import PATIENCE

from .ports import free_port
from .single import PortTaken


class DatabaseServer(ABC):
    """A server on a free port of loopback, with its data in a temporary folder."""

    def __init__(self, name: str) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix=f"weblock-{name}-"))
        self.port = 0
        self._process: subprocess.Popen[bytes] | None = None
        try:
            self._create()
            self._start()
        except BaseException:
            self.close()
            raise

    @abstractmethod
    def _create(self) -> None:
        """Makes the data of a server that nobody has used."""

    @abstractmethod
    def _spawn(self) -> subprocess.Popen[bytes]:
        """Starts the server on ``port``."""

    @abstractmethod
    def _answers(self) -> bool:
        """Whether it serves clients yet."""

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        process.kill()

    @property
    def _log(self) -> Path:
        return self.folder / "server.log"

    def _start(self) -> None:
        for _ in range(10):
            self.port = free_port()
            self._process = self._spawn()
            try:
                return self._wait_until_up(self._process)
            except PortTaken:
                continue
        raise PortTaken(self.port)

    def _wait_until_up(self, process: subprocess.Popen[bytes]) -> None:
        give_up_at = time.monotonic() + PATIENCE
        while not self._answers():
            if process.poll() is not None:
                log = self._log.read_text(errors="replace")
                if "Address already in use" in log:
                    raise PortTaken(self.port)
                raise AssertionError(f"the server has ended:\n{log[-2000:]}")
            assert time.monotonic() < give_up_at, "the server does not answer"
            time.sleep(0.01)

    def close(self) -> None:
        if self._process:
            self._end(self._process)
            self._process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()
