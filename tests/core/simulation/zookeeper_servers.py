"""A ZooKeeper ensemble: a leader that commits, servers that lag behind, sessions and connections.

What a majority would agree on, the leader decides alone: that part of ZooKeeper is taken for granted.
What a client can see of it is not: stale reads, answers that never come, requests that take effect late.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from kazoo.exceptions import SessionExpiredError

from .network import Line
from .swarm import Swarm
from .world import Action, World
from .zookeeper_nodes import (
    Changes,
    Create,
    Forget,
    Multi,
    Node,
    Read,
    Request,
    Sync,
    Writing,
    perform,
    read,
)

if TYPE_CHECKING:
    from .zookeeper_client import SimulatedKazoo
    from .zookeeper_truth import Ledger

SERVERS: Final = 3

PER_MESSAGE: Final = 0.1
"""How many of the losses of a schedule are left to each message: an operation takes several."""


class Exchange:
    """One request, on its way there and back."""

    __slots__ = ("answer", "answered", "index", "number", "request", "result", "sent")

    def __init__(self, request: Request, result: Any) -> None:
        self.request = request
        self.result = result
        self.number = 0
        self.sent = 0.0
        self.answered = False
        self.answer: Any = None
        self.index = 0
        """How much of the log its server must have applied before it answers."""


class Connection:
    """One connection of a client to a server, which keeps the order of messages."""

    def __init__(self, client: SimulatedKazoo, server: Server) -> None:
        self.client = client
        self.server = server
        self.session = client.session_id
        self.seen = client.last_zxid
        """The last transaction that the client knows of: no server that has not is good enough."""
        self.open = True
        self.sent = 0
        self.reaching: float = float("inf")
        """How many of its requests ever reach the ensemble."""
        self.requests, self.forwards, self.replies = Line(), Line(), Line()
        self.outbox: deque[Exchange] = deque()
        self.queue: deque[Exchange] = deque()
        self.forwarded: deque[Exchange] = deque()
        self.inbox: deque[Callable[[], None]] = deque()


@dataclass
class SessionState:
    """A session, as the leader knows it."""

    number: int
    timeout: float
    connection: Connection
    heard_at: float
    over: bool = False
    ephemeral: set[str] = field(default_factory=set)


class Server:
    """One server: how much of the log it has applied, and who is connected to it."""

    def __init__(self, number: int, ensemble: Ensemble) -> None:
        self.number = number
        self.up = True
        self.lags = False
        self.tree: dict[str, Node] = dict(ensemble.tree)
        self.applied = 0
        self.connections: list[Connection] = []
        self.watches: defaultdict[str, set[Connection]] = defaultdict(set)
        self._ensemble = ensemble
        self._line = Line()
        self._due = 0

    @property
    def zxid(self) -> int:
        log = self._ensemble.log
        return log[self.applied - 1][0] if self.applied else 0

    def commit(self) -> None:
        """Hears of one more transaction, and will apply it."""
        world = self._ensemble.world
        delay = self._line.delay(world.now, self._ensemble.delay())
        world.after(delay, self._come_due)

    def catch_up(self) -> None:
        while self.applied < self._due and not self.lags:
            self._apply()

    def receive(self, connection: Connection) -> None:
        exchange = connection.outbox.popleft()  # The next one: times are not exact to the last bit.
        if exchange.number >= connection.reaching or not self.up:
            return
        ensemble = self._ensemble
        ensemble.hear_of(connection)
        connection.queue.append(exchange)
        if _is_for_leader(exchange.request):
            connection.forwarded.append(exchange)
            delay = connection.forwards.delay(ensemble.world.now, ensemble.delay())
            ensemble.world.after(delay, partial(ensemble.propose, ensemble.epoch, connection))
        self.pump(connection)

    def pump(self, connection: Connection) -> None:
        """Answers what can be answered, in the order in which it was asked."""
        queue = connection.queue
        while queue and connection.open:
            exchange = queue[0]
            if not _is_for_leader(exchange.request):
                self._read(connection, exchange)
            elif not (exchange.answered and self.applied >= exchange.index):
                return
            queue.popleft()
            self._ensemble.reply(connection, exchange, self.zxid)

    def forget(self, connection: Connection) -> None:
        if connection in self.connections:
            self.connections.remove(connection)
        for watching in self.watches.values():
            watching.discard(connection)

    def _read(self, connection: Connection, exchange: Exchange) -> None:
        request: Any = exchange.request
        exchange.answer = read(self.tree, request)
        if isinstance(request, Read) and request.watch and not _failed(exchange.answer):
            self.watches[request.path].add(connection)

    def _come_due(self) -> None:
        self._due += 1
        self.catch_up()

    def _apply(self) -> None:
        changes: Changes = self._ensemble.log[self.applied][1]
        self.applied += 1
        for path, node in changes.items():
            before = self.tree.get(path)
            if node is None:
                self.tree.pop(path, None)
            else:
                self.tree[path] = node
            changed = before and (node is None or node.mzxid != before.mzxid)
            if changed and path in self.watches:
                for connection in sorted(self.watches.pop(path), key=lambda each: each.client.name):
                    self._ensemble.tell(connection, partial(connection.client.happened, path))
        for connection in tuple(self.connections):
            self.pump(connection)


class Ensemble:
    """All servers, one of which leads. It is what the checks take for the engine."""

    remembers = False
    recovery = 0.0

    def __init__(self, world: World, swarm: Swarm, clocks: list[tuple[float, float]]) -> None:
        self.world = world
        self.swarm = swarm
        self.ledger: Ledger
        self.tree: dict[str, Node] = {"": Node(b"", 0, 0, 0, 0)}
        self.log: list[tuple[int, Changes]] = []
        self.sessions: dict[int, SessionState] = {}
        self.zxid = 0
        self.epoch = 0
        self.up = True
        self.faulty = True
        self.after_creation: Callable[[Connection], None] = lambda _connection: None
        self.servers = [Server(number, self) for number in range(SERVERS)]
        self._clocks = clocks
        """By how much that of each server is ahead, and how fast it runs."""
        self._leader = 0
        self._stopped = False
        self._backlog: list[Action] = []

    def now(self) -> float:
        """True time: leases end by the clocks of clients."""
        return self.world.now

    @staticmethod
    def true_time(engine_time: float) -> float:
        return engine_time

    @property
    def states(self) -> Any:
        return self.ledger.states

    def stamp(self) -> int:
        ahead, rate = self._clocks[self._leader]
        return int((1_000_000 + ahead + rate * self.world.now) * 1000)

    # From clients.

    def greet(self, connection: Connection) -> None:
        """A client has connected, and says which session it has."""
        server = connection.server
        if not (self.up and server.up) or server.zxid < connection.seen:
            self.tell(connection, partial(connection.client.turned_away, connection))
            return
        epoch = self.epoch
        self.world.after(self.delay(), partial(self._lead, partial(self._admit, epoch, connection)))

    def hear_of(self, connection: Connection) -> None:
        session = self.sessions.get(connection.session)
        if session and connection.open and self.up:
            session.heard_at = self.world.now

    def send(self, connection: Connection, exchange: Exchange) -> None:
        exchange.number, exchange.sent = connection.sent, self.world.now
        connection.sent += 1
        if self.happens(self.swarm.lost_requests * PER_MESSAGE):
            self.world.note("connection lost at", connection.client.name, exchange.request)
            self.cut(connection, reaching=exchange.number)
        connection.outbox.append(exchange)
        delay = connection.requests.delay(self.world.now, self.delay())
        self.world.after(delay, partial(connection.server.receive, connection))

    def cut(self, connection: Connection, *, reaching: float | None = None) -> None:
        """Loses a connection, and perhaps some of what was on its way."""
        if not connection.open:
            return
        random, client = self.world.random, connection.client
        self.ledger.truth.disturb("connection lost", 0.0)
        if reaching is None:
            reaching = random.choice([float("inf"), connection.sent - random.randint(0, 3)])
        connection.reaching = reaching
        connection.open = False
        connection.server.forget(connection)
        if random.random() < self.swarm.resets:
            self.world.after(self.delay(), partial(client.hung_up, connection), client.process)
        else:  # It finds out when its next ping stays without an answer.
            client.process.after(
                client.session_timeout * 2 / 3, partial(client.hung_up, connection)
            )

    # From servers.

    def propose(self, epoch: int, connection: Connection) -> None:
        exchange = connection.forwarded.popleft()
        if epoch == self.epoch:
            self._lead(partial(self._decide, epoch, connection, exchange))

    def reply(self, connection: Connection, exchange: Exchange, zxid: int) -> None:
        if self.happens(self.swarm.lost_replies * PER_MESSAGE):
            self.world.note("connection lost before", connection.client.name, exchange.request)
            self.ledger.truth.sometimes("an answer was lost")
            self.cut(connection)
            return
        self.tell(connection, partial(connection.client.answered, exchange, zxid))

    def tell(self, connection: Connection, message: Callable[[], None]) -> None:
        """Sends something to a client, which reads it when it runs."""
        client = connection.client
        connection.inbox.append(message)
        delay = connection.replies.delay(self.world.now, self.delay())
        self.world.after(delay, partial(client.read, connection), client.process)

    # Faults.

    def stop(self) -> None:
        self._stopped = True

    def resume(self) -> None:
        self._stopped = False
        if self.world.random.random() < 0.5:  # It looks at its clock before it reads what has come.
            for session in tuple(self.sessions.values()):
                self._expire_if_silent(session)
        backlog, self._backlog = self._backlog, []
        for action in backlog:
            self._lead(action)

    def elect(self, *, done: bool) -> None:
        """Another server leads. All connections are lost, and what had not been committed."""
        if not done:
            self.up = False
            self.epoch += 1
            self._stopped = False
            self._backlog = []
            for server in self.servers:
                self.hang_up_all(server)
            return
        self.up = True
        self._leader = self.world.random.randrange(SERVERS)
        for session in self.sessions.values():
            session.heard_at = self.world.now

    def hang_up_all(self, server: Server) -> None:
        for connection in tuple(server.connections):
            self.cut(connection)

    def leave(self, number: int) -> None:
        if session := self.sessions.get(number):
            self._lead(partial(self.expire, session))

    def expire(self, session: SessionState) -> None:
        if session.over:
            return
        session.over = True
        self.world.note("session expires", session.connection.client.name)
        self.ledger.truth.disturb("session expired", 0.0)
        paths = [path for path in session.ephemeral if path in self.tree]
        self.commit(session.number, Forget(tuple(sorted(paths))), None)
        self.cut(session.connection)

    # The leader.

    def commit(self, session: int, request: Writing, client: SimulatedKazoo | None) -> Any:
        """Does what a majority has agreed to."""
        self.zxid += 1
        answer, changes = perform(
            self.tree, request, zxid=self.zxid, stamp=self.stamp(), session=session
        )
        for path, node in changes.items():
            if node is None:
                self.tree.pop(path, None)
            else:
                self.tree[path] = node
                if node.session and node.czxid == self.zxid:
                    self.sessions[node.session].ephemeral.add(path)
        self.log.append((self.zxid, changes))
        for server in self.servers:
            server.commit()
        self.ledger.committed(request, changes, client)
        return answer

    def delay(self) -> float:
        delay = self.swarm.delay * (0.2 + self.world.random.random())
        if self.happens(self.swarm.late * PER_MESSAGE):
            late = self.world.random.random() * self.swarm.latest
            self.ledger.truth.disturb("message late", late)
            delay += late
        return delay

    def happens(self, probability: float) -> bool:
        return self.faulty and probability > 0 and self.world.random.random() < probability

    def _lead(self, action: Action) -> None:
        """Does something now, or when the leader goes on."""
        if self._stopped:
            self._backlog.append(action)
        else:
            action()

    def _admit(self, epoch: int, connection: Connection) -> None:
        if epoch != self.epoch or not connection.open or not connection.server.up:
            return
        client = connection.client
        session = self.sessions.get(connection.session)
        if connection.session and (session is None or session.over):
            self.tell(connection, partial(client.expired, connection))
            return
        if session is None:
            self.zxid += 1
            number = connection.session = self.world.random.getrandbits(60) | 1
            session = SessionState(number, client.session_timeout, connection, self.world.now)
            self.sessions[number] = session
            self._watch_over(session)
        elif session.connection is not connection:
            self.cut(session.connection)  # It has moved: what still comes from there is refused.
        session.connection = connection
        session.heard_at = self.world.now
        connection.server.connections.append(connection)
        self.tell(connection, partial(client.connected, connection))

    def _decide(self, epoch: int, connection: Connection, exchange: Exchange) -> None:
        if epoch != self.epoch:
            return
        session = self.sessions[connection.session]
        if session.over:
            exchange.answer = SessionExpiredError()
        elif session.connection is not connection:
            return
        elif isinstance(exchange.request, Sync):
            exchange.answer = exchange.request.path
        else:
            request: Any = exchange.request
            if exchange.result.ready():
                self.ledger.truth.sometimes("request applied after its sender gave up")
            self.world.note("commits", connection.client.name, request)
            exchange.answer = self.commit(session.number, request, connection.client)
            if is_creation(request) and self.log[-1][1]:
                self.after_creation(connection)
        exchange.answered = True
        exchange.index = len(self.log)
        connection.server.pump(connection)

    def _watch_over(self, session: SessionState) -> None:
        """Ends a session of which nothing was heard for its timeout."""
        if session.over:
            return
        if self.up and not self._stopped:
            self._expire_if_silent(session)
        left = max(session.timeout / 4, session.heard_at + session.timeout - self.world.now)
        self.world.after(left, partial(self._watch_over, session))

    def _expire_if_silent(self, session: SessionState) -> None:
        if self.world.now >= session.heard_at + session.timeout:
            self.expire(session)


def is_creation(request: Request) -> bool:
    return isinstance(request, Multi) or (isinstance(request, Create) and request.sequence)


def _is_for_leader(request: Request) -> bool:
    return isinstance(request, Writing | Sync)


def _failed(answer: Any) -> bool:
    return isinstance(answer, Exception)
