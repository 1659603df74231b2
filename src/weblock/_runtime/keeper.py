"""The keeper's thread, and what becomes of it when the process forks."""

from __future__ import annotations

import logging
import os
import threading
import time

from .._core.keeping import Keeper
from .._core.ports import Engine
from .blocking import BlockingRuntime, drive

logger = logging.getLogger("weblock")


class KeeperThread:
    """Runs one engine's keeper in a daemon thread, from the first time that it is needed."""

    def __init__(self, engine: Engine) -> None:
        self.keeper = Keeper(BlockingRuntime(), engine.connect, self._start, logger.warning)
        self._guard = threading.Lock()
        self._thread: threading.Thread | None = None
        self.users = 0

    def close(self, timeout: float) -> None:
        """Ends the thread, and waits for it at most ``timeout`` seconds."""
        self.keeper.close()
        with self._guard:  # One that is being started can be waited for only when it has been.
            thread = self._thread
        if thread and thread is not threading.current_thread():  # A callback may close, too.
            thread.join(timeout)

    def after_fork(self) -> None:
        self._guard = threading.Lock()
        self._thread = None
        self.keeper.after_fork()

    def _start(self) -> None:
        with self._guard:
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="weblock-keeper", daemon=True
                )
                self._thread.start()

    def _run(self) -> None:
        while True:
            try:
                return drive(self.keeper.run())
            except Exception:
                # A keeper that died in silence would lose every lease of the process.
                logger.exception("the weblock keeper failed, and goes on")
                time.sleep(0.1)


class _Keepers:
    """The keepers of this process, by engine."""

    def __init__(self) -> None:
        self.guard = threading.Lock()
        self.threads: dict[Engine, KeeperThread] = {}

    def after_fork(self) -> None:
        self.guard = threading.Lock()
        for thread in self.threads.values():
            thread.after_fork()


_keepers = _Keepers()


def keeper_of(engine: Engine) -> Keeper:
    """The one keeper of ``engine`` in this process, for one more user.

    Each engine has its own, so that one that does not answer delays nobody else's renewals.
    """
    with _keepers.guard:
        if engine not in _keepers.threads:
            _keepers.threads[engine] = KeeperThread(engine)
        thread = _keepers.threads[engine]
        thread.users += 1
        return thread.keeper


def leave_keeper(engine: Engine, timeout: float = 5.0) -> bool:
    """Says that one user has gone. Whether it was the last: then the keeper has ended.

    What it still owes is paid first, if the engine answers within ``timeout`` seconds.
    """
    with _keepers.guard:
        thread = _keepers.threads[engine]
        thread.users -= 1
        if thread.users:
            return False
        del _keepers.threads[engine]
    thread.close(timeout)
    return True


os.register_at_fork(after_in_child=_keepers.after_fork)
