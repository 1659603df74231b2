"""What all users of an engine in this process share: the keeper's thread, and connections."""

from __future__ import annotations

import threading
import warnings

from .._core.keeping import Keeper
from .._core.ports import Engine, Runtime, Store
from .._platform.forks import heed_forks
from .._platform.logs import logger
from .._platform.threads import BackgroundThread
from .blocking import BlockingRuntime, drive


class KeeperThread:
    """Runs one engine's keeper in a daemon thread, from when it is first needed."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
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
        self._stores: dict[type[Runtime], Store] = {}

    def store_for(self, runtime: Runtime) -> Store:
        """Return the store of a world, the same one for all users, so that they share connections.

        Else each user would leave some open until the last one is gone. The keeper has a store of
        its own: renewals do not wait until a caller's request is over.
        """
        world = type(runtime)
        with _keepers.guard:
            if world not in self._stores:
                self._stores[world] = self._engine.connect(runtime)
            return self._stores[world]

    def close(self, timeout: float = 5.0) -> None:
        """End the thread, and wait for that at most ``timeout`` seconds.

        Debts are paid first, if the engine answers in that time.
        """
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
        self.guard = threading.RLock()
        """The collector may end a generator that has locks open, in the thread that is inside."""
        self.threads: dict[Engine, KeeperThread] = {}

    def after_fork(self) -> None:
        self.guard = threading.RLock()
        for thread in self.threads.values():
            thread.after_fork()


_keepers = _Keepers()


def join(engine: Engine) -> KeeperThread:
    """Return what the users of ``engine`` in this process share, for one more user.

    Each engine has its own, so that an engine that does not answer delays no other renewals.
    """
    with _keepers.guard:
        threads = _keepers.threads
        while True:
            thread = threads.get(engine) or threads.setdefault(engine, KeeperThread(engine))
            thread.users += 1
            if threads.get(engine) is thread:  # Else the collector has had its last user leave.
                return thread


def leave(engine: Engine) -> KeeperThread | None:
    """Record that a user has gone; return what is to be closed if it was the last."""
    with _keepers.guard:
        thread = _keepers.threads[engine]
        thread.users -= 1
        if thread.users:
            return None
        del _keepers.threads[engine]
        return thread


heed_forks(_keepers)
