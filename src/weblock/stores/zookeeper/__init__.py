"""``zookeeper://``: leases in a ZooKeeper ensemble, which agrees on each of them.

A key is a node, and its children are the lease and the places of waiters (``nodes``). ``acquiring``
and ``renewing`` are what happens to them, by the rules at the top of ``store``; ``scenes`` is what
is seen of them, and ``session`` the connection that all of a process share.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import TYPE_CHECKING

from ..._core.ports import Ask, Engine, Runtime, Store, Switchboard
from ..._platform.forks import heed_forks
from ..._platform.logs import logger
from ..._requirements import require
from ...errors import EngineUnavailable
from ..findings import Finding
from ..url import without_secrets
from .memory import Memory
from .settings import Settings, parse

if TYPE_CHECKING:
    from .session import Session

__all__ = ["ZooKeeperEngine", "open_engine"]


def open_engine(url: str) -> ZooKeeperEngine:
    """The engine of ``zookeeper://host:port,host:port/chroot``.

    It connects when it is first used. Raises ``ConfigurationError``.
    """
    require(without_secrets(url), "zookeeper")
    return ZooKeeperEngine(parse(url))


class ZooKeeperEngine(Engine):
    """The leases below one node, as this process sees them."""

    scope = "cluster"
    # All requests of a process keep their order, because they go through one session: else a renewal
    # could overtake an extension, and take back what its holder was promised.

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.name = settings.name
        self._session: Session | None = None
        self._closed = False
        self.after_fork()
        heed_forks(self)

    def after_fork(self) -> None:
        """Begin without a session."""
        self.switchboard = Switchboard()
        self.memory = Memory()
        self._opening = threading.RLock()
        session, self._session = self._session, None
        if session:
            session.after_fork()

    def connect(self, runtime: Runtime) -> Store:
        from .store import ZooKeeperStore

        return ZooKeeperStore(self, runtime)

    def session(self) -> Session:
        """The session of this process, which is opened when it is first needed.

        It is opened again after a fork, and after an error inside kazoo that ended its thread. Raises
        ``EngineUnavailable`` if the engine has been closed.
        """
        session = self._session
        return session if session and not session.ended else self._open()

    def diagnose(self) -> Iterable[Finding]:
        """Return what there is to know of the servers."""
        from .diagnosis import diagnose

        return diagnose(self.session(), self.settings)

    def close(self) -> None:
        """End the session. Callers that still wait here are notified."""
        with self._opening:
            self._closed = True
            session, self._session = self._session, None
        if session:
            session.close()
        self.switchboard.ring_all(Ask())

    def _open(self) -> Session:
        with self._opening:
            if self._closed:
                raise EngineUnavailable(self.name, "it was closed")
            if self._session and self._session.ended:
                logger.warning(
                    "the ZooKeeper client of %s failed, and is being restarted", self.name
                )
                self._session.begin_to_close()
                self._session = None
                self.memory.watched.clear()  # Nothing rings for what that session watched: it is watched anew.
                self.switchboard.ring_all(Ask())
            if self._session is None:
                self._session = self._new_session()
            return self._session

    def _new_session(self) -> Session:
        from .session import Session

        try:
            return Session(self.settings)
        except RuntimeError as error:
            reason = f"its threads could not be started: {error}"
            raise EngineUnavailable(self.name, reason) from error
