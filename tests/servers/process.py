"""Processes of a test: they end with it, however it ends."""

from __future__ import annotations

import functools
import os
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Self

# What dies with its parent dies with the thread that started it, so one that lasts starts them all.
_starter = ThreadPoolExecutor(1, thread_name_prefix="server-starter")


def spawn(
    command: Sequence[str | Path],
    *,
    log: Path,
    env: Mapping[str, str] | None = None,
    user: int | None = None,
    pass_fds: Sequence[int] = (),
) -> subprocess.Popen[bytes]:
    """A process that writes to ``log``, with a user id of its own where ``user`` names one.

    Nothing that a test starts outlives it, however it ends. The process itself asks the kernel for that, and
    changes its user: what is to happen between a fork and the new program costs a copy of all the tests' memory.
    """

    def start() -> subprocess.Popen[bytes]:
        with log.open("wb") as output:
            return subprocess.Popen(
                [*prepared(user), *command],
                env=None if env is None else {**os.environ, **env},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                pass_fds=pass_fds,
            )

    return _starter.submit(start).result()


@functools.cache
def prepared(user: int | None) -> list[str]:
    """What a command begins with that is to end with the tests, and to run as another user if one is given."""
    setpriv = shutil.which("setpriv")
    as_user = [] if user is None else [f"--reuid={user}", f"--regid={user}", "--clear-groups"]
    dies_with_parent = [str(setpriv), "--pdeathsig=KILL"]
    if setpriv and not subprocess.call([*dies_with_parent, "true"], stderr=subprocess.DEVNULL):
        return [*dies_with_parent, *as_user, "--"]
    assert user is None, "to start a server as another user, the tests need setpriv from util-linux"
    return []


class Running:
    """A server that a test may kill, stop, and let go on. It ends, with its folder, when it is closed."""

    folder: Path
    _process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._process
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def kill(self) -> None:
        """Kills it, as by kill -9: whatever it had not written down is gone."""
        assert self._process
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        """Has it stand still, until ``cont``; returns when it does."""
        os.kill(self.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, self.pid, os.WSTOPPED)

    def cont(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def close(self) -> None:
        if self.alive:
            self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()
