"""The table of the leases, and its statements: each transition is one.

A row is a key. The first has no key: it remembers what is known of the server itself, the largest
fence of the rows that were removed, and, as ``rest``, the format of the table. Rows whose key begins
with ``DONE`` are marks, and those that begin with ``TEXT`` have a text as ``rest``.
"""

from __future__ import annotations

from typing import Final

FORMAT: Final = "1"
"""The format of the table. A table of another format is rejected when a connection is opened."""

DONE: Final = "\x01"
"""The first character of a mark's key. No lock's key has control characters."""

TEXT: Final = "\x02"
"""The first character of a text's key, before its group, another such character, and the lock's key."""

AFTER_TEXT: Final = "\x03"

PORTION: Final = 1000
"""Rows among which those that nobody uses are removed at once: until that is done, they are locked."""

IDLE: Final = 60.0
"""Seconds after which a row that nobody uses may be removed."""

_DDL: Final = """\
CREATE TABLE IF NOT EXISTS {table} (
    key text COLLATE "C" PRIMARY KEY,
    version bigint NOT NULL,
    fence bigint NOT NULL,
    owner text NOT NULL,
    process text NOT NULL,
    label text NOT NULL,
    ttl double precision NOT NULL,
    since double precision NOT NULL,
    until double precision NOT NULL,
    confirmed boolean NOT NULL,
    rest text NOT NULL,
    ends double precision NOT NULL
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02);
INSERT INTO {table}
VALUES ('', 0, 0, '', '', {run}, 0, 0, 0, true, '{format}', 0)
ON CONFLICT DO NOTHING;
"""

_RUN: Final = """
    concat(coalesce(nullif(current_setting('weblock.system', true), ''),
            (SELECT system_identifier::text FROM pg_control_system())),
        '/', left(pg_walfile_name(pg_current_wal_lsn()), 8))"""
"""The server's system identifier and timeline.

The identifier is another one in a new cluster, where a dump was restored. The timeline changes when a
replica is promoted, and when a backup is restored. Reading the identifier takes as long as a short
statement, so sessions of our own remember it (see ``INTRODUCE``).
"""

_UNFLUSHED: Final = "set_config('synchronous_commit', 'off', true)"
"""Ends this transaction, and no other, before it is on the disk.

A crash of the server can undo it, unless a later transaction has waited for the disk. After a release that was
undone, the key is free at the end of the lease, as if the holder had been killed. A waiter whose place was
undone joins the queue again. What grants, renews or rejects a lease must last.
"""

# What is known before anything is changed. The first row says on which run that is, and ``since``
# when; until when nothing is granted; and, with its version, which news this is. A server that is not
# ``known`` may have lost leases, or has lost some and does not know yet for how long this client wants
# that nothing is granted.
_SERVER: Final = """
server AS (
    SELECT clock.now, coalesce(it.label = {run} AND it.since <= clock.now AND (
            it.ends >= it.since + {recovery} OR it.since + {recovery} <= clock.now), false) AS known,
        coalesce(it.ends, 0) AS quiet, coalesce(it.fence, 0) AS floor, it.version AS news
    FROM (SELECT extract(epoch FROM clock_timestamp())::float8 AS now) AS clock
    LEFT JOIN {table} AS it ON it.key = ''
)"""

_COLUMNS: Final = "version, fence, owner, process, label, ttl, since, until, confirmed, rest, ends"

_READ: Final = """
    server.now, server.known, server.quiet, server.floor, server.news, wanted.key, lease.version,
    lease.fence, lease.owner, lease.process, lease.label, lease.ttl, lease.since, lease.until,
    lease.confirmed, lease.rest, lease.ends"""

_LOOK: Final = """
WITH {server}
SELECT {read} FROM json_array_elements_text($1::json) AS wanted(key)
CROSS JOIN server LEFT JOIN {table} AS lease ON lease.key = wanted.key
"""

_SEEN: Final = """
seen AS (
    SELECT {read} FROM server CROSS JOIN (SELECT $1::text AS key) AS wanted
    LEFT JOIN {table} AS lease ON lease.key = wanted.key
)"""

_ACQUIRE: Final = """
WITH {server}, {seen}, free AS (
    SELECT lease.key FROM {table} AS lease CROSS JOIN server
    WHERE lease.key = $1 AND lease.ends <= server.now FOR NO KEY UPDATE OF lease SKIP LOCKED
), taken AS (
    INSERT INTO {table} AS lease (key, {columns})
    SELECT $1, $2::bigint, greatest((now * 1e6)::bigint, floor + 1), $3, $4, $5, $6::float8, now,
        now + $6::float8, true, '', now + $6::float8
    FROM seen LEFT JOIN free ON true
    WHERE known AND quiet <= now AND (version IS NULL OR free.key IS NOT NULL)
    ON CONFLICT (key) DO UPDATE SET version = excluded.version,
        fence = greatest(excluded.fence, lease.fence + 1), owner = excluded.owner,
        process = excluded.process, label = excluded.label, ttl = excluded.ttl,
        since = excluded.since, until = excluded.until, confirmed = true, rest = '',
        ends = excluded.ends
    WHERE lease.ends <= excluded.since
    RETURNING lease.fence, lease.until
)
SELECT seen.*, taken.fence, taken.until FROM seen LEFT JOIN taken ON true
"""

_RELEASE: Final = """
WITH {server}, {seen}, freed AS (
    UPDATE {table} AS lease SET version = $2::bigint, owner = '', process = '', label = '',
        until = seen.now, ends = 0
    FROM seen WHERE lease.key = $1 AND lease.owner = $3 AND lease.rest = ''
    RETURNING lease.fence, {unflushed}
)
SELECT seen.*, freed.fence FROM seen LEFT JOIN freed ON true
"""

_RENEW: Final = """
WITH {server}, new AS (
    SELECT * FROM json_to_recordset($1::json) AS new(key text, version bigint, owner text,
        ttl float8)
), ours AS (
    SELECT lease.key FROM {table} AS lease JOIN new ON new.key = lease.key
    WHERE lease.owner = new.owner ORDER BY lease.key FOR NO KEY UPDATE OF lease SKIP LOCKED
), renewed AS (
    UPDATE {table} AS lease SET version = new.version, confirmed = true,
        until = greatest(lease.until, server.now + new.ttl),
        ends = greatest(lease.ends, server.now + new.ttl)
    FROM server CROSS JOIN new JOIN ours ON ours.key = new.key
    WHERE lease.key = new.key AND lease.owner = new.owner AND lease.until > server.now
        AND server.known
    RETURNING lease.key, lease.fence, lease.until
)
SELECT {read}, renewed.fence, renewed.until FROM new AS wanted CROSS JOIN server
LEFT JOIN {table} AS lease ON lease.key = wanted.key LEFT JOIN renewed ON renewed.key = wanted.key
"""

# The order in which rows are locked is the same for all, so that no two wait for each other. What was
# read from another server, or before this one was found to have lost leases, is not written. A row that
# is missing may have been there, and removed, since it was read: then its fence is not given again.
#
# A transaction that was too late has locked the row all the same. If it waited for the disk, all others would
# wait for its lock meanwhile. So only a transaction that has written a row that must last does.
_WRITE: Final = """
WITH {server}, session AS MATERIALIZED (
    SELECT current_setting('synchronous_commit') AS own, {unflushed}
), new AS (
    SELECT new.*, session.own FROM server CROSS JOIN session
    CROSS JOIN json_to_recordset($1::json) AS new(key text, seen bigint,
        version bigint, fence bigint, owner text, process text, label text, ttl float8, since float8,
        until float8, confirmed boolean, rest text, ends float8, notifications json)
    WHERE server.known AND server.news = $2::bigint
), unchanged AS (
    SELECT lease.key FROM {table} AS lease JOIN new ON new.key = lease.key
    WHERE lease.version = new.seen ORDER BY lease.key FOR NO KEY UPDATE OF lease {skip}
), changed AS (
    UPDATE {table} AS lease SET version = new.version, fence = new.fence, owner = new.owner,
        process = new.process, label = new.label, ttl = new.ttl, since = new.since,
        until = new.until, confirmed = new.confirmed, rest = new.rest, ends = new.ends
    FROM new JOIN unchanged ON unchanged.key = new.key
    WHERE lease.key = new.key AND lease.version = new.seen
    RETURNING lease.key, CASE WHEN {lasting} THEN set_config('synchronous_commit', own, true) END
), added AS (
    INSERT INTO {table} AS lease (key, {columns})
    SELECT key, {columns} FROM new CROSS JOIN server
    WHERE seen IS NULL AND (fence = 0 OR fence > floor) ORDER BY key
    ON CONFLICT DO NOTHING
    RETURNING lease.key, (SELECT set_config('synchronous_commit', own, true) FROM new LIMIT 1)
), done AS (
    SELECT key FROM changed UNION ALL SELECT key FROM added
)
SELECT new.key, CASE WHEN new.notifications IS NOT NULL THEN (
    SELECT count(pg_notify(each ->> 0, each ->> 1)) FROM json_array_elements(new.notifications) AS each
) END
FROM new JOIN done ON done.key = new.key
"""

# The first row remembers when a loss was noticed, so that each client can add its own recovery to that.
# The longest that was asked for counts for all. A loss that was noticed at a time to come was noticed
# while the clock was ahead: then the same recovery begins now.
_ADMIT: Final = """
INSERT INTO {table} AS it (key, {columns})
SELECT '', $1::bigint, 0, '', '', {run}, 0, now, 0, true, '{format}', now + {recovery}
FROM (SELECT extract(epoch FROM clock_timestamp())::float8 AS now) AS clock
ON CONFLICT (key) DO UPDATE SET version = excluded.version, label = excluded.label,
    since = CASE it.label WHEN excluded.label THEN least(it.since, excluded.since)
        ELSE excluded.since END,
    ends = greatest(least(it.ends, excluded.since + (it.ends - it.since)), CASE it.label
        WHEN excluded.label THEN least(it.since, excluded.since) + {recovery} ELSE excluded.ends END)
WHERE it.label <> excluded.label OR it.ends < it.since + {recovery} OR it.since > excluded.since
"""

# A portion of the table after a key: to find rows in all of it takes too long where many texts are kept.
_CLEAN: Final = """
WITH clock AS (SELECT extract(epoch FROM clock_timestamp())::float8 AS now), portion AS (
    SELECT key FROM {table} WHERE key > $1 ORDER BY key LIMIT {portion}
), idle AS (
    SELECT lease.key FROM {table} AS lease JOIN portion ON portion.key = lease.key, clock
    WHERE lease.ends < now - {idle} AND lease.until < now - {idle}
    ORDER BY lease.key FOR UPDATE OF lease SKIP LOCKED
), removed AS (
    DELETE FROM {table} AS lease USING idle WHERE lease.key = idle.key RETURNING lease.fence
), raised AS (
    UPDATE {table} AS it SET fence = greatest(it.fence, (SELECT max(fence) FROM removed))
    WHERE it.key = '' AND EXISTS (SELECT FROM removed)
)
SELECT (SELECT max(key) FROM portion HAVING count(*) = {portion}), (SELECT count(*) FROM removed)
"""

_NAMES: Final = """
SELECT key FROM {table}
WHERE starts_with(key, $1) AND key > E'\\x1f' AND (owner <> '' OR rest <> '')
"""

_MARK: Final = """
INSERT INTO {table} AS lease (key, {columns})
SELECT $1, 0, 0, '', '', '', 0, 0, made.until, true, '', made.until
FROM (SELECT coalesce(
    extract(epoch FROM clock_timestamp())::float8 + $2::float8, 'infinity') AS until) AS made
ON CONFLICT (key) DO UPDATE SET until = excluded.until, ends = excluded.ends
"""

_UNMARK: Final = "DELETE FROM {table} WHERE key = $1"

_MARKED: Final = """
SELECT 1 FROM {table} WHERE key = $1 AND ends > extract(epoch FROM clock_timestamp())::float8
"""

_NOW: Final = "extract(epoch FROM clock_timestamp())::float8"

_FIND_TEXT: Final = """
SELECT max(rest) FILTER (WHERE key = $1), count(*), coalesce(min(ends) - {now}, 0)
FROM {table} WHERE key > $2 AND key < $3 AND ends > {now}
"""

# The lease cannot pass to another owner until the text is written: its row is locked.
_KEEP_TEXT: Final = """
WITH held AS (
    SELECT {now} AS now FROM {table} AS lease
    WHERE lease.key = $1 AND lease.owner = $2 AND lease.until > {now} FOR NO KEY UPDATE OF lease
)
INSERT INTO {table} (key, {columns})
SELECT $3, 0, 0, '', '', '', 0, 0, now + $5::float8, true, $4, now + $5::float8 FROM held
ON CONFLICT (key) DO UPDATE SET until = excluded.until, rest = excluded.rest, ends = excluded.ends
RETURNING true
"""

_FORGET_TEXT: Final = "DELETE FROM {table} WHERE key = $1 AND ends > {now} RETURNING true"

_ALL_TEXTS: Final = """
SELECT key, rest FROM {table} WHERE key > $1 AND key < $2 AND ends > {now}
    AND starts_with(split_part(key, $1, 3), $3) ORDER BY key LIMIT $4
"""

_FORMAT: Final = "SELECT rest FROM {table} WHERE key = ''"

_SIZE: Final = """
SELECT count(*) FILTER (WHERE owner <> '' OR ends > extract(epoch FROM now())), count(*), pg_total_relation_size('{table}')
FROM {table} WHERE key > E'\\x1f'
"""


class Statements:
    """The statements for one table, and for a client that asks for this ``recovery``."""

    def __init__(self, table: str, recovery: float) -> None:
        self._table = ".".join(f'"{part}"' for part in table.split("."))
        self.ask_for(recovery)

    def ask_for(self, recovery: float) -> None:
        """Have all statements ask for a recovery of so many seconds."""
        table = self._table
        parts = {"table": table, "run": _RUN, "columns": _COLUMNS, "read": _READ, "format": FORMAT}
        parts |= {"recovery": f"{recovery!r}::float8", "unflushed": _UNFLUSHED}
        parts["server"] = _SERVER.format(**parts)
        parts["seen"] = _SEEN.format(**parts)

        def made(text: str, **more: object) -> bytes:
            return text.format(**parts, **more).encode()

        self.look = made(_LOOK)
        self.acquire = made(_ACQUIRE)
        self.release = made(_RELEASE)
        self.renew = made(_RENEW)
        """Renews leases, also while others wait or join; all else is only read."""
        self.write = made(_WRITE, skip="", lasting="$3::boolean")
        self.write_some = made(_WRITE, skip="SKIP LOCKED", lasting="true")
        """Rows that another transaction has locked stay as they are."""
        self.mark = made(_MARK)
        self.marked = made(_MARKED)
        self.unmark = made(_UNMARK)
        self.names = made(_NAMES)
        self.find_text = made(_FIND_TEXT, now=_NOW)
        self.keep_text = made(_KEEP_TEXT, now=_NOW)
        self.forget_text = made(_FORGET_TEXT, now=_NOW)
        self.all_texts = made(_ALL_TEXTS, now=_NOW)
        self.admit = made(_ADMIT)
        self.clean = made(_CLEAN, idle=IDLE, portion=PORTION)
        self.exists = b"SELECT to_regclass($1) IS NOT NULL"
        self.format = made(_FORMAT)
        self.size = made(_SIZE)

    @property
    def ddl(self) -> str:
        """The statements that create the table, for an operator to run."""
        return _DDL.format(table=self._table, run=_RUN, format=FORMAT)


INTRODUCE: Final = b"""
SELECT set_config('statement_timeout', $2, false), set_config('lock_timeout', $2, false),
    set_config('default_transaction_isolation', 'read committed', false),
    set_config('synchronous_commit', CASE current_setting('synchronous_commit')
        WHEN 'off' THEN 'on' ELSE current_setting('synchronous_commit') END, false),
    set_config('weblock.system', (SELECT system_identifier::text FROM pg_control_system()), false)
WHERE pg_backend_pid() = $1::int
"""
"""What a connection needs that is ours alone. Behind a pooler it would go to other clients' servers.

``synchronous_commit`` is set in any case: when the server reloads its configuration, only a session that has set
it keeps its value. With ``off``, a crash would forget leases that were granted just before.
"""

PING: Final = b"SELECT 1"
