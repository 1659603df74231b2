"""What there is to know of Redis servers that keep leases, by what ``INFO`` and ``SCAN`` tell."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import redis
from redis import exceptions

from ..findings import Finding, bytes_of, problem, several, time_of, unfit, warning
from .asking import Poll, asked, opened
from .connections import Connections
from .servers import LEAST_VERSION, Unfit, explained, version_of
from .settings import Address, Deployment, Settings

FULL: Final = 0.9
"""The share of its memory or its connections from which a server counts as nearly full."""

APART: Final = 1.0
"""Seconds by which clocks may differ before that is worth a warning."""

SCANNED: Final = 100
"""How many requests, of a thousand keys each, are sent to count keys."""


class Seen(NamedTuple):
    """One server's answers, and when it gave them."""

    address: Address
    facts: Mapping[str, str]
    took: float
    ahead: float
    """Seconds by which its clock is ahead of ours, give or take half of what the answer took."""
    ours: tuple[int, bool]
    """How many keys of ours it has, and whether these are all."""


def diagnose(connections: Connections, settings: Settings) -> Iterator[Finding]:
    """Return what is found on each server of a deployment."""
    seen: list[Seen] = []
    try:
        addresses = connections.servers()
    except (exceptions.RedisError, Unfit, OSError) as error:
        yield _unreachable("", error)
        return
    if settings.deployment is Deployment.SENTINEL:
        yield _sentinels(connections, settings)
    for address in addresses:
        found = look_at(connections, address, settings)
        if isinstance(found, Seen):
            seen.append(found)
            where = str(address) if len(addresses) > 1 else ""
            yield from (each._replace(where=where) for each in of_server(found, settings))
        elif len(addresses) > 1:
            lost = "Keys that are there cannot be locked until it or a replica of it answers."
            yield found._replace(text=f"{found.text} {lost}")
        else:
            yield found
    yield from of_clocks(seen)


def _sentinels(connections: Connections, settings: Settings) -> Finding:
    poll = Poll(lambda address: _answers(connections.sentinel(address)))
    poll.ask_all(settings.addresses)
    poll.wait(lambda: False, settings.timeout)
    silent = [each for each in settings.addresses if poll.heard.get(each) is not True]
    count = len(settings.addresses)
    text = f"{count - len(silent)} of {count} Sentinels in the URL answer"
    if not silent:
        return Finding("sentinels", f"{text}.")
    return warning(
        "sentinels",
        f"{text}, and not {', '.join(map(str, silent))}.",
        "Start the others, or find out why they do not answer: a failover needs a majority of all.",
    )


def _answers(connection: redis.Connection) -> bool:
    with opened(connection):
        return bool(asked(connection, "PING"))


def look_at(connections: Connections, address: Address, settings: Settings) -> Seen | Finding:
    """Return a server's own report, or the finding that it cannot be asked."""
    try:
        with opened(connections.connection(address)) as connection:
            return _look(address, connection, settings)
    except (exceptions.RedisError, Unfit, OSError) as error:
        return _unreachable(str(address), error)


def _unreachable(where: str, error: Exception) -> Finding:
    remedy = "Start it, or check the address, the password and the network between it and here."
    if isinstance(error, Unfit):
        return unfit("reachable", str(error), remedy)._replace(where=where)
    return problem(
        "reachable", f"It cannot be asked: {explained(error).rstrip('.')}.", remedy
    )._replace(where=where)


def _look(address: Address, connection: redis.Connection, settings: Settings) -> Seen:
    sent = time.time()
    info = asked(connection, "INFO").decode(errors="replace")
    heard = time.time()
    facts = dict(line.split(":", 1) for line in info.splitlines() if ":" in line)
    clock = int(facts.get("server_time_usec", 0)) / 1_000_000
    ahead = clock - (sent + heard) / 2 if clock else 0.0
    return Seen(address, facts, heard - sent, ahead, _count(connection, settings.prefix))


def _count(connection: redis.Connection, prefix: str) -> tuple[int, bool]:
    found, cursor = 0, "0"
    for _ in range(SCANNED):
        answer: Sequence[Any] = asked(
            connection, "SCAN", cursor, "MATCH", f"{prefix}:{{*", "COUNT", "1000"
        )
        cursor, names = answer[0].decode(), answer[1]
        found += len(names)
        if cursor == "0":
            return found, True
    return found, False


def of_server(seen: Seen, settings: Settings) -> Iterator[Finding]:
    """Return what one server has told of itself."""
    facts = seen.facts
    yield _version(facts)
    yield _role(facts, settings)
    yield _persistence(facts, settings)
    yield _eviction(facts, settings)
    yield _memory(seen, settings)
    yield _connections(facts)


def _version(facts: Mapping[str, str]) -> Finding:
    name = "Valkey" if facts.get("server_name") == "valkey" else "Redis"
    version = facts.get("valkey_version") or facts.get("redis_version", "of no version")
    text = f"It is {name} {version}, up for {time_of(float(facts.get('uptime_in_seconds', 0)))}."
    if version_of(facts) < LEAST_VERSION:
        return problem("version", text, "Upgrade it to 6.2 or later, or use Valkey.")
    return Finding("version", text)


def _role(facts: Mapping[str, str], settings: Settings) -> Finding:
    if facts.get("role") != "master":
        return problem(
            "role",
            "It is a replica, and locks live on the primary.",
            "Give the primary's address, or redis+sentinel:// to have it found.",
        )
    replicas = int(facts.get("connected_slaves", 0))
    if replicas < settings.min_replicas:
        return problem(
            "role",
            f"It is a primary with {replicas} replicas, and min_replicas={settings.min_replicas}.",
            "Bring the other replicas back, or ask for fewer.",
        )
    if replicas and not settings.min_replicas:
        return warning(
            "role",
            f"It is a primary with {several(replicas, 'replica')}, which get leases a moment later:"
            f" a failover may forget the last ones, and {_after_failover(settings)}.",
            "Add min_replicas=1 to the URL to have a replica acknowledge each lease.",
        )
    return Finding("role", f"It is a primary with {several(replicas, 'replica')}.")


def _after_failover(settings: Settings) -> str:
    if settings.recovery:
        return "recovery keeps the new primary from granting them again meanwhile"
    return "recovery=off lets the new primary grant them again at once"


def _persistence(facts: Mapping[str, str], settings: Settings) -> Finding:
    if facts.get("rdb_last_bgsave_status", "ok") != "ok":
        return problem(
            "persistence",
            "Its last snapshot failed, and by default it refuses all writes then.",
            "Look at its log: often the disk is full, or vm.overcommit_memory is 0.",
        )
    kept = (
        "It writes an append-only file: a crash loses the last second at most"
        if facts.get("aof_enabled") == "1"
        else "It writes no append-only file: a crash loses the leases since the last snapshot, or all"
    )
    if not settings.recovery:
        return warning(
            "persistence",
            f"{kept}; and recovery=off lets it grant them again at once, while their holders run.",
            "Leave recovery at its default, unless all sections end by themselves at once.",
        )
    return Finding(
        "persistence",
        f"{kept}. After that it grants none for {settings.recovery:g} s (recovery), so that none is"
        " granted twice.",
    )


def _eviction(facts: Mapping[str, str], settings: Settings) -> Finding:
    policy, most = facts.get("maxmemory_policy", "noeviction"), int(facts.get("maxmemory", 0))
    if not most or policy == "noeviction":
        limit = f"of {bytes_of(most)} " if most else ""
        return Finding(
            "eviction", f"It never evicts a lease ({limit or 'no '}maxmemory, {policy})."
        )
    return (warning if settings.allow_eviction else problem)(
        "eviction",
        f"It may evict leases when its memory is full (maxmemory-policy {policy}).",
        "Set maxmemory-policy noeviction, or use a server of its own for locks.",
    )


def _memory(seen: Seen, settings: Settings) -> Finding:
    used, most = int(seen.facts.get("used_memory", 0)), int(seen.facts.get("maxmemory", 0))
    count, all_counted = seen.ours
    text = (
        f"It uses {bytes_of(used)}{f' of {bytes_of(most)}' if most else ''} in all, and has"
        f" {several(count, 'key') if all_counted else f'{count} keys or more'} of ours, which start"
        f" with {settings.prefix}:."
    )
    if most and used > FULL * most:
        return warning("memory", text, "Raise maxmemory: a full server takes no new leases.")
    return Finding("memory", text)


def _connections(facts: Mapping[str, str]) -> Finding:
    used, most = int(facts.get("connected_clients", 0)), int(facts.get("maxclients", 0))
    text = f"It has {used} of {most} connections in use."
    if most and used > FULL * most:
        return warning(
            "connections", text, "Raise maxclients, or lower max_connections of clients."
        )
    return Finding("connections", text)


def of_clocks(seen: Sequence[Seen]) -> Iterator[Finding]:
    """Return how the servers' clocks differ from ours, and from each other's."""
    if not seen:
        return
    worst = max(seen, key=lambda each: abs(each.ahead))
    offset = f"{abs(worst.ahead):.3f} s {'ahead of' if worst.ahead > 0 else 'behind'} ours"
    offset += f", give or take {worst.took / 2:.3f} s"
    if len(seen) == 1:
        yield Finding("clock", f"Its clock is {offset}. Leases do not depend on that difference.")
        return
    apart = max(each.ahead for each in seen) - min(each.ahead for each in seen)
    text = f"Their clocks differ by {apart:.3f} s; that of {worst.address} is {offset}."
    if apart > APART:
        yield warning(
            "clock",
            f"{text} When a server that is behind takes over, fences may go back by as much.",
            "Have a time server (chrony, ntpd) set all clocks.",
        )
    else:
        yield Finding("clock", text)
