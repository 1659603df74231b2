"""What one process has of an ensemble: its session, what it remembers, and its callers that wait."""

from __future__ import annotations

import queue
import re
import threading
from collections.abc import Iterable
from contextlib import suppress
from typing import ClassVar

from kazoo.exceptions import KazooException

from ..._core.ports import CheckAgain, Engine, Runtime, Store, Switchboard
from ..._platform.forks import reset_after_fork
from ..._platform.logs import logger
from ...errors import EngineUnavailable
from ..findings import Finding, several, unreachable, warning
from . import Settings
from .session import Session
from .store import ZooKeeperStore
from .wire import Memory


class ZooKeeperEngine(Engine):
    """The leases below one node, as this process sees them."""

    scope = "cluster"
    new_session: ClassVar[type[Session]] = Session

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.name = settings.name
        self._closed = False
        self.after_fork()
        reset_after_fork(self)

    def after_fork(self) -> None:
        """Begin without a session."""
        self.switchboard = Switchboard()
        self.memory = Memory()
        self._opening = threading.RLock()
        self._opens = False
        """Whether the thread that has the mutex is opening a session."""
        self._session: Session | None = None

    def connect(self, runtime: Runtime) -> Store:
        return ZooKeeperStore(self, runtime)

    def session(self) -> Session:
        """Return the session of this process, which is opened when it is first needed.

        It is opened again after a fork, and after an error inside kazoo that ended its thread. Raises
        ``EngineUnavailable`` if the engine has been closed.
        """
        session = self._session
        if session and not session.ended:
            return session
        with self._opening:
            if self._closed:
                raise EngineUnavailable(self.name, "it was closed")
            if self._opens:  # A signal handler has interrupted this thread below.
                raise EngineUnavailable(self.name, "this thread is already opening it")
            if self._session and self._session.ended:
                logger.warning(
                    "the ZooKeeper client of %s failed and is restarted [weblock.thread_failed]",
                    self.name,
                )
                self._session.close(patience=0)
                self._session = None
                # Nothing notifies of what that session watched: it is watched anew.
                self.switchboard.notify_all(CheckAgain())
            if self._session is None:
                try:
                    self._opens = True
                    self._session = self.new_session(self.settings)
                except (RuntimeError, OSError) as error:  # No more threads, or no more descriptors.
                    reason = f"its session could not be started: {error}"
                    raise EngineUnavailable(self.name, reason) from error
                finally:
                    self._opens = False
            return self._session

    def diagnose(self) -> Iterable[Finding]:
        """Return what there is to tell of the server of the session, and of the ensemble."""
        session, settings = self.session(), self.settings
        connected: queue.SimpleQueue[object] = queue.SimpleQueue()
        session.ready.rawlink(connected.put)
        try:
            connected.get(timeout=settings.timeout)
        except queue.Empty as error:
            yield unreachable(error, f"no server answers within {settings.timeout:g} s")
            return
        told = ""
        with suppress(KazooException, OSError):
            told = session.client.command(b"srvr")
        version, mode = re.search(r"version: ([\w.]+)", told), re.search(r"Mode: (\w+)", told)
        text = (
            f"It is ZooKeeper {version[1]}, and this server is a {mode[1]}."
            if version and mode
            else "It does not report its version (4lw.commands.whitelist has no srvr)."
        )
        yield Finding("version", text)
        count = len(settings.hosts)
        text = f"The URL names {several(count, 'server')}."
        remedy = "Name all servers of an ensemble of three or more, of which one can fail."
        yield Finding("ensemble", text) if count >= 3 else warning("ensemble", text, remedy)
        yield Finding(
            "session",
            f"The keys of a process that dies are free after {settings.session_timeout:g} s"
            " (session_timeout), unless the servers set another limit.",
        )

    def close(self) -> None:
        """End the session. Callers that still wait here are notified."""
        with self._opening:
            self._closed = True
            session, self._session = self._session, None
        if session:
            session.close()
        self.switchboard.notify_all(CheckAgain())
