"""``memcached://``: a cell is an item, read with ``gets`` and replaced with ``cas`` or ``add``.

Memcached tells no time that a lease could be counted on, so there is no clock that all share. Whoever
writes a lease says how long it is to last. Its holder counts that from before the write, and everybody
else from when they first saw it, each on a monotonic clock of their own: so the holder's end comes
first, whatever the machines' clocks say. A lease is known again by the stamp of its last renewal,
which others who change the item carry over as it is.

Nor does memcached push. Waiters of the process that releases are rung; those of other processes look,
after pauses that grow with the time that the present lease has lasted.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import importlib.util
import json
import math
import os
import re
import secrets
import select
import socket
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, NamedTuple, Protocol, TypeVar
from urllib.parse import parse_qsl, unquote

from .._core.ports import Ask, Grasp, Pulse, Reply, Runtime, Store, Switchboard
from .._core.table import Claim, Grant, KeyState, Moment, Place, Step, Voided, Waiting
from ..errors import ConfigurationError, EngineUnavailable
from .cells import CellStore, Done, Transition
from .url import shown, without_secrets

SCHEMES: Final = ("memcached",)

PATIENCE: Final = 5.0
"""Seconds of losing to others who change the same key after which that is an error."""

BEAT_PATIENCE: Final = 1.0
"""The same for heartbeats: the next comes soon."""

REMEMBERED: Final = 600.0
"""Seconds for which an item outlives what is in it, so that the next fence is larger for sure."""

LONGEST_EXPIRY: Final = 30 * 86400
"""Seconds; memcached takes more for a date, in seconds since 1970."""

RECOVERY: Final = 10.0
"""Seconds for which a server that may have lost leases grants none."""

UPTIME_AHEAD: Final = 3.0
"""Seconds by which a server may say that it has been up for longer than it has."""

FIRST_LOOK: Final = 0.003
LONGEST_LOOK: Final = 0.25
"""Seconds between two looks at a key that others hold, while somebody here waits for it."""

ATTENTION: Final = 3.0
"""Seconds for which a key is looked at after a waiter's last heartbeat."""

THREADS: Final = 16
"""In which requests of event loops run, for the driver blocks."""

LATELY: Final = 0.1
"""Seconds for which nobody need wait in vain for an answer that somebody else has just missed."""

IDLE: Final = 32
"""Connections that are kept open, at most, while nobody uses them."""

KNOWN: Final = 10_000
"""Keys of which it is remembered when their leases were first seen."""

PORTION: Final = 500
"""Items that are fetched in one go."""

_FORMAT: Final = 1

T = TypeVar("T")


class Client(Protocol):
    """What is used of the driver's."""

    sock: socket.socket

    def stats(self, *args: str) -> Mapping[bytes, Any]: ...

    def get_many(self, keys: Sequence[str]) -> dict[str, bytes]: ...

    def gets_many(self, keys: Sequence[str]) -> dict[str, tuple[bytes, bytes]]: ...

    def add(self, key: str, value: bytes, expire: int = 0, *, noreply: bool) -> bool: ...

    def set(self, key: str, value: bytes, expire: int = 0, *, noreply: bool) -> bool: ...

    def delete(self, key: str, *, noreply: bool) -> bool: ...

    def cas(self, key: str, value: bytes, cas: bytes, expire: int) -> bool | None: ...

    def close(self) -> None: ...


class Settings(NamedTuple):
    """What a URL says."""

    host: str
    port: int
    prefix: str = "weblock"
    timeout: float = 1.0
    recovery: float = RECOVERY
    allow_eviction: bool = False

    @property
    def name(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"memcached://{host}:{self.port}"


class MemcachedEngine:
    """The leases on one server, as this process sees them."""

    scope = "cluster"

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.name = settings.name
        self.switchboard = Switchboard()
        self.closed = False
        self._silent_at = -LATELY
        self._idle: list[Client] = []
        self._executor: ThreadPoolExecutor | None = None
        self._start_anew()
        _engines.add(self)

    def connect(self, runtime: Runtime) -> Store:
        return _MemcachedStore(self, runtime)

    def close(self) -> None:
        """Whoever still waits here is told."""
        self.closed = True
        self.lookout.close()
        with self._guard:
            executor, self._executor = self._executor, None
        if executor:
            executor.shutdown(wait=False)
        while self._idle:
            self._idle.pop().close()
        self.switchboard.ring_all(Ask())

    async def call(self, runtime: Runtime, work: Callable[[], T]) -> T:
        """Does something that blocks; for an event loop, in a thread."""
        if not runtime.suspends:
            return work()
        loop, threads = asyncio.get_running_loop(), self._threads()
        try:
            done = loop.run_in_executor(threads, work)
        except RuntimeError as error:  # It was closed just now.
            raise EngineUnavailable(self.name, "it was closed") from error
        return await done

    @contextlib.contextmanager
    def connection(self) -> Iterator[Client]:
        """A connection for as long as a request takes.

        Raises ``EngineUnavailable`` for whatever goes wrong meanwhile.
        """
        from pymemcache.exceptions import MemcacheError

        if time.monotonic() - self._silent_at < LATELY:
            raise EngineUnavailable(self.name, _SILENT)
        client = None
        try:
            client = self._take() or self._connected()
            yield client
        except EngineUnavailable:
            raise
        except (MemcacheError, OSError) as error:
            if isinstance(error, TimeoutError):
                self._silent_at = time.monotonic()
            raise EngineUnavailable(self.name, _explained(error)) from error
        else:
            if self.closed or len(self._idle) >= IDLE:
                return
            self._idle.append(client)
            client = None
        finally:
            if client:
                client.close()

    def after_fork(self) -> None:
        while self._idle:
            self._idle.pop().close()
        self.switchboard.clear()
        self._start_anew()

    def _start_anew(self) -> None:
        self.process = secrets.token_hex(8)
        self.sightings = _Sightings()
        self.lookout = _Lookout(self)
        self._guard = threading.Lock()
        self._executor = None

    def _threads(self) -> ThreadPoolExecutor:
        with self._guard:
            if self.closed:
                raise EngineUnavailable(self.name, "it was closed")
            threads = self._executor or ThreadPoolExecutor(THREADS, "weblock-memcached")
            self._executor = threads
            return threads

    def _take(self) -> Client | None:
        """A connection that is open; one that has something to say unasked has ended."""
        while self._idle:
            try:
                client = self._idle.pop()
            except IndexError:  # Another thread was quicker.
                return None
            poll = select.poll()
            poll.register(client.sock, select.POLLIN)
            if not poll.poll(0):
                return client
            client.close()
        return None

    def _connected(self) -> Client:
        from pymemcache.client import base

        if self.closed:
            raise EngineUnavailable(self.name, "it was closed")
        host, port, _, timeout, *_ = self.settings
        client: Client = base.Client(
            (host, port), connect_timeout=timeout, timeout=timeout, no_delay=True
        )
        try:
            self._refuse_unfit(client.stats("settings"))
        except BaseException:
            client.close()
            raise
        return client

    def _refuse_unfit(self, stats: Mapping[bytes, Any]) -> None:
        if stats.get(b"cas_enabled") in (b"no", False, 0):
            raise EngineUnavailable(
                self.name, "it was started with -C, and locks need cas: start it without"
            )
        if stats.get(b"evictions") == b"on" and not self.settings.allow_eviction:
            raise EngineUnavailable(
                self.name,
                "it may throw leases away when its memory is full: start it with -M, use a server"
                " of its own for locks, or accept lost leases with ?allow_eviction=true",
            )


class _Stamp(NamedTuple):
    """Which process wrote something, when, and until when it lasts: on that process's clock."""

    owner: str
    writer: str
    written: float
    until: float


Seen = Mapping[_Stamp, float]
"""When what others have written was first seen here."""


class _Sightings:
    """When this process first saw what others have written."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._by_item: OrderedDict[str, dict[_Stamp, float]] = OrderedDict()

    def first(self, item: str, stamps: Iterable[_Stamp], now: float) -> Seen:
        """When each was first seen: before now, or now. Those of the item's past are forgotten.

        Whatever is forgotten too early is counted anew, which only makes others wait for longer.
        """
        with self._guard:
            known = self._by_item.pop(item, {})
            seen = {stamp: known.get(stamp, now) for stamp in stamps}
            if seen:
                self._by_item[item] = seen
            while len(self._by_item) > KNOWN:
                self._by_item.popitem(last=False)
        return seen


Written = list[Any]
"""A lease, a place or a mark of one who gave up, as it stands in an item."""


class _Reading:
    """An item as it was read: a state in our own time, and what it was decoded from."""

    def __init__(self, key: str, token: bytes | None, now: float) -> None:
        self.key = key
        self.token = token
        self.now = now
        self.state = KeyState()
        self.written: dict[Grant | Place | Voided, Written] = {}


class _Items:
    """How states are written down: JSON, in which every time is on its writer's clock."""

    def __init__(self, engine: MemcachedEngine) -> None:
        self._engine = engine
        # No prefix has a slash in it, so that none can reach the items of another.
        self._prefix = engine.settings.prefix
        self.locks = f"{self._prefix}/lock/"
        self.mark = f"{self._prefix}/mark"
        self.quiet = f"{self._prefix}/quiet"

    def item_of(self, key: str) -> str:
        """A name that memcached can take; the key itself is in the item."""
        return self.locks + hashlib.sha256(key.encode()).hexdigest()

    def note_of(self, key: str) -> str:
        """The item that says that something has been done."""
        return f"{self._prefix}/done/{hashlib.sha256(key.encode()).hexdigest()}"

    def decode(self, key: str, found: tuple[bytes, bytes] | None, now: float) -> _Reading:
        item = self.item_of(key)
        if found is None:
            self._engine.sightings.first(item, (), now)
            return _Reading(key, None, now)
        value, token = found
        _, fence, lease, places, voids = self.fields(value)
        theirs = [
            stamp
            for each in (*places, *voids, *([lease] if lease else []))
            if (stamp := _Stamp(*each[-1])).writer != self._engine.process
        ]
        seen = self._engine.sightings.first(item, theirs, now)
        reading = _Reading(key, token, now)
        grant = _noted(reading, lease, _grant_in(lease, seen)) if lease else None
        queue = tuple(_noted(reading, each, _place_in(each, seen)) for each in places)
        voided = tuple(_noted(reading, each, _voided_in(each, seen)) for each in voids)
        reading.state = KeyState(fence, grant, queue, voided)
        return reading

    def encode(self, reading: _Reading, state: KeyState) -> bytes:
        """What is to be written; what has not changed stays as its writer wrote it."""
        known, process, now = reading.written, self._engine.process, reading.now

        def stamp(owner: str, until: float) -> _Stamp:
            return _Stamp(owner, process, now, until)

        grant: Any = None
        if lease := state.grant:
            claim, fence, since, until, confirmed = lease
            mark = stamp(claim.owner, until)
            grant = known.get(lease) or [claim, fence, since, confirmed, mark]
        places = [
            known.get(each) or [each.claim, stamp(each.claim.owner, each.until)]
            for each in state.queue
        ]
        voids = [known.get(each) or [stamp(each.owner, each.until)] for each in state.voided]
        fields = [_FORMAT, reading.key, state.fence, grant, places, voids]
        return json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode()

    def fields(self, value: bytes) -> list[Any]:
        """Key, fence, lease, places and voids, as they were written."""
        version, fields = None, []
        with contextlib.suppress(ValueError, TypeError):
            version, *fields = json.loads(value)
        if version != _FORMAT:
            raise EngineUnavailable(
                self._engine.name,
                f"what is there under {self.locks!r} was not written by this version of weblock:"
                " let all processes run the same version, or give each a prefix of its own",
            )
        return fields


def _expiry(seconds: float) -> int:
    """How memcached is told to keep something for so long, or for longer by less than a second."""
    return math.ceil(seconds if seconds <= LONGEST_EXPIRY else time.time() + seconds)


def _use_of(state: KeyState, now: float) -> float:
    """Seconds after which nothing in it is of any use."""
    ends = [each.until for each in state.queue]
    ends += [each.until for each in state.voided]
    if state.grant:
        ends.append(state.grant.until)
    return max(ends, default=now) - now + REMEMBERED


E = TypeVar("E", Grant, Place, Voided)


def _noted(reading: _Reading, written: Written, entry: E) -> E:
    reading.written[entry] = written
    return entry


def _shift(stamp: _Stamp, seen: Seen) -> float:
    """What brings a time of its writer's into ours. What we wrote ourselves is in ours."""
    return seen[stamp] - stamp.written if stamp in seen else 0.0


def _grant_in(written: Written, seen: Seen) -> Grant:
    claim, fence, since, confirmed, mark = written
    stamp = _Stamp(*mark)
    shift = _shift(stamp, seen)
    return Grant(Claim(*claim), fence, since + shift, stamp.until + shift, confirmed)


def _place_in(written: Written, seen: Seen) -> Place:
    claim, mark = written
    stamp = _Stamp(*mark)
    return Place(Claim(*claim), stamp.until + _shift(stamp, seen))


def _voided_in(written: Written, seen: Seen) -> Voided:
    stamp = _Stamp(*written[0])
    return Voided(stamp.owner, stamp.until + _shift(stamp, seen))


class _ItemCells:
    """The items as cells, for one runtime."""

    def __init__(self, engine: MemcachedEngine, runtime: Runtime) -> None:
        self._engine = engine
        self._runtime = runtime
        self._items = _Items(engine)

    async def update(self, key: str, transition: Transition, *, patience: float) -> Done:
        return await self._engine.call(
            self._runtime, lambda: self._update(key, transition, patience)
        )

    async def update_many(
        self, changes: Mapping[str, Transition], *, patience: float
    ) -> dict[str, Done | EngineUnavailable]:
        return await self._engine.call(self._runtime, lambda: self._update_many(changes, patience))

    async def names(self, prefix: str, *, patience: float) -> list[str]:
        return await self._engine.call(self._runtime, lambda: self._names(prefix, patience))

    async def mark(self, key: str, keep: float | None) -> None:
        note = self._items.note_of(key)

        def put(client: Client) -> None:
            if keep == 0:
                client.delete(note, noreply=False)
            else:
                client.set(note, b"1", 0 if keep is None else _expiry(keep + 1), noreply=False)

        await self._engine.call(self._runtime, lambda: self._ask(put))

    async def marked(self, key: str) -> bool:
        note = self._items.note_of(key)

        def has(client: Client) -> bool:
            return bool(client.get_many([note]))

        return await self._engine.call(self._runtime, lambda: self._ask(has))

    def _ask(self, work: Callable[[Client], T]) -> T:
        with self._engine.connection() as client:
            return work(client)

    def read(self, keys: Sequence[str]) -> dict[str, _Reading]:
        """What stands in several items. Raises ``EngineUnavailable``."""
        with self._engine.connection() as client:
            return self._read(client, keys)[0]

    def _update(self, key: str, transition: Transition, patience: float) -> Done:
        give_up_at = self._runtime.now() + patience
        with self._engine.connection() as client:
            while True:
                readings, quiet = self._read(client, (key,))
                if done := self._replace(client, readings[key], transition, quiet=quiet):
                    return done
                if self._runtime.now() >= give_up_at:
                    raise EngineUnavailable(self._engine.name, "too many change the same key")
                time.sleep(0.002 * self._runtime.jitter())

    def _update_many(
        self, changes: Mapping[str, Transition], patience: float
    ) -> dict[str, Done | EngineUnavailable]:
        outcomes: dict[str, Done | EngineUnavailable] = {}
        keys = list(changes)
        for start in range(0, len(keys), PORTION):
            with self._engine.connection() as client:
                readings, quiet = self._read(client, keys[start : start + PORTION])
                for key, reading in readings.items():
                    try:
                        done = self._replace(client, reading, changes[key], quiet=quiet)
                    except EngineUnavailable as error:
                        outcomes[key] = error
                    else:
                        outcomes |= {key: done} if done else {}
        for key in changes.keys() - outcomes.keys():
            try:
                outcomes[key] = self._update(key, changes[key], patience)
            except EngineUnavailable as error:
                outcomes[key] = error
        return outcomes

    def _read(self, client: Client, keys: Sequence[str]) -> tuple[dict[str, _Reading], bool]:
        """What stands in items, and whether the server is to grant nothing now.

        Of many, those that cannot be read are left out.
        """
        items = [self._items.item_of(key) for key in keys]
        while True:
            found = client.gets_many([*items, self._items.mark, self._items.quiet])
            now = self._runtime.now()
            if self._items.mark in found:
                break
            self._begin(client)
        readings: dict[str, _Reading] = {}
        for key, item in zip(keys, items, strict=True):
            try:
                readings[key] = self._items.decode(key, found.get(item), now)
            except EngineUnavailable:
                if len(keys) == 1:
                    raise
        return readings, self._items.quiet in found

    def _replace(
        self, client: Client, reading: _Reading, transition: Transition, *, quiet: bool
    ) -> Done | None:
        """Writes what a transition makes of an item, unless somebody else has written meanwhile."""
        floor = int(time.time() * 1_000_000)
        step = transition(reading.state, Moment(reading.now, floor))
        if step.state == reading.state:
            return Done(step, reading.now)
        if quiet and _grants_anew(reading.state, step):
            raise EngineUnavailable(
                self._engine.name,
                "it was started or flushed just now, and may have lost leases: it grants none until"
                f" they have ended ({self._engine.settings.recovery:g} s after it)",
            )
        item = self._items.item_of(reading.key)
        value = self._items.encode(reading, step.state)
        expiry = _expiry(_use_of(step.state, reading.now))
        if reading.token is None:
            done = client.add(item, value, expiry, noreply=False)
        else:
            done = bool(client.cas(item, value, reading.token, expiry))
        return Done(step, reading.now) if done else None

    def _begin(self, client: Client) -> None:
        """Marks a server that has no mark: it is new to us, or it has lost what was there."""
        quiet = self._engine.settings.recovery
        if quiet:
            stats = client.stats()
            if stats.get(b"cmd_flush") == stats.get(b"evictions") == 0:
                quiet = min(quiet, quiet - stats.get(b"uptime", 0) + UPTIME_AHEAD)
        if quiet > 0:
            client.add(self._items.quiet, b"1", math.ceil(quiet) + 1, noreply=False)
        client.add(self._items.mark, b"1", noreply=False)

    def _names(self, prefix: str, patience: float) -> list[str]:
        names: list[str] = []
        with self._engine.connection() as client:
            dumped = self._dump(client, patience)
            items = [each for each in dumped if each.startswith(self._items.locks)]
            for start in range(0, len(items), PORTION):
                found = client.get_many(items[start : start + PORTION])
                names += [self._items.fields(value)[0] for value in found.values()]
        return [name for name in names if name.startswith(prefix)]

    def _dump(self, client: Client, patience: float) -> list[str]:
        """All that is there, ours or not, by the names of items.

        The driver cannot read an answer of several packets to a command that it does not know.
        """
        give_up_at = self._runtime.now() + patience
        while True:
            client.sock.sendall(b"lru_crawler metadump hash\r\n")
            line = b""
            with client.sock.makefile("rb") as lines:
                dumped: list[str] = []
                for line in lines:
                    if line == b"END\r\n":
                        return dumped
                    if not line.startswith(b"key="):
                        break
                    dumped.append(unquote(line[4:].partition(b" ")[0].decode()))
            if not line.startswith(b"BUSY") or self._runtime.now() >= give_up_at:
                raise EngineUnavailable(
                    self._engine.name, f"it does not list its items: {line.decode():.80}"
                )
            time.sleep(0.05)


def _grants_anew(before: KeyState, step: Step) -> bool:
    after = step.state.grant
    return after is not None and (before.grant is None or before.grant.fence != after.fence)


class _MemcachedBells:
    """Waiters here are rung; those elsewhere look for themselves."""

    def __init__(self, engine: MemcachedEngine) -> None:
        self._engine = engine

    @property
    def process(self) -> str:
        return self._engine.process

    def ring(self, process: str, owner: str, grasp: Grasp) -> None:
        if process == self._engine.process:
            self._engine.switchboard.ring(owner, grasp)

    def watch(self, processes: Sequence[str]) -> None:
        pass


class _MemcachedStore(CellStore):
    """The protocol on items, with a lookout for those who wait."""

    def __init__(self, engine: MemcachedEngine, runtime: Runtime) -> None:
        cells, bells = _ItemCells(engine, runtime), _MemcachedBells(engine)
        super().__init__(cells, bells, patience=PATIENCE, beat_patience=BEAT_PATIENCE)
        self._engine = engine
        self._runtime = runtime

    async def acquire(self, key: str, claim: Claim, *, room: int) -> Reply:
        reply = await super().acquire(key, claim, room=room)
        if isinstance(reply.answer, Waiting):
            self._engine.lookout.attend(key, self._runtime)
        return reply

    async def refresh(self, pulses: Sequence[Pulse]) -> Sequence[Reply | EngineUnavailable]:
        replies = await super().refresh(pulses)
        for pulse, reply in zip(pulses, replies, strict=True):
            if isinstance(reply, Reply) and isinstance(reply.answer, Waiting):
                self._engine.lookout.attend(pulse.key, self._runtime)
        return replies


class _Watch:
    """A key that somebody here waits for."""

    def __init__(self, due: float) -> None:
        self.due = due
        self.until = 0.0
        self.pause = FIRST_LOOK
        self.fence = 0


class _Lookout:
    """A thread that looks whether a key has been handed to somebody in this process."""

    def __init__(self, engine: MemcachedEngine) -> None:
        self._engine = engine
        self._changed = threading.Condition()
        self._watches: dict[str, _Watch] = {}
        self._thread: threading.Thread | None = None
        self._closed = False

    def attend(self, key: str, runtime: Runtime) -> None:
        """Looks at a key from now on, until it is not waited for any more."""
        now = runtime.now()
        with self._changed:
            if self._closed:
                return
            if key not in self._watches:
                self._watches[key] = _Watch(now + FIRST_LOOK)
                self._changed.notify()
            self._watches[key].until = now + ATTENTION
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, args=(runtime,), name="weblock-lookout", daemon=True
                )
                self._thread.start()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify()
            thread = self._thread
        if thread and thread is not threading.current_thread():
            thread.join(1)

    def _run(self, runtime: Runtime) -> None:
        cells = _ItemCells(self._engine, runtime)
        while True:
            with self._changed:
                while not self._closed and not (due := self._due(runtime.now())):
                    self._changed.wait(self._pause(runtime.now()))
                if self._closed:
                    return
            try:
                readings = cells.read(list(due))
            except EngineUnavailable:
                readings = {}
            with self._changed:
                for key, until in due.items():
                    self._plan(key, readings.get(key), until, runtime)

    def _due(self, now: float) -> dict[str, float]:
        """Keys that are to be looked at now, and until when that is asked for."""
        due = [(key, watch.until) for key, watch in self._watches.items() if watch.due <= now]
        return dict(due[:PORTION])

    def _pause(self, now: float) -> float | None:
        dues = [watch.due for watch in self._watches.values()]
        return max(0.0, min(dues) - now) if dues else None

    def _plan(self, key: str, reading: _Reading | None, until: float, runtime: Runtime) -> None:
        """Rings the waiter that has been given the key, and says when to look again.

        A key that goes from hand to hand is looked at often, one that is held for long seldom, and
        so is one of which the first here has many before it.
        """
        watch, now = self._watches[key], runtime.now()
        if now >= watch.until:
            del self._watches[key]
            return
        pause = LONGEST_LOOK
        if reading:
            grant, queue = reading.state.grant, reading.state.queue
            process = self._engine.process
            if grant and grant.fence != watch.fence:
                watch.fence, watch.pause = grant.fence, FIRST_LOOK
                if grant.claim.process == process and not grant.confirmed:
                    self._engine.switchboard.ring(grant.claim.owner, Ask())
            ours = (n for n, each in enumerate(queue) if each.claim.process == process)
            ahead = next(ours, -1)
            if ahead < 0 and watch.until == until:  # Nobody has joined since it was looked at.
                del self._watches[key]
                return
            pause = min(LONGEST_LOOK, watch.pause * (1 + max(0, ahead)))
            watch.pause = min(LONGEST_LOOK, 1.5 * watch.pause)
        watch.due = now + pause * (0.75 + runtime.jitter() / 2)


def open_engine(url: str) -> MemcachedEngine:
    """The engine of ``memcached://host:port``, which connects when it is first used.

    Raises ``ConfigurationError``.
    """
    if importlib.util.find_spec("pymemcache") is None:
        raise ConfigurationError(
            f"{without_secrets(url)} needs pymemcache, which is not installed:"
            " pip install 'weblock[memcached]'"
        )
    return MemcachedEngine(_parse(url))


def _parse(url: str) -> Settings:
    where, _, query = url.partition("://")[2].partition("?")
    if "@" in where:
        raise ConfigurationError(
            "a memcached:// URL names a user or a password, and no such login is supported: have the"
            " server listen on a private network only"
        )
    if "," in where:
        raise ConfigurationError(
            f"{shown(url)} names several servers, between which memcached agrees on nothing: name one"
        )
    match = re.fullmatch(r"(\[[0-9A-Fa-f:.]+\]|[^\[\]:/#\s]+)(?::(\d{1,5}))?/?", where)
    if not match or not 0 < int(match[2] or 11211) < 65536:
        raise ConfigurationError(f"{shown(url)} names no server: write memcached://host:port")
    options: dict[str, Any] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name not in _OPTIONS:
            raise ConfigurationError(
                f"there is no memcached option {name!r:.40}; there are"
                f" {', '.join(sorted(_OPTIONS))}"
            )
        options[name] = _OPTIONS[name](name, value)
    return Settings(match[1].strip("[]"), int(match[2] or 11211), **options)


def _seconds(name: str, value: str) -> float:
    try:
        seconds = float(value)
    except ValueError:
        seconds = -1.0
    if not 0 < seconds < 86400:
        raise ConfigurationError(f"{name}={value!r:.40} must be seconds, more than 0")
    return seconds


def _recovery(name: str, value: str) -> float:
    words = {"safe": RECOVERY, "off": 0.0}
    return words[value] if value in words else _seconds(name, value)


def _prefix(name: str, value: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9._:-]{1,100}", value):
        raise ConfigurationError(
            f"{name}={value!r:.80} must be 1 to 100 letters, digits or any of . _ : -"
        )
    return value


def _flag(name: str, value: str) -> bool:
    if value not in ("true", "false"):
        raise ConfigurationError(f"{name}={value!r:.40} must be true or false")
    return value == "true"


_OPTIONS: Final[dict[str, Callable[[str, str], Any]]] = {
    "prefix": _prefix,
    "timeout": _seconds,
    "recovery": _recovery,
    "allow_eviction": _flag,
}


_SILENT: Final = "it did not answer in time"


def _explained(error: Exception) -> str:
    """What went wrong, for a reader, with the remedy where there is one."""
    text = str(error.args[0], errors="replace") if _is_bytes(error) else str(error)
    if "out of memory" in text:
        return "its memory is full, and it takes no new leases: raise -m"
    if "too large" in text:
        return "too many wait for one key: lower max_waiters, or raise -I"
    if isinstance(error, TimeoutError):
        return _SILENT
    return text or type(error).__name__


def _is_bytes(error: Exception) -> bool:
    return bool(error.args) and isinstance(error.args[0], bytes)


_engines: weakref.WeakSet[MemcachedEngine] = weakref.WeakSet()


def _after_fork() -> None:
    for engine in _engines:
        engine.after_fork()


os.register_at_fork(after_in_child=_after_fork)
