"""Processes that are stopped at every statement: nothing of what they then commit is stale."""

import itertools
import os
from pathlib import Path

import pytest

from tests.servers import Postgres

from .stopped_sections import Rounds

LONG = bool(os.environ.get("WEBLOCK_LONG"))

POSTGRESQL = [
    ("postgresql", each) for each in ("READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE")
]
MARIADB = [("mariadb", level) for _, level in POSTGRESQL]
PGBOUNCER = [("pgbouncer", "READ COMMITTED")]
SQLITE = [("sqlite", "DELETE"), ("sqlite", "WAL")]

ROUNDS = 1300 if LONG else 6
"""For each of nine; in the suite, one for each step."""


@pytest.fixture(scope="module")
def urls(tmp_path_factory):
    """The databases, by name, each started when it is first asked for."""
    servers: dict[str, object] = {}

    def url(name):
        if name == "sqlite":
            return f"sqlite:///{tmp_path_factory.mktemp('database')}/db"
        if name == "pgbouncer":
            url("postgresql")
        if name not in servers:
            try:
                servers[name] = _server(name, servers)
            except LookupError as error:
                pytest.skip(f"there is no {name}: {error}")
        return servers[name].url(driver="pymysql" if name == "mariadb" else "psycopg")

    yield url
    for server in reversed(servers.values()):
        server.close()


def _server(name, others):
    from tests.servers.mariadb import MariaDB
    from tests.servers.pgbouncer import PgBouncer

    if name == "postgresql":
        return Postgres()
    return MariaDB() if name == "mariadb" else PgBouncer(others["postgresql"])


def rounds(urls, case, engine: Path | str, count: int, *, guarded: bool) -> Rounds:
    """So many sections that were stopped, before each of their steps in turn."""
    name, isolation = case
    if isinstance(engine, Path):
        engine = f"file://{engine}?allow_container=true"
    with Rounds(urls(name), isolation, engine, guarded=guarded) as found:
        steps = itertools.count()
        for _ in range(count):
            if not found.run(next(steps)):
                steps = itertools.count()
        found.count()
    return found


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "case",
    [*POSTGRESQL, *PGBOUNCER, *SQLITE, *MARIADB] if LONG else [POSTGRESQL[0], SQLITE[1]],
    ids="-".join,
)
def test_a_stopped_section_never_commits_what_is_stale(urls, case, tmp_path):
    """Wherever it was stopped while another followed: it is refused, or was first."""
    found = rounds(urls, case, tmp_path, ROUNDS, guarded=True)
    assert found.stale == 0
    assert found.outcomes["StaleFence"]


@pytest.mark.timeout(900)
@pytest.mark.parametrize("case", [POSTGRESQL[0], *(MARIADB[:1] if LONG else [])], ids="-".join)
def test_without_the_guard_some_do(urls, case, tmp_path):
    """The same sections, with the lease alone."""
    found = rounds(urls, case, tmp_path, ROUNDS, guarded=False)
    assert found.stale


def leases_in(database: str) -> str:
    """The URL of an engine in a database, by that of SQLAlchemy's."""
    return f"{database.replace('+psycopg', '')}?create=true&recovery=off"


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "case", [*POSTGRESQL, *PGBOUNCER] if LONG else POSTGRESQL[1:2], ids="-".join
)
def test_none_does_where_the_leases_are_in_the_database(urls, case):
    """The fences and the leases are in two tables of one database."""
    found = rounds(urls, case, leases_in(urls(case[0])), ROUNDS, guarded=True)
    assert found.stale == 0
    assert found.outcomes["StaleFence"]
