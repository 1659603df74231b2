"""Examines a PostgreSQL server that keeps leases."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Final

import psycopg

from ..findings import Finding, bytes_of, problem, time_of, warning
from .blocking import BlockingLink
from .connections import Connections
from .failures import explained, remedy_for
from .rows import text_of
from .settings import Settings
from .statements import Statement

FULL: Final = 0.9
"""The share of its connections from which a server counts as nearly full."""

LARGE: Final = 64 * 1024 * 1024
"""Bytes from which a table of leases is larger than it should be."""

_FACTS: Final = Statement(
    """
SELECT current_setting('server_version'),
    extract(epoch FROM clock_timestamp() - pg_postmaster_start_time())::float8,
    extract(epoch FROM clock_timestamp())::float8,
    current_setting('synchronous_commit'), current_setting('synchronous_standby_names'),
    current_setting('fsync'), (SELECT count(*) FROM pg_stat_replication),
    (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'),
    current_setting('max_connections')
"""
)

_NAMES: Final = (
    "version",
    "uptime",
    "clock",
    "synchronous_commit",
    "standbys",
    "fsync",
    "replicas",
    "used",
    "connections",
)

_PERSISTENCE: Final = Statement(
    "SELECT relpersistence = 'u' FROM pg_class WHERE oid = to_regclass($1)"
)

Facts = Mapping[str, str]


def diagnose(connections: Connections) -> Iterator[Finding]:
    """Return the findings about the server."""
    settings = connections.settings
    try:
        link = connections.blocking()
    except (psycopg.Error, TimeoutError, OSError) as error:
        remedy = "Start it, or check the address, the password and the network between it and here."
        reason = explained(settings, error).rstrip(".")
        yield problem("reachable", f"It cannot be asked: {reason}.", remedy)
        return
    try:
        yield from _of_server(link, settings)
        yield from _of_table(link, connections)
    finally:
        link.close()


def _of_server(link: BlockingLink, settings: Settings) -> Iterator[Finding]:
    sent = time.time()
    facts = dict(zip(_NAMES, map(text_of, link.ask(_FACTS)[0]), strict=True))
    heard = time.time()
    up = time_of(float(facts["uptime"]))
    yield Finding("version", f"It is PostgreSQL {facts['version']}, up for {up}.")
    yield _pooler(link, facts)
    yield _persistence(facts)
    yield _replicas(facts, settings)
    yield _connections(facts)
    ahead = float(facts["clock"]) - (sent + heard) / 2
    offset = f"{abs(ahead):.3f} s {'ahead of' if ahead > 0 else 'behind'} ours"
    yield Finding("clock", f"Its clock is {offset}. Leases do not depend on that difference.")


def _of_table(link: BlockingLink, connections: Connections) -> Iterator[Finding]:
    settings = connections.settings
    try:
        (held, rows, size), *_ = link.ask(connections.statements.size)
    except psycopg.Error as error:
        remedy = remedy_for(settings, error) or "Look at its log."
        yield problem("table", f"{settings.table}: {error}.", f"{remedy[0].upper()}{remedy[1:]}.")
        return
    text = (
        f"{settings.table} has {text_of(rows)} keys, {text_of(held)} of them held, in"
        f" {bytes_of(int(size or 0))}."
    )
    if int(size or 0) > LARGE:
        remedy = f"VACUUM FULL {settings.table}, and end transactions that stay open for hours."
        yield warning("table", text, remedy)
    else:
        yield Finding("table", text)
    if link.ask(_PERSISTENCE, settings.table) == [[b"t"]]:
        yield problem(
            "unlogged",
            "The table is unlogged: a crash empties it, while holders run.",
            f"ALTER TABLE {settings.table} SET LOGGED.",
        )


def _pooler(link: BlockingLink, facts: Facts) -> Finding:
    if not link.dialogue.pooled:
        return Finding("pooler", "Nothing stands between it and here: waiters are notified.")
    return warning(
        "pooler",
        "It is reached through a pooler: LISTEN does not work, and a waiter gets its key up to a"
        f" second after the release; synchronous_commit is {facts['synchronous_commit']}.",
        "Give the server's own address. A process needs few connections, and shares them.",
    )


def _persistence(facts: Facts) -> Finding:
    if facts["fsync"] == "off":
        return problem(
            "persistence",
            "It does not write to disk before it answers (fsync=off): a crash of the machine loses"
            " leases.",
            "Set fsync = on.",
        )
    if facts["synchronous_commit"] == "off":  # Behind a pooler; else the connection has set it.
        return warning(
            "persistence",
            "It answers before it has written (synchronous_commit=off): a crash loses the last"
            " leases.",
            "ALTER ROLE ... SET synchronous_commit = on for the user of the locks.",
        )
    return Finding("persistence", "It writes each lease to disk before it answers.")


def _replicas(facts: Facts, settings: Settings) -> Finding:
    count = int(facts["replicas"])
    having = f"It has {count} replica{'' if count == 1 else 's'}"
    if not count:
        return Finding("replicas", "It has no replica.")
    if facts["standbys"] and facts["synchronous_commit"] not in {"off", "local"}:
        return Finding("replicas", f"{having}, and some have each lease before it is granted.")
    text = f"{having}, which get leases a moment later: a promotion may forget the last ones"
    if settings.recovery:
        return Finding(
            "replicas",
            f"{text}. After it none is granted for {settings.recovery:g} s (recovery).",
        )
    return warning(
        "replicas",
        f"{text}, and recovery=off lets them be granted again at once, while their holders run.",
        "Leave recovery at its default, or set synchronous_standby_names.",
    )


def _connections(facts: Facts) -> Finding:
    used, most = int(facts["used"]), int(facts["connections"])
    text = f"It has {used} of {most} connections in use."
    if used > FULL * most:
        return warning("connections", text, "Raise max_connections, or put a pooler before others.")
    return Finding("connections", text)
