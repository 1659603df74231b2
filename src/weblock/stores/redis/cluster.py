"""The masters of a cluster, by the buckets that live on them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from redis import exceptions
from redis.crc import key_slot

from ..transport.unfit import Unfit
from .asking import Connect, Health, Lookup, Poll, asked, first_answer, opened
from .calls import Call, Layout
from .scripts import BEGIN
from .servers import Server, examine
from .settings import Address, Settings

ASK_EVERY: Final = 5.0
"""Seconds after which the map is read again, for callers that no error informs."""

HEDGE: Final = 0.1
"""Seconds after which a second node is asked for the map."""

PATIENCE: Final = 0.5
"""Seconds that masters have to identify themselves."""

HUNG: Final = "it did not answer, and nobody waits for it until it does"


class ClusterNodes:
    """The masters of a cluster.

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
        self._seeds = list(settings.addresses)
        self._homes: dict[int, Address] = {}
        self._health: Health[Address] = Health(self._knock)
        self._hung = self._health.failures
        self._begun: set[tuple[int, str]] = set()
        self._slots = {
            bucket: key_slot(layout.tag(bucket).encode()) for bucket in range(layout.buckets)
        }
        self._lookup = Lookup(self._look, every=ASK_EVERY, stale=float("inf"))
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
        homes = self._read_map()
        masters = sorted(set(homes.values()))
        seen = self._examined([each for each in masters if each not in self._hung])
        self._begin(homes, {each: seen[each].incarnation for each in seen})
        self._seeds = [*masters, *(s for s in self._settings.addresses if s not in masters)]
        before, self._homes = self._homes, homes
        changed = before != homes
        if changed and before:
            self._on_change()
        return changed

    def _read_map(self) -> dict[int, Address]:
        seeds = sorted(self._seeds, key=lambda seed: seed in self._hung)
        homes: dict[int, Address] = first_answer(Poll(self._map_of), seeds, HEDGE)
        return homes

    def _map_of(self, seed: Address) -> dict[int, Address]:
        with opened(self._connect(seed)) as connection:
            ranges = asked(connection, "CLUSTER", "SLOTS")
        if homes := self._homes_in(ranges, seed):
            return homes
        raise Unfit(f"{seed} knows no masters of its cluster")

    def _homes_in(self, ranges: Sequence[Any], seed: Address) -> dict[int, Address]:
        homes: dict[int, Address] = {}
        for first, last, master, *_replicas in ranges:
            address = Address(master[0].decode() if master[0] else seed.host, master[1])
            homes |= {b: address for b, slot in self._slots.items() if first <= slot <= last}
        return homes

    def _examined(self, masters: Sequence[Address]) -> dict[Address, Server]:
        """Return what the servers say that answer soon: callers that need the others will see."""
        poll = Poll(self._examine)
        poll.ask_all(masters)
        poll.wait(lambda: False, PATIENCE)
        return {each: seen for each, seen in poll.heard.items() if isinstance(seen, Server)}

    def _examine(self, master: Address) -> Server:
        with opened(self._connect(master)) as connection:
            return examine(asked(connection, "INFO"), self._settings)

    def _begin(self, homes: dict[int, Address], runs: dict[Address, str]) -> None:
        new: dict[Address, list[int]] = {}
        for bucket, master in homes.items():
            if master in runs and (bucket, runs[master]) not in self._begun:
                new.setdefault(master, []).append(bucket)
        poll = Poll(lambda master: self._begin_on(master, runs[master], new[master]))
        poll.ask_all(new)
        poll.wait(lambda: False, PATIENCE)

    def _begin_on(self, master: Address, run: str, buckets: Sequence[int]) -> None:
        """Begin the epochs of one master. The first caller begins those that could not be begun."""
        longest = self._settings.recovery.micros
        with opened(self._connect(master)) as connection:
            for bucket in buckets:
                call = Call(BEGIN, bucket, self._layout.of_bucket(bucket))
                connection.send_packed_command(
                    [call.whole(run, longest, self._settings.deployment.value)]
                )
                try:
                    connection.read_response()
                except exceptions.ResponseError:
                    continue  # Its slot is half-moved, say, which the other buckets need not wait for.
                self._begun.add((bucket, run))
