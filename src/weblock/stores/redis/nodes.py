"""Where the servers are: one, the master that Sentinels name, or the masters of a cluster.

Finding out blocks; asyncio does it in a thread.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, Protocol

import redis
from redis import exceptions
from redis.crc import key_slot

from .calls import Call, Layout, micros
from .scripts import BEGIN
from .servers import Unfit, examine
from .settings import Address, Deployment, Settings

Connect = Callable[[Address], redis.Connection]

ASK_EVERY: Final = 0.5
"""Seconds after which the Sentinels are asked again who is the master."""

SILENT_FOR: Final = 10.0
"""Seconds for which a Sentinel that did not answer is left alone."""


class Nodes(Protocol):
    """The servers of one deployment."""

    peers: str
    """The runs of all masters that live, for those that are handed keys by another."""

    @property
    def stale(self) -> bool:
        """Whether ``refresh`` must be called before ``address_of``."""

    def refresh(self) -> None:
        """Finds out where the servers are. Raises redis-py's errors, or ``Unfit``."""

    def address_of(self, bucket: int) -> Address: ...

    def doubt(self) -> None:
        """Has the next one find out anew, after a server failed or sent us away."""

    def abandon(self) -> None:
        """Starts anew in a forked child."""


def nodes_of(settings: Settings, layout: Layout, connect: Connect, ask: Connect) -> Nodes:
    """``connect`` makes a connection for commands, ``ask`` one to a Sentinel."""
    match settings.deployment:
        case Deployment.SINGLE:
            return OneNode(settings.addresses[0])
        case Deployment.SENTINEL:
            return SentinelNodes(settings, ask)
        case Deployment.CLUSTER:
            return ClusterNodes(settings, layout, connect)


class OneNode:
    """One server, at an address that does not change."""

    peers = ""
    stale = False

    def __init__(self, address: Address) -> None:
        self._address = address

    def refresh(self) -> None:
        """There is nothing to find out."""

    def address_of(self, bucket: int) -> Address:
        return self._address

    def doubt(self) -> None:
        """There is no other."""

    def abandon(self) -> None:
        """There is nothing to start."""


class SentinelNodes:
    """The master that the Sentinels name; of several, that of the latest failover.

    A master that was replaced by hand goes on serving for seconds, until its Sentinels tell it. So
    they are asked again and again, by one of those who want to lock; the new master waits for them
    (``SWITCH`` in ``prelude.lua``).
    """

    peers = ""

    def __init__(self, settings: Settings, ask: Connect) -> None:
        self._settings = settings
        self._ask = ask
        self._guard = threading.Lock()
        self._master: Address | None = None
        self._ask_at = 0.0
        self._silent_until: dict[Address, float] = {}

    @property
    def stale(self) -> bool:
        return time.monotonic() >= self._ask_at

    def refresh(self) -> None:
        with self._guard:
            if not self.stale:
                return
            found = [each for each in map(self._named_by, self._settings.addresses) if each]
            if found:
                self._master = max(found)[1]
            elif self._master is None:
                self._silent_until.clear()
                raise Unfit(
                    f"no Sentinel of {self._settings.name} answers and knows a master called"
                    f" {self._settings.service!r}"
                )
            self._ask_at = time.monotonic() + ASK_EVERY

    def address_of(self, bucket: int) -> Address:
        assert self._master is not None
        return self._master

    def doubt(self) -> None:
        self._ask_at = 0.0

    def abandon(self) -> None:
        self._guard = threading.Lock()
        self._ask_at = 0.0

    def _named_by(self, sentinel: Address) -> tuple[int, Address] | None:
        """The master, and the number of the failover that made it one."""
        if time.monotonic() < self._silent_until.get(sentinel, 0.0):
            return None
        try:
            with opened(self._ask(sentinel)) as connection:
                reply = asked(connection, "SENTINEL", "MASTER", self._settings.service)
        except exceptions.ResponseError:
            return None  # It knows no master of that name.
        except exceptions.RedisError:
            self._silent_until[sentinel] = time.monotonic() + SILENT_FOR
            return None
        facts = {
            key.decode(): value.decode() for key, value in zip(reply[::2], reply[1::2], strict=True)
        }
        return int(facts["config-epoch"]), Address(facts["ip"], int(facts["port"]))


class ClusterNodes:
    """The masters of a cluster, by the buckets that live on them.

    A server that has become a master here since we last looked has its epochs begun at once, so
    that those who lock there for the first time later need not wait for them.
    """

    def __init__(self, settings: Settings, layout: Layout, connect: Connect) -> None:
        self.peers = ""
        self.stale = True
        self._settings = settings
        self._layout = layout
        self._connect = connect
        self._guard = threading.Lock()
        self._seeds = list(settings.addresses)
        self._homes: dict[int, Address] = {}
        self._begun: set[tuple[int, str]] = set()
        self._slots = {
            bucket: key_slot(layout.tag(bucket).encode()) for bucket in range(layout.buckets)
        }

    def refresh(self) -> None:
        with self._guard:
            if not self.stale:
                return
            homes = self._read_map()
            masters = set(homes.values())
            runs = {master: self._run_of(master) for master in masters}
            self.peers = ",".join(run for run in runs.values() if run)
            for master in masters:
                self._begin(master, runs[master], [b for b in homes if homes[b] == master])
            self._seeds = [*masters, *(s for s in self._settings.addresses if s not in masters)]
            self._homes, self.stale = homes, False

    def address_of(self, bucket: int) -> Address:
        try:
            return self._homes[bucket]
        except KeyError:
            raise Unfit("a part of the cluster has no master at the moment") from None

    def doubt(self) -> None:
        self.stale = True

    def abandon(self) -> None:
        self.stale = True
        self._guard = threading.Lock()

    def _read_map(self) -> dict[int, Address]:
        failure: Exception | None = None
        for seed in self._seeds:
            try:
                with opened(self._connect(seed)) as connection:
                    ranges = asked(connection, "CLUSTER", "SLOTS")
            except exceptions.RedisError as error:
                failure = error
                continue
            if homes := self._homes_in(ranges, seed):
                return homes
            failure = Unfit(f"{seed} knows no masters of its cluster")
        raise failure or Unfit("no node of the cluster is named")

    def _homes_in(self, ranges: Sequence[Any], seed: Address) -> dict[int, Address]:
        homes: dict[int, Address] = {}
        for first, last, master, *_replicas in ranges:
            address = Address(master[0].decode() if master[0] else seed.host, master[1])
            homes |= {b: address for b, slot in self._slots.items() if first <= slot <= last}
        return homes

    def _run_of(self, master: Address) -> str | None:
        """``None`` for one that does not answer: those who need it will find out."""
        try:
            with opened(self._connect(master)) as connection:
                return examine(asked(connection, "INFO"), self._settings).run
        except (exceptions.RedisError, Unfit):
            return None

    def _begin(self, master: Address, run: str | None, buckets: Sequence[int]) -> None:
        new = [bucket for bucket in buckets if run and (bucket, run) not in self._begun]
        if not run or not new:
            return
        longest = micros(self._settings.recovery)
        try:
            with opened(self._connect(master)) as connection:
                for bucket in new:
                    call = Call(BEGIN, bucket, self._layout.of_bucket(bucket))
                    connection.send_packed_command([call.whole(run, longest, self.peers)])
                    connection.read_response()
                    self._begun.add((bucket, run))
        except exceptions.RedisError:
            pass  # The first who locks there begins it.


@contextmanager
def opened(connection: redis.Connection) -> Iterator[redis.Connection]:
    """A connection for a question or two."""
    try:
        connection.connect()
        yield connection
    finally:
        connection.disconnect()


def asked(connection: redis.Connection, *command: str) -> Any:
    """The reply to one command."""
    connection.send_command(*command)
    return connection.read_response(disable_decoding=True)
