"""A process that locks on an ensemble: the store that is shipped, on a client that is simulated.

``SimulatedKazoo`` does what kazoo's client does, and knows the states that it knows; sockets and threads
are the world's.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

from kazoo.exceptions import ConnectionClosedError, ConnectionLoss, SessionExpiredError
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.protocol.states import KazooState, KeeperState

from weblock._core.ports import Pulse, Reply, Runtime
from weblock._core.table import Claim
from weblock.errors import EngineUnavailable
from weblock.stores.zookeeper import Settings
from weblock.stores.zookeeper.engine import ZooKeeperEngine
from weblock.stores.zookeeper.session import AsyncResult, Session
from weblock.stores.zookeeper.store import ZooKeeperStore

from .client import Client
from .engine import Acquire, AskRelease, Refresh, Release, Request
from .process import Process
from .quorum_client import _Nowhere
from .runtime import SimulatedRuntime
from .swarm import Swarm
from .truth import Truth
from .zookeeper_nodes import Create, Delete, List, Multi, Read, Sync, Write
from .zookeeper_servers import SERVERS, Connection, Ensemble, Exchange

FIRST_PAUSE: Final = 0.05
LONGEST_PAUSE: Final = 1.0
"""Seconds for which kazoo waits when no server has let it in, as the session tells it to."""


class Transaction:
    """What is to be done all at once."""

    def __init__(self, client: SimulatedKazoo) -> None:
        self._client = client
        self._parts: list[Create | Delete | Write] = []

    def create(self, path: str, value: bytes = b"") -> None:
        self._parts.append(Create(path, value))

    def delete(self, path: str, version: int = -1) -> None:
        self._parts.append(Delete(path, version))

    def set_data(self, path: str, value: bytes, version: int = -1) -> None:
        self._parts.append(Write(path, value, version))

    def commit_async(self) -> AsyncResult:
        return self._client.ask(Multi(tuple(self._parts)))


class SimulatedKazoo:
    """One client: its session, its connection, what it has sent and what it still has to send."""

    def __init__(self, process: Process, ensemble: Ensemble, session_timeout: float) -> None:
        self.process = process
        self.name = process.name
        self.handler = self
        self.running = False
        """Whether there is a thread for the callbacks of results."""
        self.timeout_exception = KazooTimeoutError
        self.session_timeout = session_timeout
        self.session_id = 0
        self.last_zxid = 0
        self.client_state = KeeperState.CLOSED
        self._told = KazooState.LOST
        self._ensemble = ensemble
        self._listeners: list[Callable[[Any], None]] = []
        self._connection: Connection | None = None
        self._live = False
        self._queue: deque[Exchange] = deque()
        self._pending: deque[Exchange] = deque()
        self._flushing = False
        self._watchers: defaultdict[str, dict[Callable[[Any], None], None]] = defaultdict(dict)
        self._next = ensemble.world.random.randrange(SERVERS)
        self._tries = 0
        self._stopped = False

    # What sessions and stores use of kazoo.

    @property
    def client_id(self) -> tuple[int, bytes] | None:
        return (self.session_id, b"") if self._live else None

    def async_result(self) -> AsyncResult:
        return AsyncResult(self)  # type: ignore[arg-type]

    def add_listener(self, listener: Callable[[Any], None]) -> None:
        self._listeners.append(listener)

    def start_async(self) -> None:
        self._become(KeeperState.CONNECTING)
        self.process.soon(self._connect)

    def create_async(
        self, path: str, value: bytes = b"", *, ephemeral: bool = False, sequence: bool = False
    ) -> AsyncResult:
        return self.ask(Create(path, value, ephemeral, sequence))

    def delete_async(self, path: str, version: int = -1) -> AsyncResult:
        return self.ask(Delete(path, version))

    def set_async(self, path: str, value: bytes, version: int = -1) -> AsyncResult:
        return self.ask(Write(path, value, version))

    def get_async(self, path: str, watch: Callable[[Any], None] | None = None) -> AsyncResult:
        return self.ask(Read(path, watch))

    def get_children_async(self, path: str, *, include_data: bool = False) -> AsyncResult:
        result = self.ask(List(path))
        if include_data:
            return result
        names = self.async_result()
        result.rawlink(partial(_first_of, names))
        return names

    def sync_async(self, path: str) -> AsyncResult:
        return self.ask(Sync(path))

    def transaction(self) -> Transaction:
        return Transaction(self)

    def ask(self, request: Any) -> AsyncResult:
        result = self.async_result()
        if self.client_state == KeeperState.CLOSED:
            result.set_exception(ConnectionClosedError("Connection has been closed"))
        elif self.client_state == KeeperState.EXPIRED_SESSION:
            result.set_exception(SessionExpiredError())
        else:
            self._queue.append(Exchange(request, result))
            self._flush_soon()
        return result

    def stop(self) -> None:
        """Ends its session."""
        self._stopped = True
        self._ensemble.leave(self.session_id)
        self._connection = None
        self._become(KeeperState.CLOSED)

    def hang_up(self) -> None:
        """Gives up its connection; what was sent may still arrive."""
        connection = self._connection
        if connection:
            self._ensemble.cut(connection, reaching=float("inf"))
            self.process.soon(partial(self.hung_up, connection))

    # What comes from the ensemble.

    def read(self, connection: Connection) -> None:
        """Reads the next message that has come; on a connection that it has given up, none."""
        if connection.inbox:
            message = connection.inbox.popleft()
            if connection is self._connection:
                message()

    def answered(self, exchange: Exchange, zxid: int) -> None:
        first = self._pending.popleft()
        assert first is exchange, "answers come in the order of requests"
        self.last_zxid = max(self.last_zxid, zxid)
        request, answer = exchange.request, exchange.answer
        if isinstance(answer, Exception):
            exchange.result.set_exception(answer)
            return
        exchange.result.set(answer)
        if isinstance(request, Read) and request.watch:
            self._watchers[request.path][request.watch] = None

    def happened(self, path: str) -> None:
        """Something has become of a node that was watched."""
        for watch in self._watchers.pop(path, ()):
            self.process.soon(partial(watch, None))

    def connected(self, connection: Connection) -> None:
        self.session_id = connection.session
        self._tries = 0
        self._become(KeeperState.CONNECTED)
        self._ping(connection)
        self._flush_soon()

    def expired(self, connection: Connection) -> None:
        connection.open = False
        self._connection = None
        self._ensemble.ledger.truth.sometimes("a client found its session expired")
        self._become(KeeperState.EXPIRED_SESSION)
        self._become(KeeperState.CONNECTING)
        self.process.soon(self._connect)

    def turned_away(self, connection: Connection) -> None:
        connection.open = False
        self.hung_up(connection)

    def hung_up(self, connection: Connection) -> None:
        """Its connection is no more, and it looks for another server."""
        if connection is not self._connection or self._stopped:
            return
        connection.inbox.clear()
        self._connection = None
        self._become(KeeperState.CONNECTING)
        pause = 0.0
        if self._tries % SERVERS == 0:
            pause = min(LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** (self._tries // SERVERS))
        self.process.after(pause * (0.6 + 0.4 * self.process.world.random.random()), self._connect)

    def _connect(self) -> None:
        if self._connection or self._stopped:
            return
        self._tries += 1
        ensemble = self._ensemble
        server = ensemble.servers[self._next]
        self._next = (self._next + 1) % SERVERS
        self._connection = connection = Connection(self, server)
        ensemble.world.after(ensemble.delay(), partial(ensemble.greet, connection))
        self.process.after(self.session_timeout / SERVERS, partial(self._give_up, connection))

    def _give_up(self, connection: Connection) -> None:
        if connection is self._connection and self.client_state != KeeperState.CONNECTED:
            self._ensemble.cut(connection)
            self.hung_up(connection)

    def _ping(self, connection: Connection) -> None:
        if connection is self._connection:
            self._ensemble.hear_of(connection)
            self.process.after(self.session_timeout / 3, partial(self._ping, connection))

    def _flush_soon(self) -> None:
        if not self._flushing and self.client_state == KeeperState.CONNECTED:
            self._flushing = True
            self.process.soon(self._flush)

    def _flush(self) -> None:
        """Sends what is queued, as kazoo's thread does."""
        self._flushing = False
        while self._queue and self._connection and self.client_state == KeeperState.CONNECTED:
            exchange = self._queue.popleft()
            self._pending.append(exchange)
            self._ensemble.send(self._connection, exchange)

    def _become(self, state: str) -> None:
        """Does what kazoo does in ``_session_callback``."""
        before, self.client_state = self.client_state, state
        closed = {KeeperState.CLOSED, KeeperState.EXPIRED_SESSION}
        if state == before or (before in closed and state == KeeperState.CONNECTING):
            return
        self._live = state == KeeperState.CONNECTED
        if state == KeeperState.CONNECTED:
            self._tell(KazooState.CONNECTED)
        elif state in closed:
            self._tell(KazooState.LOST)
            self._fail(
                SessionExpiredError if state == KeeperState.EXPIRED_SESSION else ConnectionLoss
            )
            self.session_id, self.last_zxid = 0, 0
            self._end_watches()
        else:
            self._fail(ConnectionLoss)
            self._tell(KazooState.SUSPENDED)
            self._end_watches()

    def _tell(self, state: str) -> None:
        if self._told != state:
            self._told = state
            for listener in self._listeners:
                listener(state)

    def _fail(self, error: type[Exception]) -> None:
        failed = [*self._pending, *self._queue]
        self._pending.clear()
        self._queue.clear()
        for exchange in failed:
            exchange.result.set_exception(error())

    def _end_watches(self) -> None:
        watchers, self._watchers = self._watchers, defaultdict(dict)
        for each in watchers.values():
            for watch in each:
                self.process.soon(partial(watch, None))


class SimulatedSession(Session):
    """The session that is shipped, on a client that is simulated."""

    def __init__(self, settings: Settings, client: SimulatedKazoo) -> None:
        self._simulated = client
        super().__init__(settings)

    def _new_client(self, settings: Settings) -> Any:
        return self._simulated


class SimulatedZooKeeper(ZooKeeperEngine):
    """The engine that is shipped, as one process of the simulation has it."""

    def __init__(self, process: Process, ensemble: Ensemble, settings: Settings) -> None:
        super().__init__(settings)
        self.process = process
        self._ensemble = ensemble

    def end(self) -> None:
        """Closes it, without a thread."""
        self._closed = True
        session, self._session = self._session, None
        if session:
            session.client.stop()

    def new_session(self, settings: Settings) -> Session:  # type: ignore[override]
        client = SimulatedKazoo(self.process, self._ensemble, settings.session_timeout)
        return SimulatedSession(settings, client)


class WitnessedZooKeeper(ZooKeeperStore):
    """The store that is shipped, of which one sees what it is asked, and whether it waits."""

    def __init__(self, engine: SimulatedZooKeeper, runtime: Runtime, truth: Truth) -> None:
        super().__init__(engine, runtime)
        self.asking = 0
        self.asked_at = 0.0
        self._at = engine.process
        self._truth = truth

    async def acquire(self, key: str, claim: Claim, *, room: int) -> Reply:
        with self._asks(request := Acquire(key, claim, room)):
            reply = await super().acquire(key, claim, room=room)
        self._truth.answered(request, [reply])
        return reply

    async def release(self, key: str, owner: str, *, void: float = 0) -> Reply:
        with self._asks(request := Release(key, owner, void)):
            reply = await super().release(key, owner, void=void)
        self._truth.answered(request, [reply])
        return reply

    async def refresh(self, pulses: Sequence[Pulse]) -> Sequence[Reply | EngineUnavailable]:
        with self._asks(request := Refresh(tuple(pulses))):
            replies = await super().refresh(pulses)
        answered = [each if isinstance(each, Reply) else NO_REPLY for each in replies]
        self._truth.answered(request, answered)
        return replies

    async def ask_release(self, key: str) -> Reply:
        with self._asks(AskRelease(key)):
            return await super().ask_release(key)

    @contextmanager
    def _asks(self, request: Request) -> Iterator[None]:
        self._truth.sent(self._at, request)
        self.asking += 1
        try:
            yield
        finally:
            self.asking -= 1
            self.asked_at = self._truth.world.now


NO_REPLY: Final = Reply(None, 0.0)  # type: ignore[arg-type]
"""In the place of an answer that did not come."""


class ZooKeeperClient(Client):
    """A process with an ensemble."""

    def __init__(
        self, process: Process, ensemble: Ensemble, settings: Settings, swarm: Swarm, truth: Truth
    ) -> None:
        self._truth = truth
        self.engine = SimulatedZooKeeper(process, ensemble, settings)
        super().__init__(process, _Nowhere(), swarm, truth)  # type: ignore[arg-type]

    def _store(self) -> Any:
        self.engine.switchboard = self.switchboard
        runtime = SimulatedRuntime(self.process, lambda _owner: None)
        return WitnessedZooKeeper(self.engine, runtime, self._truth)


def _first_of(names: AsyncResult, listed: AsyncResult) -> None:
    if listed.successful():
        names.set(listed.get_nowait()[0])
    else:
        names.set_exception(listed.exception)
