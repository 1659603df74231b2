"""A master, its replicas, and the Sentinels that watch them."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from typing import Any, Self
from urllib.parse import urlencode

import redis

from tests.support.urls import ANSWERED
from tests.support.waiting import eventually

from .single import Server

SERVICE = "mymaster"


class SentinelDeployment:
    """One master with two replicas, and three Sentinels that notice its end in half a second."""

    def __init__(self, name: str | None = None) -> None:
        self._stack = ExitStack()
        first = self._stack.enter_context(Server(name, repl_diskless_sync_delay=0))
        self.servers = [first]
        for _ in range(2):
            replica = Server(name, replicaof=("127.0.0.1", first.port), repl_diskless_sync_delay=0)
            self.servers.append(self._stack.enter_context(replica))
        self.sentinels = [self._sentinel(name, first) for _ in range(3)]
        eventually(self._converged, despite=redis.RedisError)

    def url(self, **query: Any) -> str:
        """Its URL, with options of the engine as ``Server.url`` has them."""
        hosts = ",".join(f"127.0.0.1:{sentinel.port}" for sentinel in self.sentinels)
        return f"redis+sentinel://{hosts}/{SERVICE}?{urlencode({**ANSWERED, **query})}"

    def master(self) -> Server:
        """The server that the first Sentinel that lives takes for the master."""
        return self._named_by(next(each for each in self.sentinels if each.alive))

    def failover(self) -> Server:
        """Has the Sentinels promote another; returns the new master when all agree."""
        old = self.master()
        eventually(partial(self._asked_to_replace, old), despite=redis.RedisError)
        return self._new_master(old)

    def _asked_to_replace(self, old: Server) -> bool:
        """Whether the first Sentinel names another master, or else ask it once more to promote one.

        It refuses while the last time is not quite over, and on a busy machine it may give up halfway.
        """
        asked = self.sentinels[0]
        if self._named_by(asked) is old:
            asked.command("SENTINEL", "FAILOVER", SERVICE)
        return self._named_by(asked) is not old

    def kill_master(self) -> Server:
        """Kills the master; returns the new one when there is one."""
        old = self.master()
        old.kill()
        return self._new_master(old)

    def _new_master(self, old: Server) -> Server:
        eventually(lambda: self._agreed() not in (None, old), despite=redis.RedisError)
        return self.master()

    def _agreed(self) -> Server | None:
        """The master, if all Sentinels that live name it, and it knows that it is."""
        named = {self._named_by(each) for each in self.sentinels if each.alive}
        return named.pop() if len(named) == 1 and _role(*named) == "master" else None

    def _named_by(self, sentinel: Server) -> Server:
        _host, port = sentinel.command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", SERVICE)
        return next(server for server in self.servers if server.port == int(port))

    def _sentinel(self, name: str | None, master: Server) -> Server:
        return self._stack.enter_context(
            Server(
                name,
                sentinel=[
                    f"monitor {SERVICE} 127.0.0.1 {master.port} 2",
                    f"down-after-milliseconds {SERVICE} 500",
                    f"failover-timeout {SERVICE} 3000",
                ],
            )
        )

    def _converged(self) -> bool:
        links = [
            server.client().info("replication").get("master_link_status")
            for server in self.servers[1:]
        ]
        return links == ["up", "up"] and all(_knows_all(each) for each in self.sentinels)

    def close(self) -> None:
        self._stack.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


def _role(server: Server) -> str:
    role: str = server.command("ROLE")[0]
    return role


def _knows_all(sentinel: Server) -> bool:
    with sentinel.client() as client:
        facts = client.sentinel_master(SERVICE)
    return (int(facts["num-slaves"]), int(facts["num-other-sentinels"])) == (2, 2)
