"""A list of Redis URLs: a lease counts while a majority of independent servers agrees (Redlock).

https://redis.io/docs/latest/develop/clients/patterns/distributed-locks/ has the algorithm. Here
waiters queue on every server by tickets, which are times of the servers' clocks, so that all servers
hand over to the same one; fences are the same on a majority; a server that lost its data waits before
it votes again; and no caller waits for a server that is known to be down.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final

from ..._core.ports import Ask, Engine, Message, Runtime, Store, Switchboard
from ..._platform.forks import heed_forks
from ..._requirements import require
from ...errors import ConfigurationError
from ..findings import Finding
from ..redis.settings import SCHEMES as REDIS
from ..redis.settings import Deployment, Settings, parse
from ..transport.unfit import Unfit
from ..url import shown
from .clocks import Clocks

if TYPE_CHECKING:
    from ..._core.table import Claim
    from ..redis.connections import Connections
    from ..redis.servers import Server
    from .candidate import Candidate

TIMEOUT: Final = 0.25
"""Seconds that each server has for an answer, unless its URL says otherwise."""

TIDY: Final = 5.0
"""Seconds between searches for acquisitions that ended without a release."""


def open_quorum(urls: Sequence[str]) -> QuorumEngine:
    """Return the engine of several servers. Raises ``ConfigurationError`` for an invalid list."""
    require("a quorum of Redis servers", "redis")
    return QuorumEngine([_settings(url) for url in urls])


def _settings(url: str) -> Settings:
    if str(url).partition("://")[0].lower() not in REDIS:
        raise ConfigurationError(f"a quorum is made of redis:// servers, not of {shown(url)}")
    settings = parse(url)
    if settings.deployment is not Deployment.SINGLE:
        raise ConfigurationError(
            f"a quorum is made of single servers, independent of one another: {settings.name} is a"
            f" {settings.deployment.value}"
        )
    if "timeout=" not in url:
        settings = replace(settings, timeout=TIMEOUT)
    return settings if "connect_timeout=" in url else replace(settings, connect_timeout=TIMEOUT)


def _check(settings: Sequence[Settings]) -> None:
    recoveries = sorted({each.recovery.seconds for each in settings})
    if len(recoveries) > 1:
        raise ConfigurationError(
            f"the URLs of a quorum say recovery={recoveries[0]:g} and recovery={recoveries[-1]:g}: give"
            " all of them the same recovery="
        )
    addresses = [each.addresses[0] for each in settings]
    if len(addresses) < 3 or len(addresses) % 2 == 0:
        raise ConfigurationError(
            f"a quorum takes 3, 5 or another odd number of servers, not {len(addresses)}: an even"
            " one tolerates no more failures than one less"
        )
    for address in addresses:
        if addresses.count(address) > 1:
            raise ConfigurationError(
                f"{address} is named more than once: a quorum takes servers that fail independently,"
                " not several databases of one"
            )


class QuorumEngine(Engine):
    """The leases of a majority, as this process sees them."""

    scope = "cluster"
    limits = "exclusive"

    def __init__(self, settings: Sequence[Settings]) -> None:
        _check(settings)
        self.recovery = settings[0].recovery
        self._settings = [replace(each, recovery=self.recovery) for each in settings]
        self.name = f"quorum of {', '.join(each.name for each in settings)}"
        self.order = sorted(range(len(settings)), key=lambda number: settings[number].name)
        """The servers in the same order in all programs, in whichever order their URLs are listed."""
        self.names = [each.name for each in settings]
        self.clocks = Clocks(self.names)
        self._tidy_at = 0.0
        self._majority = len(settings) // 2 + 1
        self._runs: dict[int, str] = {}
        self.after_fork()
        heed_forks(self)

    def after_fork(self) -> None:
        """Begin with nothing open. What is known of the servers' clocks stays."""
        from ..redis.asking import Health

        self.switchboard = Switchboard()
        self.candidates: dict[str, Candidate] = {}
        self._connections = [self._connected(*each) for each in enumerate(self._settings)]
        self.health: Health[int] = Health(self._knock)

    def connect(self, runtime: Runtime) -> Store:
        from .at_once import InTasks, in_this_thread
        from .store import QuorumStore

        stores = [
            each.store(suspends=runtime.suspends, two_phase=True, renews=runtime.renews)
            for each in self._connections
        ]
        return QuorumStore(self, runtime, stores, InTasks() if runtime.suspends else in_this_thread)

    def candidate(self, claim: Claim, now: float) -> Candidate:
        """What is known of an acquisition, from its first question on.

        Those that ended without a release, as leases do that nobody renews, are forgotten by and by.
        """
        from .candidate import Candidate

        if now >= self._tidy_at:
            self._tidy_at = now + TIDY
            self._forget_ended(now)
        if claim.owner not in self.candidates:
            self.candidates[claim.owner] = Candidate(claim)
        self.candidates[claim.owner].asked_for(claim.ttl, now)
        return self.candidates[claim.owner]

    def ring(self, server: int, owner: str, message: Message) -> None:
        """Record that one server has handed over, and notify the waiter of what that amounts to."""
        if candidate := self.candidates.get(owner):
            self.switchboard.ring(owner, candidate.rung(server, message, majority=self._majority))

    def forget(self, owner: str) -> None:
        """Drop the candidate of an acquisition that is over."""
        self.candidates.pop(owner, None)

    def forget_later(self, owner: str, now: float) -> None:
        """Drop a candidate, at the latest, when the silent servers have forgotten it."""
        if candidate := self.candidates.get(owner):
            candidate.forgotten_at = min(candidate.forgotten_at, now + candidate.void)
        self._forget_ended(now)

    def _forget_ended(self, now: float) -> None:
        for each, known in tuple(self.candidates.items()):
            if known.forgotten_at <= now:
                self.forget(each)

    def diagnose(self) -> Iterable[Finding]:
        """Return what there is to know of the servers, and of their majority."""
        from .diagnosis import diagnose

        return diagnose(zip(self._connections, self._settings, strict=True))

    def close(self) -> None:
        """End all connections. Callers that still wait here are notified."""
        self.health.close()
        for each in self._connections:
            each.close()
        self.switchboard.ring_all(Ask())

    def _knock(self, number: int) -> None:
        """Ask a server that is down for a sign of life."""
        from ..redis.asking import asked, opened

        (address,) = self._settings[number].addresses
        with opened(self._connections[number].connection(address)) as connection:
            asked(connection, "PING")

    def _connected(self, number: int, settings: Settings) -> Connections:
        from ..redis.connections import Connections

        return Connections(settings, _Board(self, number), admit=partial(self._admit, number))

    def _admit(self, number: int, server: Server) -> None:
        """Reject a server that is another one of the list, under another name."""
        others = [run for each, run in self._runs.items() if each != number]
        if server.run in others:
            raise Unfit(
                "it is the same server as another of the quorum: name servers that fail"
                " independently"
            )
        self._runs[number] = server.run


class _Board(Switchboard):
    """The switchboard that one of the servers rings."""

    def __init__(self, engine: QuorumEngine, server: int) -> None:
        super().__init__()
        self._engine = engine
        self._server = server

    def ring(self, owner: str, message: Message) -> None:
        self._engine.ring(self._server, owner, message)

    def ring_all(self, message: Message) -> None:
        self._engine.switchboard.ring_all(message)
