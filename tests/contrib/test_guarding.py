"""The database as referee, without a database: what reads only, and what errors mean."""

import sqlite3

import pytest
from sqlalchemy import create_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from weblock import Locks
from weblock.contrib.fastapi import guarded, lock
from weblock.contrib.kit.guarding import Row, Runner, StaleFence, marks_of
from weblock.contrib.kit.sql import LENGTHS, LOOKING, Kind, Trouble, dialect_of, kind_of, trouble_of
from weblock.contrib.sqlalchemy import guard
from weblock.errors import ConfigurationError
from weblock.keys import MAX_LENGTH

READS = [
    "SELECT 1",
    ' select "a"."b" FROM "a" WHERE ("a"."b" = 1 AND NOT (a.b IN (1, 2)))',
    "(SELECT a FROM b) UNION ALL (SELECT c FROM d)",
    'SELECT COUNT(*) AS "__count" FROM "shop_item"',
    "SELECT COALESCE(SUM(a), 0), django_date_trunc('day', b) FROM c FOR UPDATE OF c NOWAIT",
    "-- a comment\n/* and another */ SELECT 1",
    "SELECT 1;",
    "SELECT a FROM b WHERE c = %(c_1)s::INTEGER AND (d = %(d_1)s)",
]
WRITES = [
    "INSERT INTO a VALUES (1)",
    "UPDATE a SET b = 1",
    "WITH gone AS (DELETE FROM a RETURNING b) SELECT * FROM gone",
    "SELECT nextval('a')",
    "SELECT pay (7)",
    "SELECT pay /* */ (7)",
    "SELECT pay -- \n (7)",
    'SELECT "pay"(7)',
    "SELECT shop.pay(7)",
    "SELECT shop.count(7)",
    "SELECT 5 %pay(7)",
    "SELECT * INTO a FROM b",
    "SELECT 1; DELETE FROM a",
    "CALL pay(7)",
    "DO $$ BEGIN DELETE FROM a; END $$",
    "EXPLAIN ANALYZE DELETE FROM a",
    "COPY a FROM STDIN",
    "TRUNCATE a",
    "/* SELECT 1 */ DELETE FROM a",
    "SET LOCAL a = 1; DELETE FROM a",
    "SET STATEMENT a = 1 FOR DELETE FROM b",
    "REPLACE INTO a VALUES (1)",
    "SET @a = pay(7)",
    "PRAGMA user_version = 7",
    "PREPARE a AS DELETE FROM b",
    "INSERT INTO a VALUES ('it''s; COMMIT'); SELECT 1",
    "",
]
CONTROLS = [
    "BEGIN",
    "SAVEPOINT x",
    "RELEASE SAVEPOINT x",
    "SET LOCAL a = 1",
    "PRAGMA a=1",
    "PRAGMA a(1)",
]
COMMITS = [
    "commit",
    "END;",
    "PREPARE TRANSACTION 'x'",
    "DELETE FROM a; COMMIT",
    "-- a comment\n/* and another */ COMMIT",
    r"SELECT '\'; COMMIT; SELECT ''",
]
MYSQL = [
    ("SELECT 1", Kind.READS),
    ("INSERT INTO a VALUES ('it\\'s; COMMIT')", Kind.WRITES),
    ("CREATE OR REPLACE TEMPORARY TABLE a (b int)", Kind.WRITES),
    ("SET STATEMENT a = 1 FOR DELETE FROM b", Kind.WRITES),
    ("SET a = 1", Kind.CONTROLS),
    ("XA END 'x'", Kind.CONTROLS),
    *(
        (sql, Kind.COMMITS)
        for sql in (
            "COMMIT",
            "BEGIN",
            "CREATE TABLE a (b int)",
            "TRUNCATE a",
            "LOCK TABLES a WRITE",
            "SET @@autocommit = 1",
            "SET STATEMENT a = 1 FOR TRUNCATE b",
            "CALL pay(7)",
            "EXECUTE IMMEDIATE 'TRUNCATE a'",
            "/*!50000 TRUNCATE a */",
        )
    ),
]


@pytest.mark.parametrize(
    ("sql", "kind"),
    [
        *((sql, Kind.READS) for sql in READS),
        *((sql, Kind.WRITES) for sql in WRITES),
        *((sql, Kind.CONTROLS) for sql in CONTROLS),
        *((sql, Kind.COMMITS) for sql in COMMITS),
    ],
)
def test_what_may_write_counts_as_writing(sql, kind):
    """Only statements that certainly write nothing are let pass unchecked."""
    assert kind_of(sql) is kind


@pytest.mark.parametrize(("sql", "kind"), MYSQL)
def test_what_commits_on_mysql(sql, kind):
    """MySQL and MariaDB commit before most statements that are not about rows."""
    assert kind_of(sql, mysql=True) is kind


def test_a_row_is_named_by_a_digest():
    """Keys that a collation takes for equal have rows of their own; the row's columns hold any key."""
    with Locks.from_url("memory://", namespace="n" * 64) as locks:
        leases = [locks.acquire(key) for key in ("item", "ITEM", "item ", "ítem", "k" * MAX_LENGTH)]
        marks = [mark for lease in leases for mark in marks_of(lease)]
        for lease in leases:
            lease.release()
    assert len({mark.digest for mark in marks}) == len(marks)
    for mark in marks:
        assert len(mark.digest) <= LENGTHS["digest"]
        assert len(mark.values()["lock_key"]) <= LENGTHS["lock_key"]
        assert len(mark.token) <= LENGTHS["token"]


def test_the_token_does_not_tell_the_owner():
    """What stands in the database cannot release the lease."""
    with Locks.from_url("memory://") as locks, locks.hold("a") as lease:
        (mark,) = marks_of(lease)
        assert lease.owner not in mark.token
        assert mark.fence == lease.fence


def test_a_section_without_a_lease_has_no_mark():
    """Where the engine was down and the user lets it run all the same, there is nothing to compare."""
    lease = Locks.from_url("redis://127.0.0.1:1", on_unavailable="open").acquire("a", wait=0)
    assert marks_of(lease) == []


@pytest.mark.parametrize("options", [{"limit": 2}, {"shared": True}], ids=str)
def test_a_guard_needs_an_exclusive_lease(options):
    """SQLAlchemy's ``guard`` and FastAPI's ``guarded`` refuse others, and say what to leave out."""
    with (
        Locks.from_url("memory://") as locks,
        locks.hold("a", **options) as lease,
        pytest.raises(ConfigurationError, match="limit="),
    ):
        guard(Session(), lease, fence=True)
    with pytest.raises(ConfigurationError, match="needs an exclusive lease"):
        guarded(Session, lock("a"), lock("b", **options))


def test_a_guard_of_other_things_is_refused():
    """SQLAlchemy's ``guard`` names what it was given, and what belongs there."""
    session, engine = Session(), create_engine("sqlite://")
    with (
        Locks.from_url("memory://") as locks,
        locks.hold("a") as lease,
        engine.connect() as connection,
    ):
        for fence in (False, True):
            for given, named in (("a", "'a'"), (lock("a"), r"lock\('a'\)"), (locks, "<Locks")):
                with pytest.raises(
                    TypeError, match=f"a lease second, and was given {named}.*locks.hold"
                ):
                    guard(session, given, fence=fence)
            with pytest.raises(
                TypeError, match=r"a lease second, and was given <sqlalchemy.*Session"
            ):
                guard(lease, session, fence=fence)
            registry = scoped_session(sessionmaker())
            for given in (connection, engine, registry, sessionmaker(), Session, "sqlite://"):
                with pytest.raises(
                    TypeError, match=r"Session or AsyncSession first, .* the one session"
                ):
                    guard(given, lease, fence=fence)
            guard(registry(), lease, fence=fence)
            registry.remove()
    engine.dispose()


def test_a_database_that_is_not_known_is_refused():
    """Its name and those that are known are told."""
    with pytest.raises(
        ConfigurationError, match="postgresql, sqlite, mysql, mariadb, not 'oracle'"
    ):
        dialect_of("oracle")


class Deadlock(Exception):
    """What a driver of PostgreSQL raises."""

    sqlstate = "40P01"


def test_conflicts_are_tried_again_and_end():
    """A raise that meets others tries again; one that always does is refused, not tried for ever."""
    with Locks.from_url("memory://") as locks, locks.hold("a") as lease:
        (mark,) = marks_of(lease)
    answers = iter([Deadlock(), (0, None), (0, None), (0, None), (1, Row(1, mark.token))])

    def execute(_sql, _parameters):
        found = next(answers)
        if isinstance(found, Deadlock):
            raise found
        return found

    Runner("postgresql", 1, execute, lambda _mark: False, "").begin(mark, None, may_sweep=False)
    assert not list(answers)

    def never(_sql, _parameters):
        raise Deadlock

    with pytest.raises(StaleFence):
        Runner("postgresql", 1, never, lambda _mark: False, "").begin(mark, None)


def test_errors_of_sqlite_are_known(tmp_path):
    """A database that is locked, and a table that is missing."""
    one, two = (sqlite3.connect(tmp_path / "db", timeout=0) for _ in range(2))
    with pytest.raises(sqlite3.OperationalError) as caught:
        one.execute(LOOKING, {"digest": ""})
    assert trouble_of(caught.value) is Trouble.NO_TABLE
    one.execute("BEGIN IMMEDIATE")
    with pytest.raises(sqlite3.OperationalError) as caught:
        two.execute("BEGIN IMMEDIATE")
    assert trouble_of(caught.value) is Trouble.LOCKED
    assert trouble_of(OSError(5, "is no error of MySQL's")) is None
    one.close()
    two.close()
