"""A MariaDB server, as a test holds it, from Debian's package."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Self

import pymysql

from tests.support.waiting import PATIENCE

from .debian import program
from .ports import free_port
from .process import spawn
from .single import PortTaken

_SPEEDY = ["innodb-flush-log-at-trx-commit=0", "innodb-buffer-pool-size=32M", "skip-log-bin"]


class MariaDB:
    """A server on a free port of loopback, with its data in a temporary folder."""

    def __init__(self) -> None:
        server = program("mariadbd", "mariadb-server-core")
        self.folder = Path(tempfile.mkdtemp(prefix="weblock-mariadb-"))
        user = ["--user=root"] if os.getuid() == 0 else []
        try:
            install = program("mariadb-install-db", "mariadb-server-core")
            program("my_print_defaults", "mariadb-client-core")  # What it runs.
            options = ["--skip-test-db", "--auth-root-authentication-method=normal"]
            command = [str(install), *user, f"--datadir={self.folder / 'data'}", *options]
            subprocess.run(command, check=True, capture_output=True)
            self._start([str(server), *user])
        except BaseException:
            self.close()
            raise

    def url(self, *, driver: str = "pymysql") -> str:
        """Its URL for SQLAlchemy."""
        return f"mysql+{driver}://root@127.0.0.1:{self.port}/shop?charset=utf8mb4"

    def close(self) -> None:
        """Kills it, and removes its data."""
        process = getattr(self, "_process", None)
        if process:
            process.kill()
            process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _start(self, server: list[str]) -> None:
        for _ in range(10):
            self.port = free_port()
            options = [f"datadir={self.folder / 'data'}", f"port={self.port}", *_SPEEDY]
            options += ["bind-address=127.0.0.1", f"socket={self.folder / 'socket'}"]
            options += [f"pid-file={self.folder / 'pid'}"]
            command = [*server[:1], "--no-defaults", *server[1:]]
            self._process = spawn([*command, *(f"--{each}" for each in options)], log=self._log)
            try:
                return self._wait_until_up()
            except PortTaken:
                continue
        raise PortTaken(self.port)

    @property
    def _log(self) -> Path:
        return self.folder / "server.log"

    def _wait_until_up(self) -> None:
        give_up_at = time.monotonic() + PATIENCE
        while not self._answers():
            if self._process.poll() is not None:
                log = self._log.read_text(errors="replace")
                if "Address already in use" in log:
                    raise PortTaken(self.port)
                raise AssertionError(f"the server has ended:\n{log[-2000:]}")
            assert time.monotonic() < give_up_at, "the server does not answer"
            time.sleep(0.01)

    def _answers(self) -> bool:
        try:
            connection = pymysql.connect(host="127.0.0.1", port=self.port, user="root")
        except pymysql.OperationalError:
            return False
        with connection, connection.cursor() as cursor:
            cursor.execute("CREATE DATABASE IF NOT EXISTS shop CHARACTER SET utf8mb4")
        return True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()
