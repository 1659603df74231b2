"""A memcached server, as a test holds it, from Debian's package."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlencode

from tests.support.urls import ANSWERED
from tests.support.waiting import PATIENCE

from .debian import program
from .ports import free_port
from .process import spawn
from .single import PortTaken


class Memcached:
    """A server on a free port of loopback. ``options`` are words of its command line."""

    def __init__(self, *options: str) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="weblock-memcached-"))
        self._options = options
        try:
            self._start_where_free()
        except BaseException:
            self.close()
            raise

    def url(self, **query: Any) -> str:
        """Its URL, with options of the engine; the timeout of ``ANSWERED`` unless another is given."""
        options = urlencode({"timeout": ANSWERED["timeout"], **query})
        return f"memcached://127.0.0.1:{self.port}?{options}"

    def ask(self, command: bytes) -> bytes:
        """The first line of its answer to a command."""
        with socket.create_connection(("127.0.0.1", self.port), PATIENCE) as sock:
            sock.sendall(command + b"\r\n")
            with sock.makefile("rb") as answer:
                return answer.readline().strip()

    def start(self) -> None:
        """Starts it, and waits until it answers. Raises ``PortTaken`` if it cannot listen."""
        # Another user's process would outlive a test that is killed: it no longer dies with its parent.
        user = ["-u", "root"] if os.getuid() == 0 else []
        where = ["-l", "127.0.0.1", "-p", str(self.port)]
        command = [*where, *user, *self._options]
        self._process = spawn([program("memcached", "memcached"), *command], log=self._log)
        give_up_at = time.monotonic() + PATIENCE
        while not self._answers():
            if self._process.poll() is not None:
                log = self._log.read_text(errors="replace")
                if "in use" in log:
                    raise PortTaken(self.port)
                raise AssertionError(f"the server has ended:\n{log[-2000:]}")
            assert time.monotonic() < give_up_at, "the server does not answer"
            time.sleep(0.005)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        """Has it stand still, until ``cont``; returns when it does."""
        os.kill(self._process.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, self._process.pid, os.WSTOPPED)

    def cont(self) -> None:
        os.kill(self._process.pid, signal.SIGCONT)

    def close(self) -> None:
        process: subprocess.Popen[bytes] | None = getattr(self, "_process", None)
        if process and process.poll() is None:
            self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def _log(self) -> Path:
        return self.folder / "server.log"

    def _start_where_free(self) -> None:
        for _ in range(10):
            self.port = free_port()
            try:
                return self.start()
            except PortTaken:
                continue
        raise PortTaken(self.port)

    def _answers(self) -> bool:
        """Whether it answers; somebody else on its port does not count."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), 1) as sock:
                sock.sendall(b"stats\r\n")
                with sock.makefile("rb") as answer:
                    return answer.readline().split() == [
                        b"STAT",
                        b"pid",
                        str(self._process.pid).encode(),
                    ]
        except OSError:
            return False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()
