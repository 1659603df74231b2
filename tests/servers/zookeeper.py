"""ZooKeeper servers: alone, or several that agree."""

from __future__ import annotations

import atexit
import socket
import tempfile
import threading
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlencode

from tests.support.urls import ANSWERED
from tests.support.waiting import PATIENCE

from .debian import program
from .ports import free_port
from .process import Running, spawn
from .proxy import Listener, Proxy

TICK = 0.2
"""Seconds of ZooKeeper's unit of time: no session is shorter than two of them."""

_JAR = Path("/usr/share/java/zookeeper.jar")

# Small and quick to start. Nothing here survives the machine, so nothing need reach its disk.
_JAVA = (
    *("-Xmx64m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto"),
    *("-Dzookeeper.forceSync=no", "-Dzookeeper.admin.enableServer=false"),
)


class ZooKeeper(Running):
    """One server on a free port of loopback, with its data in a temporary folder."""

    def __init__(
        self,
        *,
        number: int = 0,
        members: str = "",
        port: int | None = None,
        patience: float = 25 * TICK,
    ) -> None:
        self._patience = patience
        self.port = port or free_port()
        self.folder = Path(tempfile.mkdtemp(prefix="weblock-zookeeper-"))
        self._number = number
        self._members = members
        program("zkServer.sh", "zookeeper", "default-jre-headless")

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def begin(self) -> None:
        """Starts it, and does not wait for it."""
        data = self.folder / "data"
        data.mkdir(exist_ok=True)
        (data / "myid").write_text(str(self._number))
        config = {
            "dataDir": data,
            "clientPort": self.port,
            "clientPortAddress": "127.0.0.1",
            "tickTime": int(TICK * 1000),
            "initLimit": 50,
            "syncLimit": round(self._patience / TICK),
            "maxClientCnxns": 0,
            "maxSessionTimeout": 60_000,
            "4lw.commands.whitelist": "*",
        }
        lines = "".join(f"{key}={value}\n" for key, value in config.items())
        (self.folder / "zoo.cfg").write_text(lines + self._members)
        main = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
        java = program("java", "default-jre-headless")
        self._process = spawn(
            [java, *_JAVA, "-cp", _JAR, main, self.folder / "zoo.cfg"], log=self.folder / "log"
        )

    def start(self) -> Self:
        self.begin()
        self.wait_until_up()
        return self

    def wait_until_up(self) -> None:
        give_up_at = time.monotonic() + PATIENCE
        while not self.mode:
            assert self.alive, (self.folder / "log").read_text(errors="replace")[-3000:]
            assert time.monotonic() < give_up_at, "the server does not answer"
            time.sleep(0.02)

    @property
    def mode(self) -> str:
        """``standalone``, ``leader`` or ``follower``; nothing while it does not serve."""
        answer = self.ask("srvr")
        return answer.partition("Mode: ")[2].partition("\n")[0]

    def ask(self, word: str) -> str:
        """The answer to one of ZooKeeper's four letter words; nothing if there is none."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=2) as sock:
                sock.sendall(word.encode())
                return b"".join(iter(lambda: sock.recv(65536), b"")).decode()
        except OSError:
            return ""

    def restart(self) -> None:
        """Kills it and starts it again, with its data."""
        self.kill()
        self.start()

    def __enter__(self) -> Self:
        return self.start()


class Ensemble:
    """Three servers that agree: they serve while two of them can talk to one another.

    The last leads, at first. With ``link``, the first reaches it through a proxy of that name. (Not
    for elections: a proxy also listens for a leader that does not listen yet.)
    """

    def __init__(self, *, link: bool = False) -> None:
        clients, peers, elections = ([free_port() for _ in range(3)] for _ in range(3))
        self.link = Proxy(Listener(peers[2])) if link else None
        seen = [*peers[:2], self.link.port if self.link else peers[2]]
        # One that is cut off goes on serving its clients, for as long as a test may take.
        patience = {"patience": PATIENCE} if link else {}
        self.servers = [
            ZooKeeper(number=number, members=_members(peers, elections), port=port, **patience)
            for number, (port, peers) in enumerate(zip(clients, (seen, peers, peers), strict=True))
        ]

    @property
    def address(self) -> str:
        return ",".join(server.address for server in self.servers)

    @property
    def first(self) -> ZooKeeper:
        """The one at the end of the link."""
        return self.servers[0]

    def leader(self) -> ZooKeeper:
        """The leader, as soon as there is one."""
        give_up_at = time.monotonic() + PATIENCE
        while time.monotonic() < give_up_at:
            for server in self.servers:
                if server.alive and server.mode == "leader":
                    return server
            time.sleep(0.02)
        raise AssertionError("the servers have not chosen a leader")

    def start_the_dead(self) -> None:
        """Starts those that were killed, and waits until they serve."""
        for server in self.servers:
            if not server.alive:
                server.start()

    def __enter__(self) -> Self:
        for server in reversed(self.servers):
            if server is self.first:
                self.leader()  # Chosen by the other two.
            server.begin()
        for server in self.servers:
            server.wait_until_up()
        return self

    def __exit__(self, *exc_info: object) -> None:
        for server in self.servers:
            server.close()
        if self.link:
            self.link.close()


def _members(peers: Sequence[int], elections: Sequence[int]) -> str:
    return "".join(
        f"server.{number}=127.0.0.1:{peer}:{election}\n"
        for number, (peer, election) in enumerate(zip(peers, elections, strict=True))
    )


_guard = threading.Lock()
_shared: list[ZooKeeper] = []


def shared_zookeeper() -> ZooKeeper:
    """A server that all tests of this process may use, each in a part of its own."""
    with _guard:
        if not _shared:
            server = ZooKeeper()
            atexit.register(server.close)
            _shared.append(server.start())
        return _shared[0]


def fresh_zookeeper(address: str = "", **query: Any) -> str:
    """The URL of an engine that nobody has used; on the shared server unless told otherwise."""
    where = address or shared_zookeeper().address
    options = urlencode({"session_timeout": 2, "timeout": ANSWERED["timeout"], **query})
    return f"zookeeper://{where}/{uuid.uuid4().hex}?{options}"
