"""Where the time of a section and of a request goes: the bytecodes that each package runs for it.

No other work on the machine moves these counts. What is written in C, such as system calls and the
parsers of replies, does not show in them, and neither does what the server does.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, Final

from tests.servers import Postgres, Server

from . import contenders as peers
from . import machine
from .contenders import Asyncio, Contender, Peer, Target
from .measuring import Case, Effort
from .report import Findings
from .web import APPS

TIMES: Final = 10
"""So many sections are counted, once as many have warmed everything up."""

PLACES: Final = {
    "/weblock/_core/": "core",
    "/weblock/stores/": "engine",
    "/weblock/contrib/": "adapter",
    "/weblock/": "interface",
    "/site-packages/": "libraries",
    "": "Python",
}
"""What a column counts, by a part of the file's path; the first one that matches."""

COMPARED: Final[dict[str, Sequence[Peer]]] = {
    "memory": (),
    "file": (peers.FILELOCK, peers.FILELOCK_ASYNCIO),
    "Redis": (peers.RAW, peers.RAW_ASYNCIO, peers.REDIS_PY, peers.REDIS_PY_ASYNCIO),
    "Redlock": (peers.REDLOCK_PY, peers.POTTERY_ASYNCIO),
    "PostgreSQL": (peers.ADVISORY, peers.GRELMICRO),
}


@dataclass
class Counts:
    """The bytecodes that this thread runs while they are counted, and threads that start meanwhile."""

    found: Counter[str] = field(default_factory=Counter)
    _on: bool = False

    @contextmanager
    def counted(self, *, on: bool) -> Iterator[None]:
        """Counts within this, unless it is the time to warm up."""
        self._on = on
        threading.settrace(self._trace)
        sys.settrace(self._trace)
        try:
            yield
        finally:
            sys.settrace(None)
            threading.settrace(None)

    def row(self, name: str) -> list[str]:
        """Return how many each place has run in a section, and all together."""
        figures = [self.found[place] / TIMES for place in PLACES.values()]
        return [name, *(f"{each:,.0f}" if each else "" for each in (*figures, sum(figures)))]

    def _trace(self, frame: FrameType, event: str, _argument: Any) -> Any:
        frame.f_trace_opcodes = True
        if self._on and event == "opcode":
            path = frame.f_code.co_filename
            self.found[next(name for part, name in PLACES.items() if part in path)] += 1
        return self._trace


def instructions(_effort: Effort) -> Iterator[Findings]:
    """Bytecodes of a section that nobody else wants, and of a request."""
    with ExitStack() as stack:
        ports = [stack.enter_context(Server()).port for _ in range(3)]
        postgres = stack.enter_context(Postgres())
        folder = stack.enter_context(machine.scratch())
        runner = stack.enter_context(asyncio.Runner())
        targets = {
            "memory": Target(engine="memory"),
            "file": Target(engine="file"),
            "Redis": Target(tuple(ports[:1])),
            "Redlock": Target(tuple(ports)),
            "PostgreSQL": Target((postgres.port,), engine="postgresql"),
        }
        rows = [
            _of_section(peer.at(target), folder, runner).row(f"{where}: {peer.name}")
            for where, target in targets.items()
            for peer in (peers.WEBLOCK, peers.WEBLOCK_ASYNCIO, *COMPARED[where])
            if peer.installed
        ]
        rows += [runner.run(_of_request(app.make())).row(app.name) for app in APPS]
    title = "Bytecodes of a section that nobody else wants, and of a request"
    yield Findings(title, [*PLACES.values(), "all"], rows)


CASES: dict[str, Case] = {"instructions": instructions}


def _of_section(contender: Contender, folder: Path, runner: asyncio.Runner) -> Counts:
    if isinstance(contender, Asyncio):
        return runner.run(_of_asyncio_section(contender, folder))
    counts, section = Counts(), contender.open(folder)
    for counting in (False, True):
        with counts.counted(on=counting):
            for _ in range(TIMES):
                with section():
                    pass
    return counts


async def _of_asyncio_section(contender: Asyncio, folder: Path) -> Counts:
    counts, section = Counts(), contender.open(folder)
    for counting in (False, True):
        with counts.counted(on=counting):
            for _ in range(TIMES):
                async with section():
                    pass
    return counts


async def _of_request(app: Any) -> Counts:
    path = "/items/1"
    scope: dict[str, Any] = {"type": "http", "method": "GET", "path": path, "headers": []}
    scope |= {"raw_path": path.encode(), "query_string": b"", "root_path": "", "scheme": "http"}
    never = asyncio.Event()

    async def send(_message: Any) -> None:
        pass

    counts = Counts()
    for counting in (False, True):
        with counts.counted(on=counting):
            for _ in range(TIMES):
                body = iter([{"type": "http.request", "body": b"", "more_body": False}])

                async def receive(body: Iterator[Any] = body) -> Any:
                    return next(body, None) or await never.wait()  # The client stays connected.

                await app({**scope}, receive, send)
    return counts
