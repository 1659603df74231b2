"""The network: connections that keep their order, and messages that are late, lost or repeated."""

from __future__ import annotations

from functools import partial
from typing import Any, Protocol

from weblock._core.ports import CheckAgain, Granted, Switchboard
from weblock.errors import EngineUnavailable

from .engine import EngineServer, Release, Request
from .process import Process, Signal
from .swarm import Swarm
from .world import World


class Log(Protocol):
    """Who is told what becomes of messages."""

    def disturb(self, what: str, lasting: float) -> None: ...

    def sent(self, process: Process, request: Request) -> None: ...

    def sometimes(self, what: str) -> None: ...

    def reply_lost(self, request: Request, replies: list[Any]) -> None: ...

    def notification_lost(self, owner: str) -> None: ...

    def answered(self, request: Request, replies: list[Any]) -> None: ...


class Line:
    """One direction of a connection: no message overtakes another."""

    __slots__ = ("_clear_at",)

    def __init__(self) -> None:
        self._clear_at = 0.0

    def delay(self, now: float, delay: float) -> float:
        self._clear_at = max(self._clear_at, now + delay)
        return self._clear_at - now


class Connection:
    __slots__ = ("replies", "requests")

    def __init__(self) -> None:
        self.requests = Line()
        self.replies = Line()


class Exchange:
    """One request, and what its sender knows of it."""

    __slots__ = ("abandoned", "connection", "process", "replies", "request", "signal")

    def __init__(self, process: Process, connection: Connection, request: Request) -> None:
        self.process = process
        self.connection = connection
        self.request = request
        self.signal = Signal()
        self.replies: list[Any] | None = None
        self.abandoned = False

    @property
    def over(self) -> bool:
        return self.abandoned or self.signal.fired


class Network:
    """Carries requests to the engine, replies and notifications to the processes."""

    def __init__(self, world: World, swarm: Swarm) -> None:
        self.faulty = True
        self._world = world
        self._swarm = swarm
        self._switchboards: dict[str, tuple[Process, Switchboard, Line]] = {}

    def connect(self, engine: EngineServer, log: Log) -> None:
        self._engine = engine
        self._log = log

    def join(self, process: Process, switchboard: Switchboard) -> None:
        self._switchboards[process.name] = process, switchboard, Line()

    def send(self, exchange: Exchange) -> None:
        swarm, world = self._swarm, self._world
        world.note("sends", exchange.process.name, exchange.request)
        self._log.sent(exchange.process, exchange.request)
        if self._happens(swarm.lost_requests):
            world.note("request lost", exchange.process.name)
            self._lose(exchange)
            return
        delay = exchange.connection.requests.delay(world.now, self._delay())
        world.after(delay, partial(self._engine.receive, partial(self._arrive, exchange)))
        if not self._engine.up:
            self._lose(exchange)

    def notify(self, process: str, owner: str, granted: Granted) -> None:
        """Tells a waiter of its lease: at most once."""
        world = self._world
        if self._happens(self._swarm.lost_notifications):
            world.note("notification lost", owner)
            self._log.notification_lost(owner)
            return
        receiver, switchboard, line = self._switchboards[process]
        notification = partial(self._notify, switchboard, owner, granted)
        world.after(line.delay(world.now, self._delay()), notification, receiver)

    def tell_of_a_death(self) -> None:
        """Every waiter that can be reached asks again, as where an engine notices deaths."""
        for process, switchboard, line in self._switchboards.values():
            notification = partial(switchboard.notify_all, CheckAgain())
            self._world.after(line.delay(self._world.now, self._delay()), notification, process)

    def _notify(self, switchboard: Switchboard, owner: str, granted: Granted) -> None:
        self._world.note("notifies", owner, granted)
        switchboard.notify(owner, granted)

    def _arrive(self, exchange: Exchange) -> None:
        if exchange.over:
            self._log.sometimes("request applied after its sender gave up")
        self._world.note("serves", exchange.request)
        replies = self._engine.serve(exchange.request)
        if self._happens(self._swarm.duplicates):
            self._log.sometimes("request applied twice")
            again = self._engine.serve(exchange.request)
            # A release that is repeated finds nothing: its first answer is the one that counts.
            replies = replies if isinstance(exchange.request, Release) else again
        unknown = any(isinstance(reply, EngineUnavailable) for reply in replies)
        if self._happens(self._swarm.lost_replies) or unknown:
            self._world.note("reply lost", exchange.process.name, replies)
            self._log.reply_lost(exchange.request, replies)
            self._lose(exchange)
            return
        deliver = partial(self._deliver, exchange, replies)
        delay = exchange.connection.replies.delay(self._world.now, self._delay())
        self._world.after(delay, deliver, exchange.process)

    def _deliver(self, exchange: Exchange, replies: list[Any]) -> None:
        if exchange.over:
            self._log.sometimes("reply came after its asker gave up")
            return
        self._world.note("replies", exchange.process.name, replies)
        self._log.answered(exchange.request, replies)
        exchange.replies = replies
        exchange.signal.fire()

    def _lose(self, exchange: Exchange) -> None:
        """The connection may be reset, which its client sees; else it waits in vain."""
        self._log.disturb("message lost", self._swarm.op_timeout)
        if self._world.random.random() < self._swarm.resets:
            self._world.after(self._delay(), exchange.signal.fire, exchange.process)

    def _delay(self) -> float:
        delay = self._swarm.delay * (0.2 + self._world.random.random())
        if self._happens(self._swarm.late):
            delay += self._world.random.random() * self._swarm.latest
            self._log.disturb("message late", delay)
        return delay

    def _happens(self, probability: float) -> bool:
        return self.faulty and probability > 0 and self._world.random.random() < probability
