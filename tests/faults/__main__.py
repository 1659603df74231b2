"""The soak: faults at random for as long as one likes. ``scripts/soak --help`` says more."""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tests.servers import Cluster, Memcached, Postgres, SentinelDeployment, Server
from tests.servers.proxy import Proxy
from tests.servers.zookeeper import Ensemble, fresh_zookeeper

from . import strikes
from .rig import DURABLE, OF_A_QUORUM, SOON, TTL, Workers
from .worker import MIXED


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0, help="how long (10)")
    parser.add_argument("--seed", type=int, default=0, help="decides the order of the faults (0)")
    parser.add_argument("--engine", choices=sorted(RIGS), default="single")
    parser.add_argument("--mixed", action="store_true", help="with limits, shared and exclusive")
    asked = parser.parse_args()
    with ExitStack() as stack:
        workers, faults = RIGS[asked.engine](stack, MIXED if asked.mixed else {})
        return _soak(workers, faults, random.Random(asked.seed), asked.minutes * 60)


def _single(stack: ExitStack, options: Options) -> Rig:
    server = stack.enter_context(Server(**DURABLE))
    proxy = stack.enter_context(Proxy(server))
    workers = stack.enter_context(
        Workers(proxy.url(recovery=TTL, timeout=0.5, connect_timeout=1), **options)
    )
    return workers, {
        **strikes.on_workers(workers),
        **strikes.on_server(server),
        **strikes.on_data(server),
        **strikes.on_network(proxy),
    }


def _sentinel(stack: ExitStack, options: Options) -> Rig:
    deployment = stack.enter_context(SentinelDeployment())
    workers = stack.enter_context(
        Workers(deployment.url(recovery=TTL, **SOON), wait=20.0, **options)
    )
    return workers, {**strikes.on_workers(workers), **strikes.on_sentinels(deployment)}


def _cluster(stack: ExitStack, options: Options) -> Rig:
    cluster = stack.enter_context(Cluster())
    workers = stack.enter_context(Workers(cluster.url(recovery=TTL, **SOON), wait=20.0, **options))
    slot = strikes.slot_in_use(cluster)
    return workers, {**strikes.on_workers(workers), **strikes.on_cluster(cluster, slot)}


def _quorum(stack: ExitStack, options: Options) -> Rig:
    servers = [stack.enter_context(Server(**DURABLE)) for _ in range(3)]
    urls = [server.url(recovery=TTL, **OF_A_QUORUM) for server in servers]
    workers = stack.enter_context(Workers(urls, wait=20.0, **options))
    return workers, {**strikes.on_workers(workers), **strikes.on_quorum(servers)}


def _file(stack: ExitStack, options: Options) -> Rig:
    above = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="weblock-soak-")))
    workers = stack.enter_context(Workers(f"file://{above}/locks?allow_container=true", **options))
    return workers, {**strikes.on_workers(workers), **strikes.on_files(above / "locks", workers)}


def _memcached(stack: ExitStack, options: Options) -> Rig:
    server = stack.enter_context(Memcached("-M"))
    workers = stack.enter_context(
        Workers(server.url(recovery=TTL, timeout=0.5), wait=20.0, **options)
    )
    return workers, {**strikes.on_workers(workers), **strikes.on_memcached(server)}


def _postgresql(stack: ExitStack, options: Options) -> Rig:
    server = stack.enter_context(Postgres())
    url = f"{server.url()}?create=true&timeout=0.5&connect_timeout=2"
    workers = stack.enter_context(Workers(url, wait=20.0, **options))
    return workers, {**strikes.on_workers(workers), **strikes.on_postgres(server)}


def _zookeeper(stack: ExitStack, options: Options) -> Rig:
    ensemble = stack.enter_context(Ensemble())
    workers = stack.enter_context(Workers(fresh_zookeeper(ensemble.address), wait=20.0, **options))
    return workers, {**strikes.on_workers(workers), **strikes.on_zookeeper(ensemble)}


Options = Mapping[str, Any]
"""Those of the workers' locks."""

Rig = tuple[Workers, strikes.Strikes]

RIGS: Mapping[str, Callable[[ExitStack, Options], Rig]] = {
    "cluster": _cluster,
    "file": _file,
    "memcached": _memcached,
    "postgresql": _postgresql,
    "quorum": _quorum,
    "sentinel": _sentinel,
    "single": _single,
    "zookeeper": _zookeeper,
}
"""What the workers lock on, and what may happen to it."""


def _soak(workers: Workers, faults: strikes.Strikes, dice: random.Random, seconds: float) -> int:
    until = time.monotonic() + seconds
    struck: Counter[str] = Counter()
    worst: dict[str, float] = {}
    try:
        while time.monotonic() < until:
            name = dice.choice(sorted(faults))
            _say(f"{name} ...")
            faults[name]()
            delay = workers.go_on()
            struck[name] += 1
            worst[name] = max(worst.get(name, 0.0), delay)
            _say(f"    went on after {delay:.2f} s")
        history = workers.check()
    except AssertionError as failure:
        _say(f"\nVIOLATED: {failure}")
        return 1
    _say(f"\n{'fault':45} times  longest until somebody went on")
    for name, times in sorted(struck.items()):
        _say(f"{name:45} {times:5}  {worst[name]:6.2f} s")
    _say(f"\n{len(history.holds)} sections, {sum(history.errors.values())} errors told:")
    for error, times in history.errors.most_common():
        _say(f"  {error:30} {times}")
    _say("\nNobody overlapped, every fence was above those before, and nothing was left behind.")
    return 0


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
