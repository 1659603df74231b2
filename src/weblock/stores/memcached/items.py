"""Items, read with ``gets`` and replaced with ``cas`` or ``add``. All functions block."""

from __future__ import annotations

import math
import time
import zlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from ..._core.ports import Runtime
from ..._core.table import KeyState, Moment, Step
from ...errors import EngineRecovering, EngineUnavailable
from ..cells import Done, Heartbeats, Transition
from .connections import Client, Value
from .format import Format, Reading
from .server import add_unless_lost, heed_mark, items_on, leave_mark

if TYPE_CHECKING:
    from . import MemcachedEngine

REMEMBERED: Final = 600.0
"""Seconds for which an item outlives what is in it, so that the next fence is larger for sure."""

LONGEST_EXPIRY: Final = 30 * 86400
"""The longest expiry in seconds: memcached takes more for a date."""

FIRST_BACKOFF: Final = 0.002
LONGEST_BACKOFF: Final = 0.25
"""Seconds before an item is read again, at most, after another caller has replaced it."""

PORTION: Final = 500
"""How many items are fetched in one request."""


class Standing(NamedTuple):
    """What was read of the server together with items."""

    mark: bytes
    quiet: bool
    """Whether it must grant nothing now."""


class Items:
    """The items of a server, for one runtime. All methods raise ``EngineUnavailable``."""

    def __init__(self, engine: MemcachedEngine, runtime: Runtime) -> None:
        self._settings = engine.settings
        self._format = Format(engine.settings, engine.observer)
        self._names = self._format.names
        self._connections = engine.connections
        self._observer = engine.observer
        self._renewing = engine.renewing
        self._heeded = b""
        """The mark of the server that was heeded last."""
        self._runtime = runtime

    def read(self, keys: Sequence[str]) -> dict[str, Reading]:
        """Return the contents of several items; unreadable ones are left out."""
        with self._connections.one() as client:
            return self._read(client, keys)[0]

    def update(self, key: str, transition: Transition, patience: float) -> Done:
        """Replace an item; no other caller changes it in between."""
        give_up_at = self._runtime.now() + patience
        renews, backoff = isinstance(transition, Heartbeats), FIRST_BACKOFF
        with self._connections.one() as client:
            while True:
                if not renews:
                    for pause in self._renewing.let_pass(key, self._runtime, patience):
                        time.sleep(pause)
                readings, standing = self._read(client, (key,))
                if done := self._replace(client, readings[key], transition, standing):
                    return done
                if self._runtime.now() >= give_up_at:
                    raise EngineUnavailable(
                        self._settings.name, "too many callers change the same key at once"
                    )
                time.sleep(backoff * self._runtime.jitter())
                if not renews:  # The keepers of other processes come first, too.
                    backoff = min(LONGEST_BACKOFF, 2 * backoff)

    def update_many(
        self, changes: Mapping[str, Transition], patience: float
    ) -> dict[str, Done | EngineUnavailable]:
        """Replace several items: all are read at once, and again if another caller was quicker."""
        outcomes: dict[str, Done | EngineUnavailable] = {}
        keys = list(changes)
        for start in range(0, len(keys), PORTION):
            outcomes |= self._update_portion(keys[start : start + PORTION], changes)
        for key in changes.keys() - outcomes.keys():
            try:
                with self._renewing.first(key):
                    outcomes[key] = self.update(key, changes[key], patience)
            except EngineUnavailable as error:
                outcomes[key] = error
        return outcomes

    def keys(self, prefix: str, patience: float) -> list[str]:
        """Return the keys that have an item."""
        keys: list[str] = []
        with self._connections.one() as client:
            there = items_on(client, self._settings, patience)
            items = [each for each in there if each.startswith(self._names.locks)]
            for start in range(0, len(items), PORTION):
                found = client.get_many(items[start : start + PORTION])
                keys += [self._format.fields(value)[0] for value in found.values()]
        return [key for key in keys if key.startswith(prefix)]

    def put_note(self, key: str, keep: float | None) -> None:
        note = self._names.of_note(key)
        with self._connections.one() as client:
            if keep == 0:
                client.delete(note, noreply=False)
            else:
                client.set(note, b"1", 0 if keep is None else _expiry(keep + 1), noreply=False)

    def has_note(self, key: str) -> bool:
        with self._connections.one() as client:
            return bool(client.get_many([self._names.of_note(key)]))

    def _update_portion(
        self, keys: Sequence[str], changes: Mapping[str, Transition]
    ) -> dict[str, Done | EngineUnavailable]:
        outcomes: dict[str, Done | EngineUnavailable] = {}
        with self._connections.one() as client:
            readings, standing = self._read(client, keys)
            for key, reading in readings.items():
                try:
                    done = self._replace(client, reading, changes[key], standing)
                except EngineUnavailable as error:
                    outcomes[key] = error
                else:
                    outcomes |= {key: done} if done else {}
        return outcomes

    def _read(self, client: Client, keys: Sequence[str]) -> tuple[dict[str, Reading], Standing]:
        """Return the contents of items, and what was read of the server with them.

        Of many, those that cannot be read are left out.
        """
        names = self._names
        items = [names.of_key(key) for key in keys]
        while True:
            found = client.gets_many([*items, names.mark, names.quiet])
            now = self._runtime.now()
            if names.mark not in found:
                leave_mark(client, names)
            elif (mark := found[names.mark][0]) == self._heeded:
                break
            else:
                heed_mark(client, names, mark, self._settings.recovery)
                self._heeded = mark
        readings: dict[str, Reading] = {}
        for key, item in zip(keys, items, strict=True):
            try:
                readings[key] = self._reading(key, found.get(item), now, mark)
            except EngineUnavailable:
                if len(keys) == 1:
                    raise
        return readings, Standing(mark, names.quiet in found)

    def _reading(
        self, key: str, found: tuple[Value, bytes] | None, now: float, mark: bytes
    ) -> Reading:
        """Return the contents of an item, without what was granted across a loss of the server's data.

        A caller whose answer was lost would find its lease there, and believe in it.
        """
        reading = self._format.read(key, found, now)
        era = self._era(mark)
        if found and era and found[0].flags not in (0, era):
            reading.state = KeyState(reading.state.fence)
        return reading

    def _era(self, mark: bytes) -> int:
        """Return what items say of the mark that their writer had read; 0 where that is not said.

        Where items may be evicted, the mark may go and they may stay. Earlier versions of weblock
        never say it.
        """
        return 0 if self._settings.allow_eviction else zlib.crc32(mark) or 1

    def _replace(
        self, client: Client, reading: Reading, transition: Transition, standing: Standing
    ) -> Done | None:
        """Write the result of a transition; return ``None`` if it must be done again.

        Another caller was quicker then, or the server has lost its data since the item was read.
        """
        floor = int(time.time() * 1_000_000)
        step = transition(reading.state, Moment(reading.now, floor))
        if step.state == reading.state:
            return Done(step, reading.now)
        if standing.quiet and not self._may_grant(reading.state, step):
            raise EngineRecovering(
                self._settings.name,
                "it was started or flushed just now",
                retry_after=self._settings.recovery,
            )
        item = self._names.of_key(reading.key)
        value = self._format.write(reading, step.state)
        expiry = _expiry(_use_of(step.state, reading.now))
        era = self._era(standing.mark)
        if reading.token is None:
            at = self._names.mark
            done = add_unless_lost(client, item, value, expiry, era, at=at, mark=standing.mark)
        else:  # A server that has lost the item has no token for it, either.
            done = bool(client.cas(item, value, reading.token, expiry, flags=era))
        return Done(step, reading.now) if done else None

    def _may_grant(self, before: KeyState, step: Step) -> bool:
        """Whether a transition is allowed while the server is to grant nothing.

        ``recovery=off`` is said for the callers of this process, and for nobody else.
        """
        had = {grant.fence for grant in before.grants}
        new = [grant for grant in step.state.grants if grant.fence not in had]
        ours = all(grant.claim.process == self._observer.process for grant in new)
        return not new or (ours and not self._settings.recovery)


def _expiry(seconds: float) -> int:
    """Return the expiry that makes memcached keep an item for so long, or up to a second longer."""
    return math.ceil(seconds if seconds <= LONGEST_EXPIRY else time.time() + seconds)


def _use_of(state: KeyState, now: float) -> float:
    """Return the seconds after which nothing in it is needed."""
    ends = [each.until for each in state.queue]
    ends += [each.until for each in state.voided]
    ends += [grant.until for grant in state.grants]
    return max(ends, default=now) - now + REMEMBERED
