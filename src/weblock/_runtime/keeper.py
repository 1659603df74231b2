"""The keeper's thread, and what a fork does to it."""

from __future__ import annotations

import threading
import warnings

from .._core.keeping import Keeper
from .._core.ports import Engine
from .._platform.forks import heed_forks
from .._platform.logs import logger
from .._platform.threads import BackgroundThread
from .blocking import BlockingRuntime, drive


class KeeperThread:
    """Runs one engine's keeper in a daemon thread, from when it is first needed."""

    def __init__(self, engine: Engine) -> None:
        self._thread = BackgroundThread(
            "weblock-keeper", lambda: drive(self.keeper.run()), real=engine.real_keeper
        )
        self.keeper = Keeper(
            BlockingRuntime(),
            engine.connect,
            self._thread.start,
            report_forgotten=_warn_of_forgotten,
            disconnect=engine.switchboard.disconnect,
        )
        self.users = 0

    def close(self, timeout: float) -> None:
        """End the thread, and wait for that at most ``timeout`` seconds."""
        self.keeper.close()
        self._thread.join(timeout)

    def after_fork(self) -> None:
        self._thread.after_fork()
        self.keeper.after_fork()


def _warn_of_forgotten(message: str) -> None:
    try:
        warnings.warn(message, ResourceWarning, stacklevel=1)
    except ResourceWarning:  # Where warnings are errors: nobody could catch it here.
        logger.error(message)  # noqa: TRY400


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
    """Return the one keeper of ``engine`` in this process, for one more user.

    Each engine has its own, so that an engine that does not answer delays no other renewals.
    """
    with _keepers.guard:
        if engine not in _keepers.threads:
            _keepers.threads[engine] = KeeperThread(engine)
        thread = _keepers.threads[engine]
        thread.users += 1
        return thread.keeper


def leave_keeper(engine: Engine, timeout: float = 5.0) -> bool:
    """Record that a user has gone, and return whether it was the last: then the keeper has ended.

    Debts are paid first, if the engine answers within ``timeout`` seconds.
    """
    with _keepers.guard:
        thread = _keepers.threads[engine]
        thread.users -= 1
        if thread.users:
            return False
        del _keepers.threads[engine]
    thread.close(timeout)
    return True


heed_forks(_keepers)
