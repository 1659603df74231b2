"""The guard where the engine keeps its leases in the same database, in a table of their own."""

from __future__ import annotations

import asyncio
import re
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import create_engine, func, select
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from tests.servers.postgres import fresh_postgresql, shared_postgres
from weblock import ConfigurationError, LeaseLost, Locks
from weblock.contrib.kit.guarding import StaleFence
from weblock.contrib.sqlalchemy import fence_table, guard

LEVELS = pytest.mark.parametrize("isolation", ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"])


class Base(DeclarativeBase):
    pass


class Item(Base):
    __tablename__ = "item"

    id: Mapped[int] = mapped_column(primary_key=True)


fence_table(Base.metadata)


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


def test_least_rights_are_enough_and_are_told(database: Any, locks: Locks) -> None:
    """The application's user needs four rights on the table; without them, the error says so."""
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
