"""A MariaDB server, as a test holds it, from Debian's package."""

from __future__ import annotations

import os
import subprocess

import pymysql

from .database import DatabaseServer
from .debian import program
from .process import spawn

_SPEEDY = ["innodb-flush-log-at-trx-commit=0", "innodb-buffer-pool-size=32M", "skip-log-bin"]


class MariaDB(DatabaseServer):
    """A server on a free port of loopback, with its data in a temporary folder."""

    def __init__(self) -> None:
        self._server = program("mariadbd", "mariadb-server-core")
        self._user = ["--user=root"] if os.getuid() == 0 else []
        super().__init__("mariadb")

    def url(self, *, driver: str = "pymysql") -> str:
        return f"mysql+{driver}://root@127.0.0.1:{self.port}/shop?charset=utf8mb4"

    def _create(self) -> None:
        install = program("mariadb-install-db", "mariadb-server-core")
        program("my_print_defaults", "mariadb-client-core")  # What it runs.
        options = ["--skip-test-db", "--auth-root-authentication-method=normal"]
        command = [str(install), *self._user, f"--datadir={self.folder / 'data'}", *options]
        subprocess.run(command, check=True, capture_output=True)

    def _spawn(self) -> subprocess.Popen[bytes]:
        options = [*_SPEEDY, f"datadir={self.folder / 'data'}", f"port={self.port}"]
        options += ["bind-address=127.0.0.1", f"socket={self.folder / 'socket'}"]
        options += [f"pid-file={self.folder / 'pid'}"]
        command = [str(self._server), "--no-defaults", *self._user]
        return spawn([*command, *(f"--{each}" for each in options)], log=self._log)

    def _answers(self) -> bool:
        try:
            connection = pymysql.connect(host="127.0.0.1", port=self.port, user="root")
        except pymysql.OperationalError:
            return False
        with connection, connection.cursor() as cursor:
            cursor.execute("CREATE DATABASE IF NOT EXISTS shop CHARACTER SET utf8mb4")
        return True
