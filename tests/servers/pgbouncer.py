"""A pgbouncer in transaction mode before a PostgreSQL of the tests, from Debian's package."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from pathlib import Path

import psycopg

from tests.support.waiting import PATIENCE

from .debian import program
from .ports import free_port
from .postgres import Postgres
from .process import spawn

_CONFIGURATION = """
[databases]
postgres = host=127.0.0.1 port={server} dbname=postgres
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
auth_type = trust
auth_file = {folder}/users
pool_mode = transaction
unix_socket_dir =
"""


class PgBouncer:
    """It gives a connection of the server to a client for one transaction at a time."""

    def __init__(self, server: Postgres) -> None:
        bouncer = program("pgbouncer", "pgbouncer")
        self.folder = Path(tempfile.mkdtemp(prefix="weblock-pgbouncer-"))
        self.port = free_port()
        (self.folder / "users").write_text('"postgres" ""\n')
        configuration = self.folder / "pgbouncer.ini"
        configuration.write_text(
            _CONFIGURATION.format(server=server.port, port=self.port, folder=self.folder)
        )
        user = 65534 if os.getuid() == 0 else None  # It refuses to serve as root.
        if user is not None:
            for path in (self.folder, *self.folder.iterdir()):
                os.chown(path, user, user)
        command = [str(bouncer), str(configuration)]
        self._process = spawn(command, log=self.folder / "log", user=user)
        self._wait_until_up()

    def url(self, *, driver: str) -> str:
        return f"postgresql+{driver}://postgres@127.0.0.1:{self.port}/postgres"

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _wait_until_up(self) -> None:
        give_up_at = time.monotonic() + PATIENCE
        while True:
            try:
                psycopg.connect(f"host=127.0.0.1 port={self.port} user=postgres").close()
            except psycopg.OperationalError as error:
                if self._process.poll() is not None or time.monotonic() > give_up_at:
                    self.close()
                    raise AssertionError("pgbouncer does not answer") from error
                time.sleep(0.01)
            else:
                return
