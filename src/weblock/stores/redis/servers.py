"""What a Redis server says of itself, and what that means for locks.

``fitness`` decides whether a server may keep leases. A connection asks it when it opens, and refuses a
server with a problem; ``weblock doctor`` prints the same, and what else an operator should know.
"""

from __future__ import annotations

import re
import ssl
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from redis import exceptions

from ..findings import (
    Finding,
    bytes_of,
    problem,
    refuse,
    sentence,
    several,
    share,
    time_of,
    unreachable,
    warning,
)
from ..transport import failures
from .asking import FAILURES, asked, opened
from .calls import Layout
from .settings import Address, Deployment, Settings

if TYPE_CHECKING:
    from .connections import Connections

Facts = Mapping[str, str]
"""The fields of a server's answer to ``INFO``."""

LEAST_VERSION: Final = (6, 2)

APART: Final = 1.0
"""Seconds by which clocks may differ before that is worth a warning."""

SCANNED: Final = 100
"""How many requests, of a thousand keys each, are sent to count keys."""

GRANT: Final = "grant it to the user; docs/redis.md lists the rights that weblock needs"

LEARN: Final = "use a server that has it; docs/redis.md lists all that weblock needs of one"

FIELDS: Final = (
    *("redis_version", "role", "cluster_enabled", "maxmemory", "maxmemory_policy"),
    # Without these, a restart or a failover could not be noticed.
    *("run_id", "uptime_in_seconds", "master_replid", "second_repl_offset"),
)
"""What ``INFO`` has to tell."""

_FULL: Final = "its memory is full, and it accepts no new leases: raise maxmemory"

_MEANINGS: Final[failures.Meanings] = (
    (
        (exceptions.AuthenticationWrongNumberOfArgsError, exceptions.AuthenticationError),
        "it rejected the user or the password ({text}): check them in the URL",
    ),
    (exceptions.NoPermissionError, f"{{text}}: {GRANT}"),
    (exceptions.ReadOnlyError, "it has become a replica"),
    (exceptions.BusyLoadingError, "it is loading its data"),
    (exceptions.OutOfMemoryError, _FULL),
    (exceptions.TimeoutError, "it did not answer in time ({text})"),
    # Error replies without a type of their own.
    ("-OOM ", _FULL),  # As Redis 6 says it of a script.
    ("MISCONF", "it cannot write its data to disk, and rejects all writes: {text}"),
    ("ACL failure", f"{{text}}: {GRANT}"),
    ("user executing the script", f"{{text}}: {GRANT}"),
    ("unknown command", f"{{text}}: {LEARN}"),
)


def explained(error: BaseException) -> str:
    """Return why a server refused, with the remedy if there is one."""
    text, below = failures.explained(error, _MEANINGS), error.__context__
    if isinstance(below, ssl.SSLError) and str(below) not in text:
        return f"{text} {below}"  # On asyncio, redis-py 5 gives only the number of the error.
    return text


class Seen(NamedTuple):
    """One server's answers, and when it gave them."""

    address: Address
    facts: Facts
    took: float
    ahead: float
    """Seconds by which its clock is ahead of ours, give or take half of what the answer took."""
    ours: tuple[int, bool]
    """How many keys of ours it has, and whether these are all."""
    others: int = 0
    """How many keys of other programs are in the same database, at least."""
    lacks: tuple[Finding, ...] = ()
    """Commands that it does not run, of those that locks can do without."""


def facts_in(info: bytes) -> Facts:
    """Return the fields of an answer to ``INFO``."""
    lines = info.decode(errors="replace").splitlines()
    return dict(line.split(":", 1) for line in lines if ":" in line)


def examine(info: bytes, settings: Settings) -> str:
    """Return a server's run, as scripts name it: another after a restart, or when it was a replica.

    Raises ``Unfit`` if the server must not keep leases as it is.
    """
    facts = facts_in(info)
    refuse(fitness(facts, settings))
    return f"{facts['run_id']}:{facts['master_replid']}"


def fitness(facts: Facts, settings: Settings) -> Iterator[Finding]:
    """Yield what decides whether a server may keep leases."""
    if missing := ", ".join(field for field in FIELDS if field not in facts):
        yield problem("info", f"Its answer to INFO has no {missing}.", sentence(LEARN))
        return
    name = "Valkey" if facts.get("server_name") == "valkey" else "Redis"
    version = facts.get("valkey_version") or facts["redis_version"]
    text = f"It is {name} {version}, up for {time_of(float(facts['uptime_in_seconds']))}"
    # Valkey goes on counting as Redis 7.2 there.
    numbers = re.findall(r"\d+", facts["redis_version"])[:3]
    if tuple(map(int, numbers)) < LEAST_VERSION:
        yield problem("version", f"{text}, and locks need 6.2.", "Upgrade it, or use Valkey.")
    else:
        yield Finding("version", f"{text}.")

    clustered = facts["cluster_enabled"] == "1"
    if facts["role"] != "master":
        yield problem(
            "role",
            "It is a replica, and locks live on the primary.",
            "Use the address of the primary, or redis+sentinel://, which finds it.",
        )
    elif clustered and settings.deployment is not Deployment.CLUSTER:
        yield problem("role", "It is a node of a cluster.", "Use redis+cluster://.")
    elif not clustered and settings.deployment is Deployment.CLUSTER:
        yield problem("role", "It is not a node of a cluster.", "Use redis://.")

    policy, most = facts["maxmemory_policy"], int(facts["maxmemory"])
    if not most or policy == "noeviction":
        limit = f"of {bytes_of(most)} " if most else ""
        yield Finding("eviction", f"It never evicts a lease ({limit or 'no '}maxmemory, {policy}).")
    else:
        yield (warning if settings.allow_eviction else problem)(
            "eviction",
            f"It might evict leases when its memory is full (maxmemory-policy {policy}).",
            "Set maxmemory-policy noeviction, use a separate server for locks, or accept lost"
            " leases with allow_eviction=true.",
        )


def diagnose(connections: Connections, settings: Settings) -> Iterator[Finding]:
    """Yield what is found on each server of a deployment."""
    try:
        addresses = connections.servers()
    except FAILURES as error:
        yield unreachable(error, explained(error))
        return
    if settings.deployment is Deployment.SENTINEL:
        silent: list[str] = []
        for address in settings.addresses:
            try:
                with opened(connections.sentinel(address)) as connection:
                    asked(connection, "PING")
            except FAILURES:
                silent.append(str(address))
        count = len(settings.addresses)
        text = f"{count - len(silent)} of {count} Sentinels in the URL answer"
        remedy = (
            "Start the others, or find out why they do not answer: a failover needs a majority."
        )
        if silent:
            yield warning("sentinels", f"{text}, and not {', '.join(silent)}.", remedy)
        else:
            yield Finding("sentinels", f"{text}.")
    seen: list[Seen] = []
    for address in addresses:
        where = str(address) if len(addresses) > 1 else ""
        found = look_at(connections, address, settings)
        if isinstance(found, Seen):
            seen.append(found)
            yield from (each._replace(where=where) for each in of_server(found, settings))
        else:
            lost = " Its keys cannot be locked until it or a replica of it answers."
            yield found._replace(text=found.text + (lost if where else ""))
    yield from of_clocks(seen)


def look_at(connections: Connections, address: Address, settings: Settings) -> Seen | Finding:
    """Return a server's own report, or the finding that it cannot be asked."""
    lacks: list[Finding] = []

    @contextmanager
    def tried(command: str, without: str) -> Iterator[None]:
        try:
            yield
        except exceptions.ResponseError as error:
            remedy = GRANT if isinstance(error, exceptions.NoPermissionError) else LEARN
            text = f"It does not run {command} ({error}), and without it {without}."
            lacks.append(warning("rights", text, sentence(remedy)))

    try:
        with opened(connections.connection(address)) as connection:
            sent = time.time()
            facts = facts_in(asked(connection, "INFO"))
            heard = time.time()
            clock = int(facts.get("server_time_usec", 0)) / 1_000_000
            ahead = clock - (sent + heard) / 2 if clock else 0.0
            count, others, cursor = 0, 0, "0"
            with tried("SCAN", "keys can be neither listed nor counted"):
                for _ in range(SCANNED):
                    answer: Sequence[Any] = asked(connection, "SCAN", cursor, "COUNT", "1000")
                    cursor = answer[0].decode()
                    ours = sum(key.startswith(f"{settings.prefix}:".encode()) for key in answer[1])
                    count, others = count + ours, others + len(answer[1]) - ours
                    if cursor == "0":
                        break
            if settings.deployment is Deployment.CLUSTER:
                with tried("ASKING", "a lease whose slot moves cannot be renewed"):
                    asked(connection, "ASKING")
        with (
            tried("HELLO or SUBSCRIBE", "waiters ask once a second; AsyncLocks need HELLO"),
            opened(connections.connection(address, listens=True)) as connection,
        ):
            connection.send_command("SUBSCRIBE", Layout(settings.prefix, 1).channel("doctor"))
            connection.read_response(push_request=True)
        return Seen(address, facts, heard - sent, ahead, (count, cursor == "0"), others, (*lacks,))
    except FAILURES as error:
        return unreachable(error, explained(error), str(address))


def of_server(seen: Seen, settings: Settings) -> Iterator[Finding]:
    """Yield what one server has told of itself."""
    facts, recovery = seen.facts, settings.recovery.seconds
    yield from fitness(facts, settings)
    yield from seen.lacks or [Finding("rights", "It allows SCAN, HELLO and SUBSCRIBE.")]

    replicas, wanted = int(facts.get("connected_slaves", 0)), settings.min_replicas
    text = f"It is a primary with {several(replicas, 'replica')}"
    if facts.get("role") != "master":
        pass  # It is refused, whatever replicas it has.
    elif replicas < wanted:
        remedy = "Bring the other replicas back, or ask for fewer."
        yield problem("replicas", f"{text}, and min_replicas={wanted}.", remedy)
    elif not replicas or wanted:
        yield Finding("replicas", f"{text}.")
    else:
        then = (
            "recovery keeps the new primary from granting their keys again too early"
            if recovery
            else "recovery=off lets the new primary grant their keys again at once"
        )
        yield warning(
            "replicas",
            f"{text}, which get leases a moment later: a failover might lose the last ones, and"
            f" {then}.",
            "Add min_replicas=1 to the URL to have a replica acknowledge each lease.",
        )

    appends = facts.get("aof_enabled") == "1"
    kept = (
        "It writes an append-only file: a crash loses at most the last second"
        if appends
        else (
            "It writes no append-only file: a crash loses the leases since the last snapshot, or"
            " all"
        )
    )
    if facts.get("rdb_last_bgsave_status", "ok") != "ok":
        yield problem(
            "persistence",
            "Its last snapshot failed, and by default it then rejects all writes.",
            "Check its log: often the disk is full, or vm.overcommit_memory is 0.",
        )
    elif recovery:
        then = f"Afterwards it grants none for {recovery:g} s (recovery)"
        text = f"{kept}. {then}, so no key is granted twice."
        lost = warning("persistence", text, "Set appendonly yes, so that a restart loses no lease.")
        yield Finding("persistence", text) if appends else lost
    else:
        yield warning(
            "persistence",
            f"{kept}; and recovery=off lets it grant them again at once, while their holders run.",
            "Leave recovery at its default.",
        )

    used, most = int(facts.get("used_memory", 0)), int(facts.get("maxmemory", 0))
    count, all_counted = seen.ours
    text = (
        f"It uses {bytes_of(used)}{f' of {bytes_of(most)}' if most else ''} in all, and has"
        f" {several(count, 'key') if all_counted else f'{count} keys or more'} of weblock, which"
        f" start with {settings.prefix}:."
    )
    remedy = "Raise maxmemory: a full server accepts no new leases."
    yield share("memory", text, used, most, remedy)
    if seen.others:
        yield warning(
            "database",
            f"Other programs have {several(seen.others, 'key')} in its database {settings.db}. One"
            " that empties it, by FLUSHDB or by cache.clear() of Django, deletes every lease.",
            "Give the locks their own database number, or their own server.",
        )

    used, most = int(facts.get("connected_clients", 0)), int(facts.get("maxclients", 0))
    text = f"It has {used} of {most} connections in use."
    remedy = "Raise maxclients, or lower max_connections of clients."
    yield share("connections", text, used, most, remedy)


def of_clocks(seen: Sequence[Seen]) -> Iterator[Finding]:
    """Yield how the servers' clocks differ from ours, and from each other's."""
    if not seen:
        return
    worst = max(seen, key=lambda each: abs(each.ahead))
    offset = f"{abs(worst.ahead):.3f} s {'ahead of' if worst.ahead > 0 else 'behind'} ours"
    offset += f", give or take {worst.took / 2:.3f} s"
    if len(seen) == 1:
        yield Finding("clock", f"Its clock is {offset}. Leases do not depend on that difference.")
        return
    apart = max(each.ahead for each in seen) - min(each.ahead for each in seen)
    text = f"Their clocks differ by {apart:.3f} s; the clock of {worst.address} is {offset}."
    if apart > APART:
        yield warning(
            "clock",
            f"{text} When a server that is behind takes over, fences might decrease by as much.",
            "Synchronize all clocks with a time server (chrony, ntpd).",
        )
    else:
        yield Finding("clock", text)
