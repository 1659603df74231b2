"""``guard``: a session whose lease is lost commits nothing, on a real PostgreSQL."""

import asyncio
import re
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from typing import Annotated

import httpx
import pytest
from fastapi import Depends, FastAPI
from sqlalchemy import (
    Engine,
    MetaData,
    create_engine,
    event,
    func,
    insert,
    inspect,
    select,
    text,
    update,
)
from sqlalchemy.exc import OperationalError, PendingRollbackError
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from tests.support.waiting import PATIENCE
from weblock import AsyncLease, ConfigurationError, LeaseLost, Locks
from weblock.contrib.fastapi import install, lock
from weblock.contrib.kit import sql
from weblock.contrib.kit.guarding import FenceLocked, StaleFence
from weblock.contrib.kit.sql import TABLE, dialect_of
from weblock.contrib.sqlalchemy import fence_table, guard

from .losing import lose

Held = Annotated[AsyncLease, Depends(lock("x"))]


class Base(DeclarativeBase):
    pass


class Item(Base):
    __tablename__ = "item"

    id: Mapped[int] = mapped_column(primary_key=True)


@pytest.fixture
def engine(server):
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
    with Locks.from_url(url) as locks:
        lease = locks.acquire("x")
        yield lease
        try:
            lease.release()
        except LeaseLost:
            pass


def its_commit_is_refused(session) -> None:
    """A write of a holder that was followed does not come through."""
    session.add(Item())
    with pytest.raises(StaleFence):
        session.commit()
    session.rollback()


def items(engine: Engine) -> int:
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
            with pytest.raises(LeaseLost, match="it was released by its holder"):
                session.commit()


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


SYNC = pytest.mark.parametrize("isolation", ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"])


@pytest.fixture
def fenced(engine):
    metadata = MetaData()
    fence_table(metadata)
    metadata.drop_all(engine)
    metadata.create_all(engine)
    return engine


@pytest.fixture
def follow(blocking, fenced):
    def follow():
        assert blocking.force_release("x")
        with ThreadPoolExecutor(1) as pool:
            pool.submit(add, blocking, fenced).result()

    return follow


def add(locks, engine):
    with locks.hold("x") as lease, Session(engine) as session:
        guard(session, lease, fence=True)
        session.add(Item())
        session.commit()


@pytest.fixture
def blocking(url):
    with Locks.from_url(url) as locks:
        yield locks


@pytest.fixture
def followed(blocking):
    """A lease that the engine gives to another without its holder noticing."""
    lease = blocking.acquire("x", renew=False)
    yield lease
    try:
        lease.release()
    except LeaseLost:
        pass


def fences(engine):
    with Session(engine) as session:
        return [*session.scalars(text(f"SELECT fence FROM {TABLE}"))]


def tables_asked(engine, work):
    sent = []

    def note(_connection, _cursor, statement, *_more):
        sent.append(statement)

    event.listen(engine, "before_cursor_execute", note)
    try:
        work()
    finally:
        event.remove(engine, "before_cursor_execute", note)
    return [TABLE in statement for statement in sent]


class TestTheDatabaseAsReferee:
    @pytest.mark.parametrize("fence", [True, False])
    @SYNC
    def test_a_holder_that_was_followed_commits_nothing(
        self, fenced, followed, follow, isolation, fence
    ):
        """It is refused at the commit, on each isolation level; without the fence it commits."""
        with Session(fenced.execution_options(isolation_level=isolation)) as session:
            guard(session, followed, fence=fence)
            session.scalar(select(func.count(Item.id)))
            follow()
            session.add(Item())
            if fence:
                with pytest.raises(StaleFence):
                    session.commit()
                session.rollback()
            elif isolation != "SERIALIZABLE":
                session.commit()
        assert items(fenced) == (2 if not fence and isolation != "SERIALIZABLE" else 1)
        assert fenced.pool.checkedout() == 0

    @pytest.mark.parametrize("how", ["begin", "begin_nested", "execute", "two steps"])
    def test_every_way_to_commit_is_checked(self, fenced, followed, follow, how):
        """Blocks, savepoints, statements without objects, and a second transaction of the session."""

        def change(session: Session) -> None:
            if how == "two steps":
                session.scalar(select(func.count(Item.id)))
                session.commit()
            with nullcontext() if how == "execute" else session.begin():
                follow()
                if how == "execute":
                    session.execute(insert(Item))
                    session.commit()
                    return
                with session.begin_nested() if how == "begin_nested" else nullcontext():
                    session.add(Item())

        with Session(fenced) as session:
            guard(session, followed, fence=True)
            with pytest.raises(StaleFence):
                change(session)
            session.rollback()
        assert items(fenced) == 1

    @pytest.mark.parametrize("of", ["session", "engine", "connection"])
    def test_what_a_listener_writes_at_commit_is_checked(self, fenced, followed, follow, of):
        """A listener that writes in a transaction that had only read is refused, whenever it was added."""
        with Session(fenced) as session:
            guard(session, followed, fence=True)
            session.scalar(select(func.count(Item.id)))
            follow()
            if of == "session":
                event.listen(
                    session, "before_commit", lambda session: session.execute(insert(Item))
                )
            else:
                target = fenced if of == "engine" else session.connection()
                event.listen(target, "commit", lambda connection: connection.execute(insert(Item)))
            with pytest.raises(StaleFence):
                session.commit()
        assert items(fenced) == 1

    def test_sql_that_commits_is_refused(self, fenced, followed):
        """A COMMIT as SQL says what to do instead."""
        with Session(fenced) as session:
            guard(session, followed, fence=True)
            session.add(Item())
            session.flush()
            for each in ("COMMIT", "SELECT 1; COMMIT"):
                with pytest.raises(ConfigurationError, match="ends the transaction before"):
                    session.execute(text(each))
        assert items(fenced) == 0

    def test_a_connection_that_breaks_at_the_check_says_so(self, fenced, lease):
        """The error is the driver's, not one about what became of the transaction."""
        with Session(fenced) as session:
            guard(session, lease, fence=True)
            session.execute(insert(Item))
            number = session.scalar(text("SELECT pg_backend_pid()"))
            with fenced.begin() as connection:
                connection.execute(text(f"SELECT pg_terminate_backend({number})"))
            with pytest.raises(OperationalError, match="terminat"):
                session.commit()
        assert items(fenced) == 0

    def test_a_connection_that_commits_by_itself_is_checked(self, fenced, followed, follow):
        """session.connection().commit() is refused like session.commit()."""
        with Session(fenced) as session:
            guard(session, followed, fence=True)
            session.scalar(select(func.count(Item.id)))
            follow()
            session.execute(insert(Item))
            with pytest.raises(StaleFence):
                session.connection().commit()
        assert items(fenced) == 1

    @pytest.mark.parametrize("how", ["statement", "connection", "flush", "commit"])
    def test_a_statement_that_the_database_refuses_says_why(self, fenced, followed, follow, how):
        """A serialization error of a stale section is told as what it is, and the pool is left whole."""
        change = update(Item).values(id=Item.id + 100)
        with Session(fenced) as session, session.begin():
            session.add(Item())
        with Session(fenced.execution_options(isolation_level="REPEATABLE READ")) as session:
            guard(session, followed, fence=True)
            item = session.scalars(select(Item)).one()
            follow()
            with fenced.begin() as connection:
                connection.execute(change)
            if how in ("flush", "commit"):
                item.id = 1000
            with pytest.raises(StaleFence):
                {
                    "statement": lambda: session.execute(change),
                    "connection": lambda: session.connection().execute(change),
                    "flush": session.flush,
                    "commit": session.commit,
                }[how]()
            session.rollback()
        assert items(fenced) == 2
        assert fenced.pool.checkedout() == 0

    def test_a_refused_statement_breaks_the_transaction(self, fenced, lease):
        """After a conflict over other data, nothing is committed of a transaction of which a part is gone."""
        change = update(Item).values(id=Item.id + 100)
        with fenced.begin() as connection:
            connection.execute(insert(Item).values(id=1))
        with Session(fenced.execution_options(isolation_level="REPEATABLE READ")) as session:
            guard(session, lease, fence=True)
            session.execute(insert(Item).values(id=2))
            with fenced.begin() as connection:
                connection.execute(change)
            with pytest.raises(OperationalError):
                session.execute(change)
            with pytest.raises(PendingRollbackError):
                session.execute(insert(Item).values(id=3))
            session.rollback()
            session.execute(insert(Item).values(id=4))
            session.commit()
        assert items(fenced) == 2

    def test_two_phases_are_checked(self, server, fenced, followed, follow):
        """A two-phase commit is refused before its first phase."""
        with Session(fenced, twophase=True) as session:
            guard(session, followed, fence=True)
            session.scalar(select(func.count(Item.id)))
            follow()
            its_commit_is_refused(session)
        assert items(fenced) == 1

    def test_who_comes_too_late_reads_nothing(self, fenced, followed, follow):
        """A session whose holder slept before its first statement is refused there."""
        with Session(fenced) as session:
            guard(session, followed, fence=True)
            follow()
            with pytest.raises(StaleFence):
                session.scalar(select(func.count(Item.id)))

    def test_a_lease_goes_on_in_the_sessions_of_those_who_take_it_over(
        self, fenced, blocking, caplog
    ):
        """Each commits in turn, with the lease's own fence: nobody takes the engine for one that was set back."""
        lease = blocking.acquire("x")
        for _ in range(3):
            with Session(fenced) as session:
                guard(session, lease, fence=True)
                session.add(Item())
                session.commit()
            assert fences(fenced) == [lease.fence]
            lease = blocking.take_over(lease.hand_over())
        lease.release()
        assert items(fenced) == 3
        assert "lost its data" not in caplog.text

    def test_who_has_handed_over_takes_the_place_of_nobody(self, fenced, followed, blocking):
        """A session of its own that begins only then is refused, and the next holder commits."""
        taken = blocking.take_over(followed.hand_over())
        with Session(fenced) as session, Session(fenced) as late:
            guard(session, taken, fence=True)
            session.add(Item())
            session.flush()
            guard(late, followed, fence=True)
            with pytest.raises(LeaseLost):
                late.scalar(select(func.count(Item.id)))
            session.commit()
        taken.release()
        assert items(fenced) == 1

    @pytest.mark.parametrize("row", ["old", "deleted", "deleted after another"])
    def test_a_lease_may_last_for_days(self, fenced, followed, follow, monkeypatch, row):
        """Its row is written again before it is old; once deleted, the engine says whose the key is."""
        with Session(fenced) as session:
            guard(session, followed, fence=True)
            session.execute(insert(Item))
            session.commit()
        if row == "deleted after another":
            follow()
        with fenced.begin() as connection:
            if row == "old":
                aged = f"UPDATE {TABLE} SET raised_at = raised_at - interval '2 days'"
                connection.execute(text(aged))
            else:
                connection.execute(text(f"DELETE FROM {TABLE}"))
        monkeypatch.setattr(sql, "REFRESH", -1.0)
        with Session(fenced) as session:
            guard(session, followed, fence=True)
            with pytest.raises(StaleFence) if "after" in row else nullcontext():
                session.scalar(select(func.count(Item.id)))
                with fenced.begin() as connection:
                    connection.execute(text(dialect_of("postgresql").sweeping))
                session.execute(insert(Item))
                session.commit()
        assert items(fenced) == 2

    async def test_async_sessions_are_checked(self, async_engine, fenced, followed, follow):
        """AsyncSession too, on asyncpg and psycopg, with a lease of either API."""
        async with AsyncSession(async_engine) as session:
            guard(session, followed, fence=True)
            await session.scalar(select(func.count(Item.id)))
            await asyncio.to_thread(follow)
            session.add(Item())
            with pytest.raises(StaleFence):
                await session.commit()
            await session.rollback()
        assert items(fenced) == 1

    def test_it_costs_two_statements(self, fenced, followed):
        """One before the work, one before the commit; none there where nothing was written."""

        def write(session: Session) -> None:
            session.add(Item())
            session.commit()

        with Session(fenced) as session:
            guard(session, followed, fence=True)
            assert tables_asked(fenced, lambda: write(session)) == [True, False, True]
            assert tables_asked(fenced, lambda: write(session)) == [False, True]
            read = select(func.count(Item.id)).where(Item.id < 7)
            assert tables_asked(fenced, lambda: (session.scalar(read), session.commit())) == [False]

    def test_what_cannot_be_guarded_is_refused(self, fenced, followed):
        """An open transaction, a connection and autocommit are refused, and say what to do."""
        with Session(fenced) as session:
            session.scalar(select(func.count(Item.id)))
            with pytest.raises(ConfigurationError, match="before its first use"):
                guard(session, followed, fence=True)
        with fenced.connect() as connection, Session(connection) as session:
            guard(session, followed, fence=True)
            with pytest.raises(ConfigurationError, match="bound to an engine"):
                session.scalar(select(func.count(Item.id)))
        with Session(fenced.execution_options(isolation_level="AUTOCOMMIT")) as session:
            guard(session, followed, fence=True)
            with pytest.raises(ConfigurationError, match="AUTOCOMMIT"):
                session.scalar(select(func.count(Item.id)))

    @pytest.mark.parametrize("by", ["bind", "mapper"])
    def test_a_connection_by_its_database_is_guarded(self, fenced, lease, by):
        """session.connection(bind_arguments=...) writes the fence first, as any other way does."""
        given = {"bind": {"bind": fenced}, "mapper": {"mapper": Item}}[by]
        with Session(fenced) as session:
            guard(session, lease, fence=True)
            session.connection(bind_arguments=given).execute(insert(Item))
            session.commit()
        assert items(fenced) == 1

    def test_a_database_without_all_characters_takes_any_key(self, server, blocking):
        """In a LATIN1 database, the row of a key has escapes for people to read."""
        server.execute(
            "DROP DATABASE IF EXISTS latin",
            "CREATE DATABASE latin TEMPLATE template0 ENCODING LATIN1 LC_COLLATE 'C' LC_CTYPE 'C'",
        )
        url = server.url(driver="psycopg", database="latin")
        engine, metadata = create_engine(url), MetaData()
        fence_table(metadata)
        Item.__table__.to_metadata(metadata)
        metadata.create_all(engine)
        for key in ("item:€", "😀" * 512):
            with blocking.hold(key) as lease, Session(engine) as session:
                guard(session, lease, fence=True)
                session.add(Item())
                session.commit()
        with engine.connect() as connection:
            keys = connection.scalars(text(f"SELECT lock_key FROM {TABLE} ORDER BY fence")).all()
        assert keys[0] == r"default:item:\u20ac"
        assert items(engine) == 2
        engine.dispose()

    def test_least_rights_are_enough_and_are_told(self, server, fenced, blocking):
        """The application's user needs four rights on the table; without them, the error says so."""
        server.execute("CREATE ROLE shop LOGIN", "GRANT ALL ON item, item_id_seq TO shop")
        engine = create_engine(server.url(user="shop", driver="psycopg"))
        with pytest.raises(ConfigurationError, match="GRANT SELECT") as refused:
            add(blocking, engine)
        server.execute(re.search("GRANT .* TO ", str(refused.value))[0] + "shop")
        add(blocking, engine)
        engine.dispose()
        server.execute("DROP OWNED BY shop", "DROP ROLE shop")
        assert items(fenced) == 1

    def test_the_table_is_where_its_statements_look(self):
        """Metadata with a schema of its own does not move it there."""
        assert fence_table(MetaData(schema="elsewhere")).schema is None

    def test_a_second_lease_of_a_key_is_refused(self, fenced, lease):
        """Two engines that hold one key would refuse each other: the error names the namespace."""
        with (
            Locks.from_url("memory://another") as others,
            others.hold("x") as other,
            Session(fenced) as session,
        ):
            guard(session, lease, fence=True)
            with pytest.raises(ConfigurationError, match="namespace="):
                guard(session, other, fence=True)

    def test_a_missing_table_says_what_to_do(self, engine, followed):
        """The error names the function that makes it."""
        with engine.begin() as connection:
            connection.execute(text(f"DROP TABLE IF EXISTS {TABLE}"))
        with Session(engine) as session:
            guard(session, followed, fence=True)
            with pytest.raises(ConfigurationError, match="fence_table"):
                session.scalar(select(func.count(Item.id)))

    def test_a_holder_stopped_before_its_commit_is_waited_for(self, fenced, blocking, followed):
        """While it has the row, the next one waits for as long as it was told, and says so."""
        with Session(fenced) as stopped:
            guard(stopped, followed, fence=True)
            event.listen(stopped.connection(), "commit", lambda _connection: next_one())

            def next_one() -> None:
                assert blocking.force_release("x")
                with ThreadPoolExecutor(1) as pool:
                    pool.submit(begin).result()

            def begin() -> None:
                with blocking.hold("x") as lease, Session(fenced) as session:
                    guard(session, lease, fence=True, wait=0.05)
                    with pytest.raises(FenceLocked, match=r"within 0\.05 s"):
                        session.scalar(select(func.count(Item.id)))

            stopped.add(Item())
            stopped.commit()
        assert items(fenced) == 1


def in_a_savepoint(session):
    with session.begin_nested():
        session.add(Item())


def by_sql(statement):
    return lambda session: session.execute(text(statement))


@pytest.mark.parametrize(
    "write",
    [
        in_a_savepoint,
        by_sql("WITH one AS (SELECT 7 AS id) INSERT INTO item (id) SELECT id FROM one"),
        by_sql("CREATE TABLE stale (id int)"),
        by_sql("PRAGMA user_version = 7"),
    ],
    ids=["savepoint", "CTE", "DDL", "PRAGMA"],
)
def test_what_python_lets_sqlite_commit_at_once_is_checked(tmp_path, blocking, followed, write):
    """After a SELECT there is no transaction yet: the guard begins one before anything is written."""
    engine = create_engine(f"sqlite:///{tmp_path}/db")
    metadata = MetaData()
    fence_table(metadata)
    Item.__table__.to_metadata(metadata)
    metadata.create_all(engine)
    with Session(engine) as session:
        guard(session, followed, fence=True)
        session.scalar(select(func.count(Item.id)))
        assert blocking.force_release("x")
        with ThreadPoolExecutor(1) as pool:
            pool.submit(add, blocking, engine).result()
        with pytest.raises(StaleFence):
            (write(session), session.commit())
    assert items(engine) == 1
    with engine.connect() as connection:
        assert connection.scalar(text("PRAGMA user_version")) == 0
        assert "stale" not in inspect(connection).get_table_names()
    engine.dispose()
