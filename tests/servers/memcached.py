"""A memcached server, as a test holds it, from Debian's package."""

from __future__ import annotations

import os
import socket
import tempfile
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from tests.support.urls import ANSWERED
from tests.support.waiting import PATIENCE

from .debian import program
from .ports import free_port
from .process import Running, spawn
from .single import PortTaken


class Memcached(Running):
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
        process = spawn([program("memcached", "memcached"), *command], log=self._log)
        self._process = process
        give_up_at = time.monotonic() + PATIENCE
        while not self._answers():
            if process.poll() is not None:
                log = self._log.read_text(errors="replace")
                if "in use" in log:
                    raise PortTaken(self.port)
                raise AssertionError(f"the server has ended:\n{log[-2000:]}")
            assert time.monotonic() < give_up_at, "the server does not answer"
            time.sleep(0.005)

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
                        str(self.pid).encode(),
                    ]
        except OSError:
            return False
