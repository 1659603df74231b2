"""``guard``: a session whose lease is lost commits nothing, on a real PostgreSQL."""

import asyncio
from contextlib import nullcontext
from typing import Annotated

import httpx
import pytest
from fastapi import Depends, FastAPI
from sqlalchemy import Engine, create_engine, func, select
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from tests.servers import Postgres
from tests.support.waiting import PATIENCE
from weblock import AsyncLease, LeaseLost, Locks
from weblock.contrib.fastapi import install, lock
from weblock.contrib.sqlalchemy import guard

Held = Annotated[AsyncLease, Depends(lock("x"))]


class Base(DeclarativeBase):
    pass


class Item(Base):
    __tablename__ = "item"

    id: Mapped[int] = mapped_column(primary_key=True)


@pytest.fixture(scope="module")
def server():
    """A PostgreSQL."""
    with Postgres() as server:
        yield server


@pytest.fixture
def engine(server):
    """A database of this test's own, with an empty table."""
    engine = create_engine(server.url(driver="psycopg"))
    Base.metadata.drop_all(engine)
    Base.metadata.create_all(engine)
    yield engine
    engine.dispose()


@pytest.fixture(params=["asyncpg", "psycopg"])
async def async_engine(request, server, engine):
    """The same database, for asyncio."""
    engine = create_async_engine(server.url(driver=request.param))
    yield engine
    await engine.dispose()


@pytest.fixture
def lease(url):
    """A lease of the blocking face."""
    with Locks.from_url(url) as locks:
        lease = locks.acquire("x")
        yield lease
        try:
            lease.release()
        except LeaseLost:
            pass


def lose(lease) -> None:
    """Has the keeper find that somebody else has taken the lease, at this very moment."""
    for holding in lease._holdings:
        holding.lose("taken")


def items(engine: Engine) -> int:
    """How many have been committed."""
    with Session(engine) as session:
        return session.scalar(select(func.count(Item.id))) or 0


class TestASession:
    def test_it_commits_while_the_lease_is_held(self, engine, lease):
        """All that is committed, and again, with ``commit``, ``begin`` and ``begin_nested``."""
        with Session(engine) as session:
            guard(session, lease)
            with session.begin():
                session.add(Item())
            with session.begin_nested():
                session.add(Item())
            session.commit()
        assert items(engine) == 2

    @pytest.mark.parametrize("how", ["commit", "begin", "begin_nested"])
    def test_it_does_not_when_it_is_lost(self, engine, lease, how):
        """Every way to commit raises, and the session can be rolled back and left as ever."""

        def change(session: Session) -> None:
            with nullcontext() if how == "commit" else getattr(session, how)():
                session.add(Item())
                lose(lease)
                if how == "commit":
                    session.commit()

        with Session(engine) as session:
            guard(session, lease)
            with pytest.raises(LeaseLost):
                change(session)
            session.rollback()
            assert session.scalar(select(func.count(Item.id))) == 0
        assert items(engine) == 0
        assert engine.pool.checkedout() == 0

    def test_a_session_without_it_commits(self, engine, lease):
        """The naive session knows nothing of leases."""
        with Session(engine) as session:
            session.add(Item())
            lose(lease)
            session.commit()
        assert items(engine) == 1

    def test_a_loss_during_the_flush_counts(self, engine, lease):
        """The lease is looked at after the changes were sent, not before, which may take long."""
        with Session(engine) as session:
            guard(session, lease)
            session.add(Item())
            execute = session.connection().dialect.do_execute

            def lose_meanwhile(*args, **kwargs):
                lose(lease)
                return execute(*args, **kwargs)

            session.connection().dialect.do_execute = lose_meanwhile  # type: ignore[method-assign]
            with pytest.raises(LeaseLost):
                session.commit()
        assert items(engine) == 0

    def test_a_release_ends_it(self, engine, lease):
        """A commit that comes after the release is outside the lock, and is refused too."""
        with Session(engine) as session:
            guard(session, lease)
            session.add(Item())
            lease.release()
            with pytest.raises(LeaseLost, match="it has been released"):
                session.commit()


async def test_an_async_session(engine, async_engine, lease):
    """It is the same with the drivers of asyncio."""
    async with AsyncSession(async_engine) as session:
        guard(session, lease)
        session.add(Item())
        await session.commit()
        session.add(Item())
        lose(lease)
        with pytest.raises(LeaseLost):
            await session.commit()
    assert items(engine) == 1


@pytest.mark.parametrize("way", ["sync, request", "sync, function", "async, request"])
@pytest.mark.parametrize("guarded", [True, False])
async def test_a_loss_after_the_handler(engine, async_engine, locks, way, guarded):
    """A lease that is lost between handler and commit: with the guard nothing is committed.

    Without it the client is told all the same, but the work is in the database.
    """
    kind, scope = way.split(", ")
    app = FastAPI()
    install(app, locks)

    def sync_session(lease: Held):
        with Session(engine) as session:
            if guarded:
                guard(session, lease)
            yield session
            lose(lease)
            session.commit()

    async def async_session(lease: Held):
        async with AsyncSession(async_engine) as session:
            if guarded:
                guard(session, lease)
            yield session
            lose(lease)
            await session.commit()

    opened = Depends(sync_session if kind == "sync" else async_session, scope=scope)

    @app.post("/items", status_code=201)
    async def create(session: Annotated[AsyncSession | Session, opened]) -> None:
        session.add(Item())

    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with (
        asyncio.timeout(PATIENCE),
        httpx.AsyncClient(transport=transport, base_url="http://shop") as client,
    ):
        answer = await client.post("/items")
    assert (answer.status_code, answer.json()["code"]) == (503, "lease_lost")
    assert items(engine) == (0 if guarded else 1)
