"""Items, read with ``gets`` and replaced with ``cas`` or ``add``, and what the times in them mean.

Memcached has no clock that a lease could rely on, so there is no clock that all share. The writer
of a lease says how long it is to last. Its holder counts that from before the write, and every
other process from when it first saw it, each on a monotonic clock of its own: so the holder's
deadline comes first, whatever the machines' clocks say.

An item has four parts, with tabs between them: the server's generation when it was written, the key, the
writer and the time of each entry of the state, and the state (``codec``) with each entry's times by
the clock of its writer. A process that replaces an item leaves the entries of others as they are.
"""

from __future__ import annotations

import hashlib
import json
import math
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from ..._core.ports import Recovery, Runtime
from ..._core.table import Grant, KeyState, Moment, Place, Voided
from ...errors import ConfigurationError, EngineRecovering, EngineUnavailable
from ..cells import PORTION, TOO_MANY, Done, Heartbeats, RacingCells, Transition
from ..codec import from_bytes, to_bytes
from ..transport.failures import Backoff
from .server import Client, begin_generation, begin_recovery, items_on

if TYPE_CHECKING:
    from .engine import MemcachedEngine

REMEMBERED: Final = 600.0
"""Seconds for which an item outlives what is in it, so that the next fence is larger for sure."""

LONGEST_EXPIRY: Final = 30 * 86400
"""The longest expiry in seconds: memcached takes more for a date."""

FIRST_BACKOFF: Final = 0.002
LONGEST_BACKOFF: Final = 0.25
"""Seconds before an item is read again, after another caller has replaced it."""

KNOWN: Final = 10_000
"""How many items are remembered with the time when their entries were first seen."""

R = TypeVar("R")

Entry = Grant | Place | Voided
Outcome = Done | EngineUnavailable | ConfigurationError


class Stamp(NamedTuple):
    """An entry as it is in an item, by the clock of its writer, and when it was written.

    A lease is recognized by the stamp of its last renewal, which others copy as it is.
    """

    entry: Entry
    writer: str
    written: float


class Observer:
    """This process: as a writer, and as an observer of what others write."""

    def __init__(self) -> None:
        self.process = secrets.token_hex(8)
        # A finalizer that releases a lease may run inside, and then waits for nobody.
        self._guard = threading.RLock()
        self._by_item: OrderedDict[str, dict[Stamp, float]] = OrderedDict()

    def first_seen(self, item: str, stamps: Iterable[Stamp], now: float) -> Mapping[Stamp, float]:
        """When each stamp of others in an item was first seen: before now, or now. Others are forgotten.

        Whatever is forgotten too early is counted anew, which only makes us wait for longer.
        """
        theirs = [stamp for stamp in stamps if stamp.writer != self.process]
        with self._guard:
            known = self._by_item.pop(item, {})
            seen = {stamp: known.get(stamp, now) for stamp in theirs}
            if seen:
                self._by_item[item] = seen
            while len(self._by_item) > KNOWN:
                self._by_item.popitem(last=False)
        return seen


class Item(NamedTuple):
    """An item as it was read."""

    name: str
    state: KeyState
    """Its state, by our own clock."""
    token: bytes | None = None
    """What ``cas`` needs; there is no such item without it."""
    stamps: Mapping[Entry, Stamp] = MappingProxyType({})
    """By the entries of the state."""


class Reading(NamedTuple):
    """Several items that were read at once, and what was read of the server with them."""

    now: float
    generation: bytes
    """It is another after the server has lost its data."""
    recovering: bool
    """Whether the server is to grant nothing now."""
    items: dict[str, Item | ConfigurationError]
    """By their keys."""


class ItemCells(RacingCells):
    """The items of a server, as the cells that ``CellStore`` works on, for one runtime."""

    def __init__(self, engine: MemcachedEngine, runtime: Runtime) -> None:
        super().__init__(runtime, engine.renewing)
        self._engine = engine
        self._settings = engine.settings
        # No prefix has a slash in it, so none can reach the items of another.
        kinds = ("lock/", "done/", "generation", "recovering")
        names = (f"{engine.settings.prefix}/{kind}" for kind in kinds)
        self._locks, self._done, self._generation, self._recovering = names
        self._recovered = b"", 0.0
        """The generation of the server whose recovery has begun, and how long that is."""

    async def update(self, key: str, transition: Transition, *, patience: float) -> Done:
        runtime = self.runtime
        # The keepers of other processes come first, too.
        longest = FIRST_BACKOFF if isinstance(transition, Heartbeats) else LONGEST_BACKOFF
        backoff = Backoff(FIRST_BACKOFF, longest, jitter=runtime.jitter)
        give_up_at = runtime.now() + patience
        while True:
            if key in self._renewing:
                await self._let_pass(key, transition, patience)
            outcome = (await self._ask(partial(self._change, {key: transition}))).get(key)
            if isinstance(outcome, Done):
                return outcome
            if outcome:
                raise outcome
            if runtime.now() >= give_up_at:
                raise EngineUnavailable(self._settings.name, TOO_MANY)
            await runtime.sleep(backoff.next())

    async def _update_at_once(
        self, changes: Mapping[str, Transition]
    ) -> dict[str, Done | EngineUnavailable]:
        outcomes = await self._ask(partial(self._change, changes))
        return {
            key: EngineUnavailable(self._settings.name, outcome.message)
            if isinstance(outcome, ConfigurationError)
            else outcome
            for key, outcome in outcomes.items()
        }

    async def names(self, prefix: str, *, patience: float) -> list[str]:
        def find(client: Client) -> list[str]:
            there = items_on(self._settings, patience)
            items = [each for each in there if each.startswith(self._locks)]
            keys: list[str] = []
            for start in range(0, len(items), PORTION):
                values = client.get_many(items[start : start + PORTION])
                keys += [self._parts(item, value)[1] for item, value in values.items()]
            return [key for key in keys if key.startswith(prefix)]

        return await self._ask(find)

    async def mark(self, key: str, keep: float | None) -> None:
        item = self._done + _hashed(key)
        if keep == 0:
            await self._ask(lambda client: client.delete(item))
        else:
            await self._ask(
                lambda client: client.set(item, b"1", 0 if keep is None else _expiry(keep + 1))
            )

    async def marked(self, key: str) -> bool:
        return await self._ask(lambda client: client.get(self._done + _hashed(key)) is not None)

    def read(self, client: Client, keys: Sequence[str]) -> Reading:
        """Read the items of several keys."""
        names = [self._locks + _hashed(key) for key in keys]
        while True:
            # Before the read: another thread may begin the recovery after it.
            recovered = self._recovered
            found = client.gets_many([*names, self._generation, self._recovering])
            now = self.runtime.now()
            if self._generation not in found:
                begin_generation(client, self._generation)
                continue
            generation = found[self._generation][0]
            recovery = self._settings.recovery.seconds
            if recovered == (generation, recovery):
                break
            begin_recovery(client, generation, self._recovering, recovery)
            self._recovered = generation, recovery
        items: dict[str, Item | ConfigurationError] = {}
        for key, name in zip(keys, names, strict=True):
            try:
                items[key] = self._item(name, found.get(name), now, generation)
            except ConfigurationError as error:
                items[key] = error
        return Reading(now, generation, self._recovering in found, items)

    async def _ask(self, work: Callable[[Client], R]) -> R:
        if self.runtime.suspends:
            return await self._engine.ask_in_thread(work)
        return self._engine.ask(work, first=self.runtime.renews)

    def _change(self, changes: Mapping[str, Transition], client: Client) -> dict[str, Outcome]:
        """Read items, and replace each. Those that another caller replaced first are left out."""
        reading = self.read(client, list(changes))
        outcomes: dict[str, Outcome] = {}
        for key, item in reading.items.items():
            if isinstance(item, ConfigurationError):
                outcomes[key] = item
                continue
            moment = Moment(
                reading.now, int(time.time() * 1_000_000), grants=not reading.recovering
            )
            step = changes[key](item.state, moment)
            if step.state == item.state:
                outcomes[key] = Done(step, reading.now)
            elif step.state.fence > item.state.fence and not moment.grants:
                outcomes[key] = EngineRecovering(
                    self._settings.name,
                    "it was started or flushed just now",
                    retry_after=self._settings.recovery.seconds or Recovery.LEAST,
                )
            elif self._replace(client, key, item, step.state, reading):
                outcomes[key] = Done(step, reading.now)
        return outcomes

    def _item(
        self, name: str, found: tuple[bytes, bytes] | None, now: float, generation: bytes
    ) -> Item:
        """Return an item, without what was granted across a loss of the server's data.

        A caller whose answer was lost would find its lease there, and believe in it.
        """
        if found is None:
            self._engine.observer.first_seen(name, (), now)
            return Item(name, KeyState())
        value, token = found
        written_in, _key, writers, state = self._parts(name, value)
        # Where items may be evicted, the generation may go and they may stay.
        if written_in != generation and not self._settings.allow_eviction:
            return Item(name, KeyState(state.fence), token)
        entries: list[Entry] = [*state.grants, *state.queue, *state.voided]
        stamps = [Stamp(entry, *by) for entry, by in zip(entries, json.loads(writers), strict=True)]
        seen = self._engine.observer.first_seen(name, stamps, now)
        ours: dict[Entry, Stamp] = {}
        for stamp in stamps:
            shift = seen[stamp] - stamp.written if stamp in seen else 0.0
            entry = stamp.entry._replace(until=stamp.entry.until + shift)
            if isinstance(entry, Grant):
                entry = entry._replace(since=entry.since + shift)
            ours[entry] = stamp
        return Item(name, _state_of(state, ours), token, ours)

    def _replace(
        self, client: Client, key: str, item: Item, state: KeyState, reading: Reading
    ) -> bool:
        """Replace an item; return false if another caller was quicker, or the server has lost its data.

        Unchanged entries stay as their writer wrote them.
        """
        process, now = self._engine.observer.process, reading.now
        entries: list[Entry] = [*state.grants, *state.queue, *state.voided]
        stamps = [item.stamps.get(each) or Stamp(each, process, now) for each in entries]
        writers = json.dumps([(writer, written) for _, writer, written in stamps]).encode()
        theirs = _state_of(state, [stamp.entry for stamp in stamps])
        value = b"\t".join((reading.generation, key.encode(), writers, to_bytes(theirs)))
        ends = max((each.until for each in entries), default=now)
        expiry = _expiry(ends - now + REMEMBERED)
        if item.token is not None:
            # A server that has lost the item has no token for it, either.
            return bool(client.cas(item.name, value, item.token, expiry))
        # A server that has lost its data since the key was read adds the item of a key that others may
        # hold. So its generation is read again behind the addition, in the same round trip. If the answer
        # comes in pieces, the driver loses the first. Then it is left open whether the item was added.
        add = b"add %s 0 %d %d\r\n%s" % (item.name.encode(), expiry, len(value), value)
        request = b"%s\r\nget %s" % (add, self._generation.encode())
        answer: list[bytes] = client.raw_command(request, b"END\r\n").split(b"\r\n")
        return answer[0] == b"STORED" and answer[2:3] == [reading.generation]

    def _parts(self, name: str, value: bytes) -> tuple[bytes, str, bytes, KeyState]:
        """Return the generation, the key, the stamps and the state of an item."""
        *parts, data = value.split(b"\t", 3)
        state = from_bytes(data, f"the item {name} on {self._settings.name}")
        generation, key, stamps = parts
        return generation, key.decode(), stamps, state


def _state_of(like: KeyState, entries: Iterable[Entry]) -> KeyState:
    """Return a state with other entries of the same kinds, in the same order."""
    by_kind: dict[type, list[Any]] = {Grant: [], Place: [], Voided: []}
    for each in entries:
        by_kind[type(each)].append(each)
    grants, queue, voided = map(tuple, by_kind.values())
    places = {each.claim.owner: each for each in queue}
    return like._replace(grants=grants, places=places, voided=voided)


def _hashed(key: str) -> str:
    """Return a name that memcached accepts; the key itself is in the item."""
    return hashlib.sha256(key.encode()).hexdigest()


def _expiry(seconds: float) -> int:
    """Return the expiry that makes memcached keep an item for so long, or up to a second longer."""
    return math.ceil(seconds if seconds <= LONGEST_EXPIRY else time.time() + seconds)
