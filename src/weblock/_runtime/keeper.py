"""The thread of a keeper."""

from __future__ import annotations

import warnings

from .._core.keeping import Keeper
from .._core.ports import Engine
from .._platform.logs import logger
from .._platform.threads import BackgroundThread
from .blocking import BlockingRuntime, drive


class KeeperThread:
    """Runs one engine's keeper in a daemon thread, from when it is first needed."""

    def __init__(self, engine: Engine) -> None:
        self._thread = BackgroundThread("weblock-keeper", lambda: drive(self.keeper.run()))
        self.keeper = Keeper(
            BlockingRuntime(renews=True),
            engine.connect,
            self._thread.start,
            report_forgotten=_warn_of_forgotten,
            disconnect=engine.switchboard.disconnect,
        )

    def close(self, timeout: float = 5.0) -> None:
        """End the thread, and wait for that at most ``timeout`` seconds.

        Debts are paid first, if the engine answers in that time.
        """
        self.keeper.close()
        self._thread.join(timeout)


def _warn_of_forgotten(message: str) -> None:
    try:
        warnings.warn(message, ResourceWarning, stacklevel=1)
    except ResourceWarning:  # Where warnings are errors: nobody could catch it here.
        logger.error(message)  # noqa: TRY400
