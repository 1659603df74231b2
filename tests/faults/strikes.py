"""The faults, by where they strike."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping, Sequence

from tests.servers import Cluster, SentinelDeployment, Server
from tests.servers.proxy import Direction, Proxy, Then

from .rig import TTL, Workers

Strikes = Mapping[str, Callable[[], object]]


def on_workers(workers: Workers) -> Strikes:
    """What happens to those who hold and wait."""
    return {
        "kill -9 of a process": workers.kill_one,
        "SIGSTOP of a process beyond its ttl": lambda: workers.stop_one(1.5 * TTL),
        "SIGSTOP of a process for half its ttl": lambda: workers.stop_one(0.5 * TTL),
    }


def on_server(server: Server) -> Strikes:
    """What happens to a server and to its connections; nothing of it loses data."""

    def stop(lasting: float) -> None:
        server.stop()
        time.sleep(lasting)
        server.cont()

    def flush_scripts() -> None:
        for _ in range(20):
            server.command("SCRIPT", "FLUSH")
            time.sleep(0.02)

    def fill_memory() -> None:
        server.command("CONFIG", "SET", "maxmemory", "1")
        time.sleep(TTL)
        server.command("CONFIG", "SET", "maxmemory", "0")

    return {
        "SCRIPT FLUSH, again and again": flush_scripts,
        "CLIENT KILL of all": lambda: server.command(
            "CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"
        ),
        "CLIENT KILL of the subscribers": lambda: server.command(
            "CLIENT", "KILL", "TYPE", "pubsub"
        ),
        "CLIENT PAUSE beyond the ttl": lambda: server.command(
            "CLIENT", "PAUSE", round(1.5 * TTL * 1000)
        ),
        "SIGSTOP of the server for half the ttl": lambda: stop(0.5 * TTL),
        "SIGSTOP of the server for two ttl": lambda: stop(2 * TTL),
        "full memory": fill_memory,
    }


def on_data(server: Server) -> Strikes:
    """How a server forgets; it must recover for a ttl."""
    return {
        "FLUSHALL": lambda: server.command("FLUSHALL"),
        "restart with data": lambda: server.restart(keep_data=True),
        "restart without data": lambda: server.restart(keep_data=False),
    }


def on_network(proxy: Proxy) -> Strikes:
    """What happens between them."""

    def frozen(direction: Direction) -> None:
        proxy.freeze(direction)
        time.sleep(1.5 * TTL)
        proxy.heal()

    def replies_dropped(then: Then) -> None:
        for k in (1, 2, 3, 5):
            proxy.drop_reply(k, then=then).wait()

    return {
        "all is 30 ms late": lambda: proxy.delay(30),
        "all is well": proxy.heal,
        "replies lost, connections closed": lambda: replies_dropped("close"),
        "replies lost in silence": lambda: replies_dropped("silence"),
        "a request lost": lambda: proxy.drop_request(2).wait(),
        "replies frozen": lambda: frozen("replies"),
        "requests frozen": lambda: frozen("requests"),
        "half-closed by the client": lambda: proxy.half_close("requests"),
        "half-closed by the server": lambda: proxy.half_close("replies"),
        "reset": proxy.reset,
        "byte by byte": lambda: proxy.drip("replies"),
        "all is well again": proxy.heal,
    }


def on_sentinels(deployment: SentinelDeployment) -> Strikes:
    """How a master is replaced."""
    return {"SENTINEL FAILOVER": deployment.failover}


def on_cluster(cluster: Cluster, slot: int) -> Strikes:
    """What happens to the slot where the key is."""
    return {
        "CLUSTER FAILOVER": lambda: cluster.failover(slot),
        "the slot moves": lambda: cluster.migrate(slot),
    }


def on_quorum(servers: Sequence[Server]) -> Strikes:
    """What happens to one of several servers at a time, each time to the next."""
    turns = itertools.cycle(servers)

    def down(lasting: float) -> None:
        server = next(turns)
        server.kill()
        time.sleep(lasting)
        server.start()

    def stop(lasting: float) -> None:
        server = next(turns)
        server.stop()
        time.sleep(lasting)
        server.cont()

    def pause() -> None:
        next(turns).command("CLIENT", "PAUSE", round(1.5 * TTL * 1000))
        time.sleep(1.5 * TTL)

    def restart(*, keep_data: bool) -> None:
        next(turns).restart(keep_data=keep_data)

    return {
        "kill -9 of a server, which is back soon": lambda: down(0.3 * TTL),
        "kill -9 of a server, which is back after two ttl": lambda: down(2 * TTL),
        "SIGSTOP of a server for half the ttl": lambda: stop(0.5 * TTL),
        "SIGSTOP of a server for two ttl": lambda: stop(2 * TTL),
        "CLIENT PAUSE beyond the ttl": pause,
        "restart with data": lambda: restart(keep_data=True),
        "restart without data": lambda: restart(keep_data=False),
        "restart of one without data, and then of the next": lambda: (
            restart(keep_data=False),
            restart(keep_data=False),
            stop(0.5 * TTL),
        ),
        "FLUSHALL": lambda: next(turns).command("FLUSHALL"),
    }


def slot_in_use(cluster: Cluster) -> int:
    """The slot of the only key."""
    for node in cluster.nodes[:3]:
        for name in node.client().scan_iter("*:lock:*"):
            slot: int = node.command("CLUSTER", "KEYSLOT", name)
            return slot
    raise LookupError("no key is in use")
