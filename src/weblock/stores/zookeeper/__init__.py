"""``zookeeper://``: leases in a ZooKeeper ensemble, which agrees on each of them.

A key is a node, and its children are the lease and the places of waiters. ``nodes`` is the codec,
``session`` the transport. ZooKeeper's watches are the bell. ``scenes`` reads what exists, and ``store``
decides what happens to it.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

from ..._core.ports import Ask, Engine, Runtime, Store, Switchboard
from ..._platform.forks import heed_forks
from ..._platform.logs import logger
from ..._requirements import require
from ...errors import ConfigurationError, EngineUnavailable
from ..findings import Finding
from ..transport.options import options_in, seconds
from ..url import parts_of, without_secrets

if TYPE_CHECKING:
    from .session import Session

__all__ = ["Settings", "ZooKeeperEngine", "open_engine", "parse"]

DEFAULT_PORT: Final = 2181
DEFAULT_ROOT: Final = "/weblock"


@dataclass(frozen=True)
class Settings:
    """How to reach the servers, and how to lock there. Nothing secret shows in its ``repr``."""

    hosts: tuple[str, ...]
    root: str = DEFAULT_ROOT
    """The node below which we keep everything."""
    session_timeout: float = 10.0
    """Seconds after which the servers count a silent process as dead; we request it."""
    timeout: float = 2.0
    """Seconds that the servers have for an answer."""
    credentials: str = field(default="", repr=False)
    """User and password, for ACLs of the scheme ``digest``."""

    @property
    def name(self) -> str:
        """The URL, without secrets and options."""
        return f"zookeeper://{','.join(self.hosts)}{self.root}"


def open_engine(url: str) -> ZooKeeperEngine:
    """Return the engine of ``zookeeper://host:port,host:port/chroot``, which connects when it is first used.

    Raises ``ConfigurationError``.
    """
    require(without_secrets(url), "zookeeper")
    return ZooKeeperEngine(parse(url))


def parse(url: str) -> Settings:
    """Parse a URL. Raises ``ConfigurationError``, whose message shows no password."""
    userinfo, place, query = parts_of(url)
    user, colon, password = userinfo.partition(":")
    if userinfo and not (user and colon and password):
        raise ConfigurationError(
            "the zookeeper:// URL has a user without a password, or a password without a user: write"
            " user:password@, or neither"
        )
    hosts, slash, path = place.partition("/")
    root = unquote(slash + path).rstrip("/") or DEFAULT_ROOT
    if not re.fullmatch(r"(/[A-Za-z0-9_:-][A-Za-z0-9._:-]*){1,20}", root) or len(root) > 200:
        raise ConfigurationError(
            f"the zookeeper:// URL names no node with {root!r:.80}: write names of letters, digits"
            " or any of . _ : -, separated by '/'"
        )
    return Settings(
        hosts=tuple(_host(each) for each in hosts.split(",")),
        root=root,
        credentials=f"{unquote(user)}:{unquote(password)}" if userinfo else "",
        **options_in(query, {"session_timeout": seconds, "timeout": seconds}, engine="ZooKeeper"),
    )


def _host(text: str) -> str:
    match = re.fullmatch(r"(\[[0-9A-Fa-f:.%]+\]|[A-Za-z0-9._-]*)(?::(\d{1,5}))?", text)
    if not match or not 0 < int(match[2] or DEFAULT_PORT) < 65536:
        harmless = re.sub(r":(?!\d+$).*", "", text)  # What is no port may be a password.
        raise ConfigurationError(
            f"the zookeeper:// URL names no server with {harmless!r:.80}: write"
            " zookeeper://host:port,host:port/chroot; a '/' or '@' inside of a password must be"
            " percent-encoded"
        )
    return f"{match[1] or 'localhost'}:{match[2] or DEFAULT_PORT}"


class ZooKeeperEngine(Engine):
    """The leases below one node, as this process sees them."""

    scope = "cluster"

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.name = settings.name
        self._closed = False
        self.after_fork()
        heed_forks(self)

    def after_fork(self) -> None:
        """Begin without a session."""
        from .scenes import Memory

        self.switchboard = Switchboard()
        self.memory = Memory()
        self._opening = threading.RLock()
        self._opens = False
        """Whether the thread that has the mutex is opening a session."""
        self._session: Session | None = None

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
                self._session.close(patience=0)
                self._session = None
                # Nothing rings for what that session watched: it is watched anew.
                self.switchboard.ring_all(Ask())
            if self._opens:  # A signal handler has interrupted this thread below.
                raise EngineUnavailable(self.name, "its own thread is opening it")
            if self._session is None:
                try:
                    self._opens = True
                    self._session = self._new_session()
                finally:
                    self._opens = False
            return self._session

    def _new_session(self) -> Session:
        from .session import Session

        try:
            return Session(self.settings)
        except RuntimeError as error:
            reason = f"its threads could not be started: {error}"
            raise EngineUnavailable(self.name, reason) from error
