"""What an operator should know of a PostgreSQL server, besides what connecting checks."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

import psycopg

from ..findings import (
    Finding,
    bytes_of,
    problem,
    several,
    share,
    time_of,
    unfit,
    unreachable,
    warning,
)
from ..transport.failures import Unfit
from .failures import Missing, unavailable
from .settings import Settings

if TYPE_CHECKING:
    from .engine import PostgreSQLEngine

LARGE: Final = 64 * 1024 * 1024
"""Bytes from which a table of leases is larger than it should be."""

_FACTS: Final = {
    "version": "current_setting('server_version')",
    "uptime": "extract(epoch FROM clock_timestamp() - pg_postmaster_start_time())::float8",
    "clock": "extract(epoch FROM clock_timestamp())::float8",
    "synchronous_commit": "current_setting('synchronous_commit')",
    "standbys": "current_setting('synchronous_standby_names')",
    "fsync": "current_setting('fsync')",
    "replicas": "(SELECT count(*) FROM pg_stat_replication)",
    "used": "(SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend')",
    "connections": "current_setting('max_connections')::int",
    "unlogged": "(SELECT relpersistence = 'u' FROM pg_class WHERE oid = to_regclass($1))",
}


def diagnose(engine: PostgreSQLEngine) -> Iterator[Finding]:
    """Return the findings about the server."""
    settings = engine.settings
    try:
        link = engine.open()
        try:
            sent = time.time()
            ((*values,),) = link.ask(
                f"SELECT {', '.join(_FACTS.values())}".encode(), settings.table
            )
            heard = time.time()
            ((held, rows, size),) = link.ask(engine.statements.size)
        finally:
            link.close()
    except (psycopg.Error, Unfit, OSError) as error:
        found = unavailable(settings, error)
        if isinstance(found, Missing):
            yield unfit("table", found.reason, "Check its log.")
        else:
            yield unreachable(error, found.reason)
        return
    facts = dict(zip(_FACTS, values, strict=True))
    up = time_of(facts["uptime"])
    yield Finding("version", f"It is PostgreSQL {facts['version']}, up for {up}.")
    if link.pooled:
        yield warning(
            "pooler",
            "It is reached through a pooler: LISTEN does not work, and a waiter gets its key up to"
            f" a second after the release; synchronous_commit is {facts['synchronous_commit']}.",
            "Use the address of the server itself. A process needs few connections, and shares"
            " them.",
        )
    else:
        yield Finding("pooler", "It is reached directly, so waiters are notified.")
    yield from of_a_loss(facts, settings)
    text = f"It has {facts['used']} of {facts['connections']} connections in use."
    remedy = "Raise max_connections, or put a pooler before others."
    yield share("connections", text, facts["used"], facts["connections"], remedy)
    ahead = facts["clock"] - (sent + heard) / 2
    offset = f"{abs(ahead):.3f} s {'ahead of' if ahead > 0 else 'behind'} ours"
    yield Finding("clock", f"Its clock is {offset}. Leases do not depend on that difference.")
    text = f"{settings.table} has {rows} keys, {held} of them held, in {bytes_of(size)}."
    if size > LARGE:
        remedy = f"VACUUM FULL {settings.table}, and end transactions that stay open for hours."
        yield warning("table", text, remedy)
    else:
        yield Finding("table", text)


def of_a_loss(facts: Mapping[str, Any], settings: Settings) -> Iterator[Finding]:
    """Yield what a crash and a promotion may lose."""
    if facts["unlogged"]:
        text = "The table is unlogged: a crash empties it, while holders run."
        yield problem("unlogged", text, f"ALTER TABLE {settings.table} SET LOGGED.")
    before = "before it answers"
    if facts["fsync"] == "off":
        text = (
            f"It does not write to disk {before} (fsync=off): a crash of the machine loses leases."
        )
        yield problem("persistence", text, "Set fsync = on.")
    elif facts["synchronous_commit"] == "off":  # Behind a pooler; else the connection has set it.
        text = (
            "It answers before it has written (synchronous_commit=off): a crash loses the last"
            " leases."
        )
        remedy = "ALTER ROLE ... SET synchronous_commit = on for the user of the locks."
        yield warning("persistence", text, remedy)
    else:
        yield Finding("persistence", f"It writes each lease to disk {before}.")
    having = f"It has {several(facts['replicas'], 'replica')}"
    promotion = f"{having}, which get leases a moment later: a promotion might lose the last ones"
    if not facts["replicas"]:
        yield Finding("replicas", f"{having}.")
    elif facts["standbys"] and facts["synchronous_commit"] not in {"off", "local"}:
        yield Finding("replicas", f"{having}, and some have each lease before it is granted.")
    elif settings.recovery.seconds:
        after = f"Afterwards none is granted for {settings.recovery.seconds:g} s (recovery)."
        yield Finding("replicas", f"{promotion}. {after}")
    else:
        yield warning(
            "replicas",
            f"{promotion}, and recovery=off lets their keys be granted again at once, while their"
            " holders run.",
            "Leave recovery at its default, or set synchronous_standby_names.",
        )
