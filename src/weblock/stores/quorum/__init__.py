"""A list of Redis URLs: a lease counts while a majority of independent servers grants it (Redlock).

https://redis.io/docs/latest/develop/clients/patterns/distributed-locks/ has the algorithm.

1. *Acquiring.* A caller asks all servers at once. Each has ``timeout`` seconds for an answer, and
   one that is known to be down is not asked until a thread has reached it again.
2. *Validity.* If a majority grants the key, the lease lasts until the first server of the majority that
   keeps it for longest ends it, counted on the caller's monotonic clock from before the first request.
   The core deducts an allowance for drift.
3. *Fences.* The fence is the largest that a majority gave, and is written back to a majority before the
   holder gets it. Any two majorities share a server, so the next fence is larger.
4. *Split votes.* Waiters queue on every server in the order of their tickets: the servers' time at which
   they came. A caller that fewer than a majority let in stands back on those where an earlier caller
   waits, and asks again after a pause with jitter. So the first caller gets all servers.
5. *Handing over.* A release makes each server grant the key to its first waiter and notify it. If a
   majority has notified it of the same grant, the waiter holds the key. Otherwise it asks.
6. *Renewing.* A heartbeat goes to all servers. One that has lost a lease that a majority has gets it back.
7. *Releasing.* A release goes to all servers that may know of the acquisition, those that never answered
   included, and is repeated later where it was not answered. Requests that may still be on their way
   are voided with it: the servers reject them when they come. A server that releases the lease of its
   only request has had that request, so nothing is voided there.

Assumptions: a server's clock runs as fast as ours, within the drift allowance, and shows about the time of
the others, by which waiters are ordered and lost fences begin anew. A server that has lost its data,
or has restarted, grants nothing for ``recovery`` seconds, and has no vote meanwhile: all leases that it may
have forgotten have ended then.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final

from ..._core.ports import CheckAgain, Engine, Message, Runtime, Store, Switchboard
from ..._platform.forks import reset_after_fork
from ..._requirements import require
from ...errors import ConfigurationError
from ..findings import Finding, Level, problem, warning
from ..redis.settings import SCHEMES as REDIS
from ..redis.settings import Deployment, Settings, parse
from ..transport.failures import Unfit
from ..url import shown
from .acquisition import Clocks

if TYPE_CHECKING:
    from ..._core.table import Claim
    from ..redis.connections import Connections
    from .acquisition import Acquisition

TIMEOUT: Final = 0.25
"""Seconds that each server has for an answer, unless its URL says otherwise."""

TIDY: Final = 5.0
"""Seconds between searches for acquisitions that ended without a release."""


def open_quorum(urls: Sequence[str]) -> QuorumEngine:
    """Return the engine of several servers. Raises ``ConfigurationError`` for an invalid list."""
    require("a quorum of Redis servers", "redis")
    settings: list[Settings] = []
    for url in urls:
        if str(url).partition("://")[0].lower() not in REDIS:
            raise ConfigurationError(f"a quorum is made of redis:// servers, not of {shown(url)}")
        one = parse(url)
        if one.deployment is not Deployment.SINGLE:
            raise ConfigurationError(
                f"a quorum is made of single servers, independent of one another: {one.name} is a"
                f" {one.deployment.value}"
            )
        if "timeout=" not in url:
            one = replace(one, timeout=TIMEOUT)
        if "connect_timeout=" not in url:
            one = replace(one, connect_timeout=TIMEOUT)
        settings.append(one)
    recoveries = sorted({each.recovery.seconds for each in settings})
    if len(recoveries) > 1:
        raise ConfigurationError(
            f"the URLs of a quorum say recovery={recoveries[0]:g} and recovery={recoveries[-1]:g}:"
            " give all of them the same recovery="
        )
    addresses = [each.addresses[0] for each in settings]
    if len(addresses) < 3 or len(addresses) % 2 == 0:
        raise ConfigurationError(
            f"a quorum takes 3, 5 or another odd number of servers, not {len(addresses)}: an even"
            " number tolerates no more failures than one server less"
        )
    for address in addresses:
        if addresses.count(address) > 1:
            raise ConfigurationError(
                f"{address} is named more than once: a quorum needs servers that fail"
                " independently, not several databases of one server"
            )
    return QuorumEngine(settings)


class QuorumEngine(Engine):
    """The leases of a majority, as this process sees them."""

    scope = "cluster"
    limits = "exclusive"
    fails_as_one = False  # It knows of each server whether it is down, and does not ask that one.

    def __init__(self, settings: Sequence[Settings]) -> None:
        self.recovery = settings[0].recovery
        self._settings = [replace(each, recovery=self.recovery) for each in settings]
        self.names = [each.name for each in settings]
        self.name = f"quorum of {', '.join(self.names)}"
        self.order = sorted(range(len(settings)), key=self.names.__getitem__)
        """The servers in the same order in all programs, in whichever order their URLs are listed."""
        self.majority = len(settings) // 2 + 1
        self.clocks = Clocks(self.names)
        self._tidy_at = 0.0
        self._runs: dict[int, str] = {}
        self.after_fork()
        reset_after_fork(self)

    def after_fork(self) -> None:
        """Begin with nothing open. What is known of the servers' clocks stays."""
        from ..redis.asking import Health

        self.switchboard = Switchboard()
        self.acquisitions: dict[str, Acquisition] = {}
        self._connections = [self._connected(*each) for each in enumerate(self._settings)]
        self.health: Health[int] = Health(self._knock)

    def connect(self, runtime: Runtime) -> Store:
        from ..transport.sending import in_tasks, in_this_thread
        from .store import QuorumStore

        stores = [
            each.store(suspends=runtime.suspends, two_phase=True, renews=runtime.renews)
            for each in self._connections
        ]
        return QuorumStore(self, runtime, stores, in_tasks if runtime.suspends else in_this_thread)

    def acquisition(self, claim: Claim, now: float) -> Acquisition:
        """Return what is known of an acquisition, from its first question on.

        Acquisitions that ended without a release, as leases do that nobody renews, are forgotten in time.
        """
        from .acquisition import Acquisition

        if now >= self._tidy_at:
            self._tidy_at = now + TIDY
            for owner, known in list(self.acquisitions.items()):
                if known.forgotten_at <= now:
                    self.acquisitions.pop(owner, None)
        if claim.owner not in self.acquisitions:
            self.acquisitions[claim.owner] = Acquisition(claim)
        self.acquisitions[claim.owner].asked_for(claim.ttl, now)
        return self.acquisitions[claim.owner]

    def diagnose(self) -> Iterator[Finding]:
        """Yield what there is to know of the servers, and of their majority."""
        from ..redis.servers import Seen, look_at, of_clocks, of_server

        seen: list[Seen] = []
        silent: list[Finding] = []
        for connections, settings in zip(self._connections, self._settings, strict=True):
            found = look_at(connections, settings.addresses[0], settings)
            if isinstance(found, Finding):
                silent.append(found)
                continue
            seen.append(found)
            where = str(settings.addresses[0])
            yield from (each._replace(where=where) for each in of_server(found, settings))
        enough = len(seen) >= self.majority
        for each in silent:
            yield each._replace(level=Level.WARNING) if enough else each
        text = f"{len(seen)} of {len(self.names)} servers answer, and {self.majority} are needed."
        remedy = "Start the others, or find out why they do not answer."
        if silent:
            yield (warning if enough else problem)("majority", text, remedy)
        else:
            yield Finding("majority", text)
        yield from of_clocks(seen)

    def close(self) -> None:
        """End all connections. Callers that still wait here are notified."""
        self.health.close()
        for each in self._connections:
            each.close()
        self.switchboard.notify_all(CheckAgain())

    def _knock(self, number: int) -> None:
        """Ask a server that is down for a sign of life."""
        from ..redis.asking import asked, opened

        (address,) = self._settings[number].addresses
        with opened(self._connections[number].connection(address)) as connection:
            asked(connection, "PING")

    def _connected(self, number: int, settings: Settings) -> Connections:
        from ..redis.connections import Connections

        return Connections(settings, Board(self, number), admit=partial(self._admit, number))

    def _admit(self, number: int, run: str) -> None:
        """Reject a server that is another one of the list, under another name.

        ``run`` is the id of a process, and an id of replication, which changes while it runs.
        """
        run = run.partition(":")[0]
        if run in [other for each, other in list(self._runs.items()) if each != number]:
            raise Unfit(
                "it is the same server as another of the quorum: name servers that fail"
                " independently"
            )
        self._runs[number] = run


class Board(Switchboard):
    """The switchboard on which one of the servers notifies waiters."""

    def __init__(self, engine: QuorumEngine, server: int) -> None:
        super().__init__()
        self._engine = engine
        self._server = server

    def notify(self, owner: str, message: Message) -> None:
        """Notify a waiter of what the notifications of all servers amount to."""
        if acquisition := self._engine.acquisitions.get(owner):
            message = acquisition.notified(self._server, message, majority=self._engine.majority)
            self._engine.switchboard.notify(owner, message)

    def notify_all(self, message: Message) -> None:
        self._engine.switchboard.notify_all(message)
