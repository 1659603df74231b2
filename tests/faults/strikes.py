"""The faults, by where they strike."""

from __future__ import annotations

import fcntl
import itertools
import os
import resource
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from tests.servers import Cluster, Memcached, Postgres, SentinelDeployment, Server
from tests.servers.cluster import SLOTS
from tests.servers.proxy import Direction, Proxy, Then
from tests.servers.zookeeper import Ensemble, ZooKeeper
from weblock.keys import qualified
from weblock.stores.file.records import file_of

from .rig import TTL, Workers
from .worker import KEY

Strikes = Mapping[str, Callable[[], object]]


def on_workers(workers: Workers) -> Strikes:
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
        "a few bytes at a time": lambda: proxy.drip("replies"),
        "all is well again": proxy.heal,
    }


def on_sentinels(deployment: SentinelDeployment) -> Strikes:
    """How a master is replaced, and what happens to those who tell."""

    def silence() -> None:
        silent = deployment.sentinels[1:]
        for each in silent:
            each.stop()
        time.sleep(2 * TTL)
        for each in silent:
            each.cont()

    return {
        "SENTINEL FAILOVER": deployment.failover,
        "SIGSTOP of two Sentinels for two ttl": silence,
    }


def on_cluster(cluster: Cluster, slot: int) -> Strikes:
    """What happens to the slot where the key is, and to masters."""
    parts = {"the lock": (":lock:",)}
    if "WEBLOCK_LONG" in os.environ:  # Each part is taken over in test_redis_half_moved.py.
        parts |= {"nothing": (), "the epoch": (":epoch",), "all": ("",)}

    def half_move(part: Sequence[str]) -> None:
        move = cluster.begin_move(slot)
        for each in part:
            move.take_along(each)
        time.sleep(2 * TTL)
        move.take_along()
        move.end()

    def hang(of: int) -> None:
        master = cluster.master_of(of)
        master.stop()
        time.sleep(2 * TTL)
        master.cont()

    return {
        "CLUSTER FAILOVER": lambda: cluster.failover(slot),
        "the slot moves": lambda: cluster.migrate(slot),
        **{
            f"the slot stays half-moved for two ttl, {name} over": partial(half_move, part)
            for name, part in parts.items()
        },
        "SIGSTOP of another master for two ttl": lambda: hang((slot + SLOTS // 3) % SLOTS),
        "SIGSTOP of its master for two ttl": lambda: hang(slot),
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


def on_files(folder: Path, workers: Workers) -> Strikes:
    """What happens to the directory of ``file://``, and to processes that run out of descriptors.

    Who deletes or moves the directory voids the leases in it: until their holders renew, they
    overlap with the next ones, which the checkers are told of.
    """
    record = folder / f"records-{file_of(qualified('default', KEY)):02d}"

    def lose(away: Callable[[], object]) -> None:
        with workers.losing_leases():
            away()

    def delete() -> None:
        with suppress(OSError):  # Something was made there meanwhile.
            shutil.rmtree(folder)

    def move_away() -> None:
        moved = folder.with_name("moved")
        shutil.rmtree(moved, ignore_errors=True)
        folder.rename(moved)

    def remove_sockets() -> None:
        for each in folder.glob("*.bell"):
            each.unlink(missing_ok=True)

    def keep_locked(lasting: float) -> None:
        with record.open("r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            time.sleep(lasting)

    def run_out_of_descriptors(lasting: float) -> None:
        with _no_more_descriptors(workers.begun()):
            time.sleep(lasting)

    return {
        "the directory is deleted": lambda: lose(delete),
        "the directory is moved away": lambda: lose(move_away),
        "the record file is deleted": lambda: lose(lambda: record.unlink(missing_ok=True)),
        "the sockets are deleted": remove_sockets,
        "the record file is kept locked for half the ttl": lambda: keep_locked(0.5 * TTL),
        "the record file is kept locked for two ttl": lambda: keep_locked(2 * TTL),
        "all run out of descriptors for half the ttl": lambda: run_out_of_descriptors(0.5 * TTL),
        "all run out of descriptors for two ttl": lambda: run_out_of_descriptors(2 * TTL),
    }


@contextmanager
def _no_more_descriptors(pids: Sequence[int]) -> Iterator[None]:
    """Has processes keep those that they have, and get no other."""
    limits = {pid: resource.prlimit(pid, resource.RLIMIT_NOFILE) for pid in pids}
    try:
        for pid, (_, hard) in limits.items():
            used = {int(each.name) for each in Path(f"/proc/{pid}/fd").iterdir()}
            first_free = next(fd for fd in itertools.count() if fd not in used)
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (first_free, hard))
        yield
    finally:
        for pid, limit in limits.items():
            if Path(f"/proc/{pid}").exists():
                resource.prlimit(pid, resource.RLIMIT_NOFILE, limit)


def on_memcached(server: Memcached) -> Strikes:
    """A memcached that hangs, and one that forgets everything."""

    def stop(lasting: float) -> None:
        server.stop()
        time.sleep(lasting)
        server.cont()

    def restart(after: float) -> None:
        server.kill()
        time.sleep(after)
        server.start()

    return {
        "SIGSTOP of the server for half the ttl": lambda: stop(0.5 * TTL),
        "SIGSTOP of the server for two ttl": lambda: stop(2 * TTL),
        "restart, which loses all": lambda: restart(0),
        "restart after two ttl, which loses all": lambda: restart(2 * TTL),
        "flush_all": lambda: server.ask(b"flush_all"),
    }


def on_postgres(server: Postgres) -> Strikes:
    def crash(lasting: float) -> None:
        server.kill()
        time.sleep(lasting)
        server.start()

    def stop(lasting: float) -> None:
        server.stop()
        time.sleep(lasting)
        server.cont()

    def disconnect() -> None:
        others = "FROM pg_stat_activity WHERE application_name = 'weblock'"
        server.execute(f"SELECT pg_terminate_backend(pid) {others}")

    return {
        "kill -9 of the server": lambda: crash(0),
        "kill -9 of the server for two ttl": lambda: crash(2 * TTL),
        "SIGSTOP of the server for half the ttl": lambda: stop(0.5 * TTL),
        "SIGSTOP of the server for two ttl": lambda: stop(2 * TTL),
        "pg_terminate_backend of all": disconnect,
    }


def on_zookeeper(ensemble: Ensemble) -> Strikes:
    """What happens to one of three servers at a time: to the leader, or to one that follows."""
    turns = itertools.count()

    def follower() -> ZooKeeper:
        leader = ensemble.leader()
        others = [server for server in ensemble.servers if server is not leader]
        return others[next(turns) % 2]

    def down(server: ZooKeeper, lasting: float) -> None:
        server.kill()
        time.sleep(lasting)
        server.start()

    def stop(server: ZooKeeper, lasting: float) -> None:
        server.stop()
        time.sleep(lasting)
        server.cont()

    return {
        "kill -9 of the leader": lambda: down(ensemble.leader(), 0.3 * TTL),
        "kill -9 of the leader, which is back after two ttl": lambda: down(
            ensemble.leader(), 2 * TTL
        ),
        "kill -9 of a follower": lambda: down(follower(), 0.3 * TTL),
        "SIGSTOP of the leader for half the ttl": lambda: stop(ensemble.leader(), 0.5 * TTL),
        # For so long that the others surely have another by then. One that stands still for just as long as
        # they wait for it (syncLimit) may have them back at once, and then commits nothing any more, for good:
        # so it was with ZooKeeper 3.8.0.
        "SIGSTOP of the leader for ten ttl": lambda: stop(ensemble.leader(), 10 * TTL),
        "SIGSTOP of a follower for two ttl": lambda: stop(follower(), 2 * TTL),
    }


def slot_in_use(cluster: Cluster) -> int:
    for node in cluster.nodes[:3]:
        for name in node.client().scan_iter("*:lock:*"):
            slot: int = node.command("CLUSTER", "KEYSLOT", name)
            return slot
    raise LookupError("no key is in use")
