"""Where the servers are: one, the master that Sentinels name, or the masters of a cluster.

Finding out blocks; asyncio does it in a thread.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from redis import exceptions
from redis.crc import key_slot

from ..transport.failures import Unfit
from .asking import Connect, Health, Lookup, Poll, asked, opened
from .calls import Call, Layout
from .scripts import BEGIN
from .servers import examine
from .settings import Address, Settings

SENTINELS_ASKED_EVERY: Final = 0.5
"""Seconds after which the Sentinels are asked again who is the master."""

STALE: Final = 1.0
"""Seconds after which Sentinels' answers are not used before they are asked again."""

GRACE: Final = 0.2
"""Seconds that the other Sentinels have to answer when one has."""

MAP_READ_EVERY: Final = 5.0
"""Seconds after which a cluster's map is read again, for callers that no error informs."""

HEDGE: Final = 0.1
"""Seconds after which a second node is asked for the map."""

PATIENCE: Final = 0.5
"""Seconds that masters have to begin their epochs."""

HUNG: Final = "it did not answer, and callers do not wait for it until it does"


class Nodes:
    """The servers of one deployment: here, a single one whose address does not change."""

    ready: Callable[[], bool]
    """Returns whether ``address_of`` may be called; if not, ``refresh`` must be called first."""
    refresh: Callable[[], None]
    """Finds out where the servers are. Raises redis-py's errors, or ``Unfit``."""

    address_of: Callable[[int], Address]
    """Returns where a bucket's keys are. Raises redis-py's errors, or ``Unfit``, if there is no server."""

    def __init__(self, address: Address) -> None:
        self.ready, self.refresh = partial(bool, address), lambda: None
        self.address_of = {0: address}.__getitem__

    def masters(self) -> list[Address]:
        """Return all servers. Raises what ``address_of`` does, if one is missing."""
        return [self.address_of(0)]

    def buckets_at(self, address: Address) -> list[int]:
        """Return the buckets that live on a server."""
        return [0]

    def listen_at(self) -> Address:
        """Return a server that passes on the notifications of all servers."""
        return self.address_of(0)

    def serves(self, address: Address) -> bool:
        """Return whether a server is one of them, as far as known, and answers."""
        return True

    def moved(self, bucket: int, address: Address) -> None:
        """Record a server's answer that another server has a bucket's keys."""

    def doubt(self, address: Address | None = None, error: Exception | None = None) -> None:
        """Make the next caller look again, after a server failed in this way."""

    def close(self) -> None:
        """End what goes on in the background."""


class SentinelNodes(Nodes):
    """The master that the Sentinels name; of several, that of the latest failover.

    A master that was replaced by hand goes on serving for seconds, until its Sentinels reconfigure
    it. So the Sentinels are asked repeatedly while locks are in use, side by side and in the
    background; the new master waits for that (``SWITCH`` in ``prelude.lua``). The last answer of a
    Sentinel counts until it gives another or no longer answers, so a late answer counts, too.
    """

    def __init__(self, settings: Settings, ask: Connect, on_change: Callable[[], object]) -> None:
        self._settings = settings
        self._ask = ask
        self._on_change = on_change
        self._guard = threading.Lock()
        self._said: dict[Address, tuple[int, Address]] = {}
        """The masters that Sentinels name, each with the number of the failover that made it one."""
        self._master: Address | None = None
        self._asking: set[Address] = set()
        self._lookup = Lookup(self._look, every=SENTINELS_ASKED_EVERY, stale=STALE)
        self.ready = self._lookup.ready
        self.refresh = self._lookup.refresh

    def address_of(self, bucket: int) -> Address:
        assert self._master is not None
        return self._master

    def serves(self, address: Address) -> bool:
        return address == self._master

    def doubt(self, address: Address | None = None, error: Exception | None = None) -> None:
        self._lookup.doubt()

    def _look(self) -> bool:
        before, service = self._master, self._settings.service
        sentinels = self._settings.addresses
        poll = Poll(self._master_named_by)
        poll.ask(each for each in sentinels if each not in self._asking)
        poll.wait(GRACE if before else None, enough=lambda: bool(poll.answers))
        # A Sentinel that has just heard of a failover may answer last. A silent minority is not waited for.
        poll.wait(GRACE, enough=lambda: len(poll.answers) > len(sentinels) / 2)
        if self._master is None:
            if poll.answers:
                raise Unfit(
                    f"the Sentinels know no master called {service!r}: write the name of one into"
                    " the URL, as their command SENTINEL MASTERS lists them"
                )
            raise Unfit(
                f"no Sentinel of {self._settings.name} answers, so the master {service!r} is"
                " unknown"
            )
        return before != self._master

    def _master_named_by(self, sentinel: Address) -> bool:
        """Ask one Sentinel, and return whether it knows a master of that name."""
        named = None
        self._asking.add(sentinel)
        try:
            with opened(self._ask(sentinel)) as connection:
                reply = asked(connection, "SENTINEL", "MASTER", self._settings.service)
            facts = {
                key.decode(): value.decode()
                for key, value in zip(reply[::2], reply[1::2], strict=True)
            }
            named = int(facts["config-epoch"]), Address(facts["ip"], int(facts["port"]))
        except exceptions.ResponseError:
            pass  # It knows none.
        finally:
            self._asking.discard(sentinel)
            with self._guard:
                self._said.pop(sentinel, None)
                if named:
                    self._said[sentinel] = named
                before = self._master
                if self._said:
                    self._master = max(list(self._said.values()))[1]
                changed = before is not None and before != self._master
            if changed:
                self._on_change()
        return named is not None


class ClusterNodes(Nodes):
    """The masters of a cluster, by the buckets that live on them.

    The epochs of a server that has become a master since the last look are begun at once, so that
    callers that lock there for the first time need not wait for them.

    Callers do not use a master that did not answer in time; a background thread tries it, so that
    it delays no caller that needs only the others.
    """

    def __init__(
        self, settings: Settings, layout: Layout, connect: Connect, on_change: Callable[[], object]
    ) -> None:
        self._settings = settings
        self._layout = layout
        self._connect = connect
        self._on_change = on_change
        self._homes: Mapping[int, Address] = {}
        self._health: Health[Address] = Health(self._knock)
        self._hung = self._health.failures
        self._begun: set[tuple[int, str]] = set()
        self._slots = {
            bucket: key_slot(layout.tag(bucket).encode()) for bucket in range(layout.buckets)
        }
        self._lookup = Lookup(self._look, every=MAP_READ_EVERY, stale=float("inf"))
        self.ready = self._lookup.ready
        self.refresh = self._lookup.refresh

    def address_of(self, bucket: int) -> Address:
        try:
            address = self._homes[bucket]
        except KeyError:
            raise Unfit("a part of the cluster has no master at the moment") from None
        if address in self._hung:
            raise exceptions.TimeoutError(HUNG)
        return address

    def masters(self) -> list[Address]:
        return sorted(set(map(self.address_of, self._slots)))

    def buckets_at(self, address: Address) -> list[int]:
        return [bucket for bucket, home in self._homes.items() if home == address]

    def listen_at(self) -> Address:
        masters = sorted(set(self._homes.values()))
        return next((each for each in masters if each not in self._hung), masters[0])

    def serves(self, address: Address) -> bool:
        return address in self._homes.values() and address not in self._hung

    def moved(self, bucket: int, address: Address) -> None:
        self._homes = {**self._homes, bucket: address}
        self._lookup.doubt()

    def doubt(self, address: Address | None = None, error: Exception | None = None) -> None:
        self._lookup.doubt()
        if address and isinstance(error, exceptions.TimeoutError) and address not in self._hung:
            self._health.failed(address, error, sent=time.monotonic())
            if address in self._hung:
                self._on_change()

    def close(self) -> None:
        self._health.close()

    def _knock(self, address: Address) -> None:
        """Raise redis-py's ``TimeoutError`` if a master still hangs."""
        if address not in self._homes.values():
            return
        try:
            with opened(self._connect(address)) as connection:
                asked(connection, "PING")
        except exceptions.TimeoutError:
            raise
        except (exceptions.RedisError, OSError):
            pass  # Callers that need it will find out, and the others need not wait.

    def _look(self) -> bool:
        before = self._homes
        known = dict.fromkeys((*sorted(set(before.values())), *self._settings.addresses))
        nodes = sorted(known, key=lambda node: node in self._hung)
        homes: dict[int, Address] = Poll(self._map_of).first(nodes, HEDGE)
        poll = Poll(partial(self._begin, homes))
        poll.ask(sorted(set(homes.values()) - self._hung.keys()))
        poll.wait(PATIENCE)
        self._homes = homes
        if before and before != homes:
            self._on_change()
        return before != homes

    def _map_of(self, node: Address) -> dict[int, Address]:
        with opened(self._connect(node)) as connection:
            ranges = asked(connection, "CLUSTER", "SLOTS")
        homes: dict[int, Address] = {}
        for first, last, master, *_replicas in ranges:
            address = Address(master[0].decode() if master[0] else node.host, master[1])
            homes |= {b: address for b, slot in self._slots.items() if first <= slot <= last}
        if not homes:
            raise Unfit(f"{node} knows no masters of its cluster")
        return homes

    def _begin(self, homes: Mapping[int, Address], master: Address) -> None:
        """Begin the epochs of one master. The first caller begins those that could not be begun."""
        longest, where = self._settings.recovery.micros, self._settings.deployment.value
        with opened(self._connect(master)) as connection:
            run = examine(asked(connection, "INFO"), self._settings)
            for bucket, home in homes.items():
                if home != master or (bucket, run) in self._begun:
                    continue
                call = Call(BEGIN, bucket, self._layout.of_bucket(bucket))
                connection.send_packed_command([call.command(run, longest, where, whole=True)])
                try:
                    connection.read_response()
                except exceptions.ResponseError:
                    continue  # Its slot is half-moved, say, which the other buckets need not wait for.
                self._begun.add((bucket, run))
