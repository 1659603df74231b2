"""The guard where the engine keeps its leases in the same database: the lease itself is checked."""

from __future__ import annotations

import asyncio
import re
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import psycopg
import pytest
from sqlalchemy import MetaData, create_engine, event, func, inspect, select, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from tests.servers.postgres import fresh_postgresql, shared_postgres
from tests.support.waiting import PATIENCE, eventually, waiters
from weblock import ConfigurationError, Lease, LeaseLost, Locks
from weblock._core.ports import LeaseTable
from weblock.contrib.guarding import (
    TABLE,
    StaleFence,
    Trouble,
    dialect_of_leases,
    marks_of,
    trouble_of,
)
from weblock.contrib.sqlalchemy import fence_table, guard

LEVELS = pytest.mark.parametrize("isolation", ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"])


class Base(DeclarativeBase):
    pass


class Item(Base):
    __tablename__ = "item"

    id: Mapped[int] = mapped_column(primary_key=True)


@pytest.fixture
def database() -> Iterator[Any]:
    """A database of its own in the server that the leases are in."""
    server = shared_postgres()
    engine = create_engine(server.url(driver="psycopg"))
    Base.metadata.drop_all(engine)
    Base.metadata.create_all(engine)
    yield engine
    Base.metadata.drop_all(engine)
    engine.dispose()


@pytest.fixture
def locks() -> Iterator[Locks]:
    """Locks in that database, in a table that nobody has used."""
    with Locks.from_url(fresh_postgresql()) as locks:
        yield locks


@pytest.fixture
def lease(locks: Locks) -> Iterator[Any]:
    """A lease whose holder does not notice that it is taken away."""
    lease = locks.acquire("x", renew=False)
    yield lease
    try:
        lease.release()
    except LeaseLost:
        pass


def add(locks: Locks, database: Any) -> None:
    """What the next holder does."""
    with locks.hold("x", wait=0) as lease, Session(database) as session:
        guard(session, lease, fence=True)
        session.add(Item())
        session.commit()


def items(database: Any) -> int:
    """How many there are."""
    with Session(database) as session:
        return session.scalar(select(func.count(Item.id))) or 0


def row_of(locks: Locks, column: str) -> Any:
    """What stands in the row of the key."""
    table = locks._engine.settings.table  # type: ignore[attr-defined]
    with psycopg.connect(shared_postgres().url(), autocommit=True) as connection:
        query = f"SELECT {column} FROM {table} WHERE key LIKE '%x'"
        (found,) = connection.execute(query.encode()).fetchone() or (None,)
    return found


def before_its_commit(session: Session, work: Callable[[], object]) -> None:
    """Do something after the check and before the COMMIT."""
    event.listen(session.connection(), "commit", lambda _connection: work())


@LEVELS
def test_a_holder_that_was_followed_commits_nothing(
    database: Any, locks: Locks, lease: Any, isolation: str
) -> None:
    """On each isolation level, the lease in the database says that it is another's."""
    with Session(database.execution_options(isolation_level=isolation)) as session:
        guard(session, lease, fence=True)
        session.scalar(select(func.count(Item.id)))
        assert locks.force_release("x")
        add(locks, database)
        session.add(Item())
        with pytest.raises(StaleFence):
            session.commit()
        session.rollback()
    assert items(database) == 1
    assert TABLE not in inspect(database).get_table_names()


@LEVELS
def test_renewals_do_not_wait_for_the_commit(database: Any, locks: Locks, isolation: str) -> None:
    """A lease is renewed before its check, and while its checked transaction stays open."""
    with (
        locks.hold("x") as lease,
        Session(database.execution_options(isolation_level=isolation)) as session,
    ):
        guard(session, lease, fence=True)
        session.scalar(select(func.count(Item.id)))
        lease.extend(1)
        session.add(Item())
        before_its_commit(session, lambda: [extended(locks, lease) for _ in range(3)])
        session.commit()
    assert items(database) == 1


def extended(locks: Locks, lease: Lease) -> None:
    """Renews the lease, by the statement that the keeper renews it with."""
    until = row_of(locks, "until")
    lease.extend(1)
    assert row_of(locks, "until") > until


@pytest.mark.parametrize("how", ["ends", "is taken away", "is taken away before others wait"])
def test_nobody_gets_the_key_before_a_checked_transaction_has_ended(
    database: Any, locks: Locks, how: str
) -> None:
    """Neither a caller that does not wait, nor one that does, which then sees what was committed."""
    seen: list[int] = []

    def follow() -> None:
        with locks.hold("x", wait=PATIENCE):
            seen.append(items(database))

    def meanwhile() -> None:
        if how == "is taken away before others wait":
            assert locks.force_release("x")
        following.append(pool.submit(follow))
        eventually(lambda: waiters(locks, "x") == 1)
        if how == "is taken away":
            assert locks.force_release("x")
        elif how == "ends":
            eventually(lambda: row_of(locks, "since + ttl < extract(epoch FROM clock_timestamp())"))
        for _ in range(3):
            assert locks.try_acquire("x") is None
        assert not seen

    following: list[Future[None]] = []
    lease = locks.acquire("x", ttl=0.5 if how == "ends" else 60, renew=False)
    with ThreadPoolExecutor(1) as pool, Session(database) as session:
        session.add(Item())
        session.flush()
        table = locks._engine.settings.table  # type: ignore[attr-defined]
        checked = text(f"SELECT key FROM {table} WHERE owner = '{lease.owner}' FOR KEY SHARE")
        assert len(session.execute(checked).all()) == 1
        meanwhile()
        session.commit()
        following[0].result()
    assert seen == [1]
    with pytest.raises(LeaseLost):
        lease.release()


@LEVELS
def test_a_lease_that_is_handed_over_goes_on_in_the_next_session(
    database: Any, locks: Locks, isolation: str
) -> None:
    """Each holder commits in turn; who has handed over commits nothing any more."""
    lease = locks.acquire("x")
    leveled = database.execution_options(isolation_level=isolation)
    with Session(leveled) as session:
        guard(session, lease, fence=True)
        session.add(Item())
        session.commit()
        session.add(Item())
        session.flush()
        taken = locks.take_over(lease.hand_over())
        with pytest.raises(LeaseLost, match="hand_over"):
            session.commit()
        session.rollback()
    with Session(leveled) as session:
        guard(session, taken, fence=True)
        assert session.scalar(select(func.count(Item.id))) == 1
        session.add(Item())
        session.commit()
        session.add(Item())
        session.flush()
        assert locks.force_release("x")
        add(locks, database)
        with pytest.raises(StaleFence):
            session.commit()
        session.rollback()
    assert items(database) == 3
    with pytest.raises(LeaseLost):
        taken.release()


def test_a_hand_over_waits_for_a_checked_transaction(database: Any, locks: Locks) -> None:
    """Another thread hands the lease over between the check and the COMMIT: the next holder sees what was written."""
    lease = locks.acquire("x")
    with ThreadPoolExecutor(1) as pool, Session(database) as session:
        guard(session, lease, fence=True)
        session.add(Item())
        moving: list[Future[int]] = []

        def move() -> int:
            with locks.take_over(lease.hand_over(ttl=60)):
                return items(database)

        def meanwhile() -> None:
            moving.append(pool.submit(move))
            eventually(lambda: not lease.held)
            with pytest.raises(TimeoutError):
                moving[0].result(timeout=0.3)

        before_its_commit(session, meanwhile)
        session.commit()
        assert moving[0].result() == 1


@pytest.mark.parametrize("isolation", ["REPEATABLE READ", "SERIALIZABLE"])
def test_an_older_snapshot_overlooks_no_hand_over(
    database: Any, locks: Locks, isolation: str
) -> None:
    """A process that was stopped just before its check does not find the lease as it once was."""
    lease = locks.acquire("x")
    table = locks._engine.settings.table  # type: ignore[attr-defined]
    (mark,) = marks_of(lease)
    check = text(dialect_of_leases(LeaseTable("", table)).checking)
    with Session(database.execution_options(isolation_level=isolation)) as session:
        session.add(Item())
        session.flush()
        with locks.take_over(lease.hand_over()):
            with pytest.raises(OperationalError) as refused:
                session.execute(check, mark.values())
            assert trouble_of(refused.value) is Trouble.CONFLICT


def test_it_costs_one_statement(database: Any, lease: Any) -> None:
    """There is none before the work, and none where nothing was written."""
    sent: list[str] = []
    event.listen(database, "before_cursor_execute", lambda _c, _cursor, sql, *_: sent.append(sql))

    def sends(change: bool) -> list[bool]:
        with Session(database) as session:
            guard(session, lease, fence=True)
            session.scalar(select(func.count(Item.id)))
            if change:
                session.add(Item())
            sent.clear()
            session.commit()
        return ["FOR KEY SHARE" in statement for statement in sent]

    assert sends(change=True) == [False, True]
    assert sends(change=False) == []


@pytest.mark.parametrize("driver", ["asyncpg", "psycopg"])
async def test_async_sessions_are_checked(
    database: Any, locks: Locks, lease: Any, driver: str
) -> None:
    """On the drivers for asyncio, too."""
    there = create_async_engine(shared_postgres().url(driver=driver))
    try:
        async with AsyncSession(there) as session:
            guard(session, lease, fence=True)
            session.add(Item())
            await session.commit()
            session.add(Item())
            await session.flush()
            assert locks.force_release("x")
            await asyncio.to_thread(add, locks, database)
            with pytest.raises(StaleFence):
                await session.commit()
            await session.rollback()
    finally:
        await there.dispose()
    assert items(database) == 2


def test_another_database_of_the_same_server_has_its_own_table(locks: Locks) -> None:
    """What counts is where the transaction takes place, which the server is asked."""
    server = shared_postgres()
    name = server.create_database(f"guarded_{uuid.uuid4().hex}")
    engine = create_engine(server.url(name, driver="psycopg"))
    Base.metadata.create_all(engine)
    try:
        with pytest.raises(ConfigurationError, match=TABLE):
            add(locks, engine)
        metadata = MetaData()
        fence_table(metadata)
        metadata.create_all(engine)
        add(locks, engine)
        with engine.connect() as connection:
            assert connection.scalar(text(f"SELECT count(*) FROM {TABLE}")) == 1
    finally:
        engine.dispose()
        server.execute(f'DROP DATABASE "{name}" WITH (FORCE)')


def test_least_rights_are_enough_and_are_told(database: Any, locks: Locks) -> None:
    """The application's user reads three columns and may lock rows; without that, the error says so."""
    server, name = shared_postgres(), f"shop_{uuid.uuid4().hex}"
    server.execute(f"CREATE ROLE {name} LOGIN", f"GRANT ALL ON item, item_id_seq TO {name}")
    engine = create_engine(server.url(user=name, driver="psycopg"))
    try:
        with pytest.raises(ConfigurationError, match="GRANT SELECT") as refused:
            add(locks, engine)
        grant = re.search("GRANT .* TO ", str(refused.value))
        assert grant
        server.execute(grant[0] + name)
        add(locks, engine)
    finally:
        engine.dispose()
        server.execute(f"DROP OWNED BY {name}", f"DROP ROLE {name}")
    assert items(database) == 1
