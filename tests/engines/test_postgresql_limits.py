"""How rows of PostgreSQL keep leases that are not exclusive, and who is notified of these."""

from __future__ import annotations

import re
from typing import Any, Final

import psycopg
import pytest

from tests.core.simulation.conformance import Clock
from tests.servers.postgres import fresh_postgresql, shared_postgres
from tests.support.waiting import eventually
from weblock import ConfigurationError, Locks
from weblock._core.table import SHARED, Claim, Grant, KeyState, Place, Voided
from weblock.stores import codec
from weblock.stores.postgresql import open_engine
from weblock.stores.postgresql.cells import Row, reading_of, written
from weblock.stores.postgresql.engine import PostgreSQLEngine

from .test_postgresql_conformance import Rows

SERVER: Final = (1000.0, True, 0.0, 0, 0, "key", 1)
"""What a row begins with: the time, what is known of the server, the key, and the row's version."""


def claim(owner: str, limit: int = 1, process: str = "p") -> Claim:
    return Claim(owner, process, 600.0, f"label of {owner}", limit)


def grant(owner: str, limit: int, fence: int, until: float = 1600.0) -> Grant:
    return Grant(claim(owner, limit), fence, 1000.0, until, confirmed=True)


def row_of(state: KeyState) -> dict[str, Any]:
    return written(reading_of((*SERVER, 0, "", "", "", 0.0, 0.0, 0.0, True, "", 0.0), "t"), state)


def as_read(row: dict[str, Any]) -> Row:
    columns = ["fence", "owner", "process", "label", "ttl", "since", "until", "confirmed"]
    return (*SERVER, *(row[name] for name in (*columns, "rest", "ends")))


def queue(*places: Place) -> dict[str, Place]:
    return {place.claim.owner: place for place in places}


READERS: Final = KeyState(
    7,
    (grant("a", SHARED, 5), grant("b", 3, 6, until=1900.0), grant("c", SHARED, 7)),
    queue(Place(claim("d"), 1004.0), Place(claim("e", 2), 1003.0)),
    (Voided("f", 1010.0),),
)


class TestRows:
    def test_an_exclusive_lease_is_in_the_columns(self) -> None:
        """``rest`` has what there is besides it: waiters, and owners that gave up."""
        state = KeyState(5, (grant("a", 1, 5),), queue(Place(claim("b"), 1004.0)), READERS.voided)
        row = row_of(state)
        assert row.pop("version") != row.pop("seen")
        assert codec.from_bytes(row.pop("rest").encode(), "") == state._replace(grants=())
        assert row == {
            "key": "key",
            "fence": 5,
            "owner": "a",
            "process": "p",
            "label": "label of a",
            "ttl": 600.0,
            "since": 1000.0,
            "until": 1600.0,
            "confirmed": True,
            "ends": 1600.0,
        }

    @pytest.mark.parametrize(
        "state",
        [
            READERS,
            KeyState(5, (grant("a", 1, 5),)),
            KeyState(5, (grant("a", 3, 5),)),
            KeyState(6, (grant("a", 3, 5),), queue(Place(claim("b"), 1004.0))),
            KeyState(5, (grant("a", 1, 5),), queue(Place(claim("b", SHARED), 1004.0))),
            KeyState(5, (), queue(Place(claim("b", 4), 1004.0))),
            KeyState(5, (grant("a", 1, 5),), asked=5),
            READERS._replace(asked=6),
        ],
    )
    def test_what_is_written_is_read(self, state: KeyState) -> None:
        """Leases, waiters and their limits come back as they were."""
        assert reading_of(as_read(row_of(state)), "t").state == state

    def test_a_row_of_another_format_is_left_as_it_is(self) -> None:
        """Its format is named, no caller gets the key, and the lease that is in the columns goes on."""
        url = fresh_postgresql()
        with Locks.from_url(url, wait=0) as locks, locks.hold("key") as lease:
            (table,) = re.findall("table=([a-z0-9_]+)", url)
            shared_postgres().execute(f"UPDATE {table} SET rest = '7\t[]' WHERE key LIKE '%key'")
            with psycopg.connect(shared_postgres().url()) as connection:
                query = f"SELECT * FROM {table} WHERE key LIKE '%key'".encode()
                before = connection.execute(query).fetchall()
                connection.rollback()
                with pytest.raises(ConfigurationError, match=rf"{table} .* in the format '7'"):
                    locks.acquire("key")
                assert connection.execute(query).fetchall() == before
            shared_postgres().execute(f"UPDATE {table} SET rest = '' WHERE key LIKE '%key'")
            lease.check()


def test_all_who_are_let_in_at_once_are_notified() -> None:
    """Each process whose waiters enter with one release hears of its own."""
    engine = open_engine(fresh_postgresql())
    try:
        heard = let_in_at_once(engine)
    finally:
        engine.close()
    who = [(process, payload.split()[0]) for process, payload in sorted(heard)]
    assert who == [("one", "a"), ("one", "c"), ("other", "b")]


def let_in_at_once(engine: PostgreSQLEngine) -> list[tuple[str, str]]:
    """What the processes of three readers are notified of when a writer releases."""
    key = Rows(engine, Clock(), "key")
    key.acquire(claim("writer"), 9)
    for owner, process in [("a", "one"), ("b", "other"), ("c", "one")]:
        key.acquire(claim(owner, SHARED, process), 9)
    heard: list[tuple[str, str]] = []
    with psycopg.connect(shared_postgres().url(), autocommit=True) as listener:
        listener.add_notify_handler(lambda notify: heard.append((notify.channel, notify.payload)))
        listener.execute('LISTEN "one"; LISTEN "other"')
        key.release("writer", 0.0)
        eventually(lambda: listener.execute("SELECT 1") and len(heard) == 3)
    return heard
