"""What the adapters cost a web application that has nothing else to do."""

from __future__ import annotations

import selectors
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from statistics import median
from typing import Self

from . import machine
from .measuring import Case, Effort
from .report import Findings, Goal, Line
from .web_apps import APPS, WebApp, serve

CONNECTIONS = 8
"""So many requests are under way at once, each for an item of its own."""

_SCHEDULED = 2  # Linux's number for the clock of the time that a process was on a CPU.


def web(effort: Effort) -> Iterator[Findings]:
    """Requests of a trivial endpoint on uvicorn: bare, with the adapters, and with a lock."""
    with ExitStack() as stack:
        servers = {app.name: stack.enter_context(UvicornServer(app)) for app in APPS}
        for server in servers.values():
            server.measure(0.2)  # imports and opens everything
            server.slices.clear()
        for _ in range(effort.rounds):
            for server in servers.values():
                server.slices.append(server.measure(effort.slice))
        yield _findings(effort, servers)


CASES: dict[str, Case] = {"web": web}


@dataclass(frozen=True)
class _Slice:
    requests: int
    seconds: float
    on_cpu: float
    """Seconds that the server spent on a CPU."""


@dataclass
class UvicornServer:
    """A process that serves one application, and connections to it that are kept busy."""

    app: WebApp
    slices: list[_Slice] = field(default_factory=list)

    def __enter__(self) -> Self:
        self._stack = ExitStack()
        ours, theirs = machine.processes.Pipe()
        process = machine.processes.Process(target=serve, args=(self.app, theirs))
        self._stack.enter_context(machine.ended([process]))
        process.start()
        address = ("127.0.0.1", ours.recv())
        assert process.pid
        self._clock = ~process.pid << 3 | _SCHEDULED
        self._selector = self._stack.enter_context(selectors.DefaultSelector())
        for number in range(CONNECTIONS):
            connection = self._stack.enter_context(socket.create_connection(address))
            request = f"GET /items/{number} HTTP/1.1\r\nHost: shop\r\n\r\n".encode()
            self._selector.register(connection, selectors.EVENT_READ, request)
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stack.close()

    def measure(self, seconds: float) -> _Slice:
        """Keeps all connections busy, with one request each."""
        on_cpu, start = time.clock_gettime(self._clock), time.monotonic()
        for key in self._selector.get_map().values():
            self._send(key)
        requests, under_way = 0, CONNECTIONS
        while under_way:
            go_on = time.monotonic() < start + seconds
            for key, _ in self._selector.select():
                self._read(key)
                requests += 1
                if go_on:
                    self._send(key)
                else:
                    under_way -= 1
        elapsed = time.monotonic() - start
        return _Slice(requests, elapsed, time.clock_gettime(self._clock) - on_cpu)

    def rates_on_cpu(self) -> list[float]:
        """Requests for each second that the server spent on a CPU, slice by slice."""
        return [each.requests / each.on_cpu for each in self.slices]

    def _send(self, key: selectors.SelectorKey) -> None:
        assert isinstance(key.fileobj, socket.socket)
        key.fileobj.sendall(key.data)

    def _read(self, key: selectors.SelectorKey) -> None:
        assert isinstance(key.fileobj, socket.socket)
        answer = b""
        while not answer.endswith(b"}"):
            part = key.fileobj.recv(4096)
            if not part:
                raise RuntimeError(f"{self.app.name} has closed a connection")
            answer += part
        if not answer.startswith(b"HTTP/1.1 200 "):
            raise RuntimeError(f"{self.app.name} has answered {answer[:200]!r}")


def _findings(effort: Effort, servers: dict[str, UvicornServer]) -> Findings:
    lines = []
    for server in servers.values():
        rates = [each.requests / each.seconds for each in server.slices]
        costs = [1e6 * each.on_cpu / each.requests for each in server.slices]
        figures = [f"{median(rates):,.0f}", f"{median(costs):.0f}", ""]
        goals = []
        if server.app.bare:
            bare = servers[server.app.bare]
            # On a machine that does other things too, seconds on a CPU are what can be compared.
            share = effort.ratio(server.rates_on_cpu(), bare.rates_on_cpu())
            figures[2] = f"{share:.3f}"
            goals = [Goal.at_least(server.app.goal, share, "")] if server.app.goal else []
        lines.append(Line(server.app.name, figures, None, goals))
    heads = ["requests/s", "µs of CPU a request", "requests a CPU second, of bare"]
    return Findings("Requests of a trivial endpoint, one uvicorn process", heads, lines)
