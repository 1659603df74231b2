"""What a request has read before its lock is read again inside it, on a real PostgreSQL.

One credit is left and three requests want it: one buys, however each of them has read the account.
"""

import asyncio
import sys
import threading
from abc import ABC, abstractmethod
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Any

import anyio
import httpx
import pytest
from fastapi import Depends, FastAPI, HTTPException, Request
from fastapi.responses import JSONResponse
from flask import Flask, g
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy import (
    Connection,
    ForeignKey,
    create_engine,
    event,
    func,
    insert,
    select,
    text,
    update,
)
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import (
    DeclarativeBase,
    Mapped,
    Session,
    mapped_column,
    relationship,
    selectinload,
    sessionmaker,
)

from tests.support.waiting import PATIENCE, eventually, waiters
from weblock import AsyncLocks, ConfigurationError, Locks, LockTimeout
from weblock.contrib.asgi import RequestLayer
from weblock.contrib.fastapi import guarded, install, lock, request_locks
from weblock.contrib.flask import WebLock
from weblock.contrib.sqlalchemy import fence_table, sessions


class Base(DeclarativeBase):
    pass


class Account(Base):
    __tablename__ = "account"

    id: Mapped[int] = mapped_column(primary_key=True)
    credit: Mapped[int]
    purchases: Mapped[list["Purchase"]] = relationship()


class Purchase(Base):
    __tablename__ = "purchase"

    id: Mapped[int] = mapped_column(primary_key=True)
    account_id: Mapped[int] = mapped_column(ForeignKey(Account.id))


fence_table(Base.metadata)

ACCOUNT = select(Account).where(Account.id == 7)


def in_each_way(*ways):
    """Each way with a snapshot that lasts, and the first of them on the other levels, too."""
    levels = [(way, "REPEATABLE READ") for way in ways]
    levels += [(ways[0], "READ COMMITTED"), (ways[0], "SERIALIZABLE")]
    return pytest.mark.parametrize(("way", "isolation"), levels)


@pytest.fixture
def database(server):
    engine = create_engine(server.url(driver="psycopg"))
    Base.metadata.drop_all(engine)
    Base.metadata.create_all(engine)
    with Session(engine) as session:
        session.add(Account(id=7, credit=1))
        session.commit()
    yield engine
    engine.dispose()


@pytest.fixture(autouse=True)
def _warnings_are_new():
    """Let each test see the warnings that are logged once in a process."""
    sessions._warn_once.cache_clear()


@pytest.fixture
def locks(url):
    with Locks.from_url(url, wait=PATIENCE) as locks:
        yield locks


def bought(engine):
    with Session(engine) as session:
        return session.scalar(select(func.count(Purchase.id))), session.get_one(Account, 7).credit


def buy(session, account):
    if account.credit < 1:
        raise HTTPException(402)
    account.credit -= 1
    session.add(Purchase(account_id=account.id))


def client_of(app):
    transport = httpx.ASGITransport(app)
    return httpx.AsyncClient(transport=transport, base_url="http://shop")


class Blocking:
    """The dependencies of an application with a ``Session``."""

    def __init__(self, server, isolation="READ COMMITTED", **options):
        self.engine = create_engine(
            server.url(driver="psycopg"), isolation_level=isolation, **options
        )
        self.pool = self.engine.pool
        self.make = sessionmaker(self.engine, expire_on_commit=False)

    def get_session(self):
        with self.make() as session:
            yield session
            session.commit()

    def get_another(self):
        yield from self.get_session()

    def begun(self):
        with self.make.begin() as session:
            yield session

    def dependency(self, name, get_session):
        def read(session: Annotated[Session, Depends(get_session)]) -> Account:
            account = session.scalars(ACCOUNT).one()
            if name == "read and commit":
                session.commit()
            return account

        return read

    def service(self, read):
        def view(
            session: Annotated[Session, Depends(self.get_session)],
            account: Annotated[Account, Depends(read)],
        ) -> None:
            request_locks().acquire(f"user:{account.id}", wait=PATIENCE)
            buy(session, account)

        return view

    async def close(self):
        self.engine.dispose()


class Asyncio:
    """The same with an ``AsyncSession``."""

    def __init__(self, server, driver, isolation="READ COMMITTED", **options):
        self.engine = create_async_engine(
            server.url(driver=driver), isolation_level=isolation, **options
        )
        self.pool = self.engine.pool
        self.make = async_sessionmaker(self.engine, expire_on_commit=False)

    async def get_session(self):
        async with self.make() as session:
            yield session
            await session.commit()

    async def get_another(self):
        async with self.make() as session:
            yield session
            await session.commit()

    async def begun(self):
        async with self.make() as session, session.begin():
            yield session

    def dependency(self, name, get_session):
        async def read(session: Annotated[AsyncSession, Depends(get_session)]) -> Account:
            account = (await session.scalars(ACCOUNT)).one()
            if name == "read and commit":
                await session.commit()
            return account

        return read

    def service(self, read):
        async def view(
            session: Annotated[AsyncSession, Depends(self.get_session)],
            account: Annotated[Account, Depends(read)],
        ) -> None:
            await request_locks().acquire(f"user:{account.id}", wait=PATIENCE)
            buy(session, account)

        return view

    async def close(self):
        await self.engine.dispose()


@pytest.fixture(params=["blocking", "asyncpg"])
async def parts(request, server):
    """What an application is made of, with each kind of session; a function of its options."""
    made = []

    def make(**options):
        blocking = request.param == "blocking"
        made.append(
            Blocking(server, **options) if blocking else Asyncio(server, request.param, **options)
        )
        return made[-1]

    yield make
    for each in made:
        await each.close()


def shop_of(url, parts, way):
    read = parts.dependency(
        "read and commit" if way == "committed" else "read",
        parts.get_another if way == "another session" else parts.get_session,
    )

    def key_of_user(user: Annotated[Account, Depends(read)]) -> str:
        return f"user:{user.id}"

    wanted = lock("user:7" if way.startswith("row") else key_of_user, wait=PATIENCE)
    get_session = guarded(parts.get_session, wanted) if way == "guarded" else parts.get_session
    again = parts.dependency("again", parts.get_session)
    is_read_again = way in ("selected again", "another session")
    session = Annotated[Any, Depends(get_session)]
    account = Annotated[Account, Depends(again if is_read_again else read)]
    lease = Annotated[Any, Depends(wanted)]

    def session_first(session: session, account: account, lease: lease) -> None:
        buy(session, account)

    def lock_first(lease: lease, session: session, account: account) -> None:
        buy(session, account)

    def lock_between(session: session, lease: lease, account: account) -> None:
        buy(session, account)

    app = FastAPI()
    install(app, url)
    views = {
        "row first": session_first,
        "guarded": session_first,
        "row last": lock_first,
        "service": parts.service(read),
    }
    app.post("/")(lock_between if is_read_again else views.get(way, lock_first))
    return app


@in_each_way(
    "key of user",
    "committed",
    "selected again",
    "another session",
    "row first",
    "row last",
    "guarded",
    "service",
)
async def test_fastapi_loses_no_update(  # noqa: PLR0917 - fixtures
    database, url, locks, parts, way, isolation
):
    """In whatever order it is declared, a session reads again; and no waiter has a connection."""
    of = parts(isolation=isolation)
    holder = locks.acquire("user:7")
    async with asyncio.timeout(PATIENCE), client_of(shop_of(url, of, way)) as client:
        asked = [asyncio.create_task(client.post("/")) for _ in range(3)]
        await asyncio.to_thread(eventually, lambda: waiters(locks, "user:7") == 3)
        assert of.pool.checkedout() == 0
        holder.release()
        answers = [await each for each in asked]
    assert sorted(answer.status_code for answer in answers) == [200, 402, 402]
    assert bought(database) == (1, 0)


@pytest.mark.parametrize("way", ["key of user", "guarded", "service"])
async def test_nobody_starves(database, url, parts, way):
    """40 requests of one user are served with a pool of five connections."""
    with Session(database) as session:
        session.get_one(Account, 7).credit = 15
        session.commit()
    of = parts(pool_size=5, max_overflow=0, pool_timeout=PATIENCE)
    async with asyncio.timeout(PATIENCE), client_of(shop_of(url, of, way)) as client:
        answers = await asyncio.gather(*(client.post("/") for _ in range(40)))
    assert Counter(answer.status_code for answer in answers) == {200: 15, 402: 25}
    assert bought(database) == (15, 0)


@pytest.mark.parametrize("end", ["stays open", "is committed", "is rolled back"])
async def test_a_release_before_the_commit_is_reported(database, url, parts, caplog, end):
    """``hold`` in a service function that ends before its session has committed logs the remedy."""
    of = parts()
    app = FastAPI()
    locks = install(app, url)
    key = f"{url}-{end}"

    @app.post("/async")
    async def in_a_task(session: Annotated[Any, Depends(of.get_session)]) -> None:
        async with locks.hold(key):
            session.add(Purchase(account_id=7))
            if end == "is committed":
                await session.commit()
            elif end == "is rolled back":
                raise HTTPException(402)

    @app.post("/blocking")
    def in_a_thread(session: Annotated[Any, Depends(of.get_session)]) -> None:
        with Locks.from_url(url) as locks, locks.hold(key):
            session.add(Purchase(account_id=7))
            if end == "is committed":
                session.commit()
            elif end == "is rolled back":
                raise HTTPException(402)

    async with client_of(app) as client:
        path = "/blocking" if isinstance(of, Blocking) else "/async"
        status = 402 if end == "is rolled back" else 200
        assert (await client.post(path)).status_code == status
    reported = [each for each in caplog.messages if "has uncommitted writes" in each]
    assert len(reported) == (1 if end == "stays open" else 0)


async def test_the_pools_of_threads_need_no_place_for_a_rollback(server, database, url):
    """A request returns its connection also while all threads wait for one."""
    of = Blocking(server)
    everything_done = threading.Event()
    with ThreadPoolExecutor(1) as executor:
        asyncio.get_running_loop().set_default_executor(executor)
        waiting = asyncio.create_task(asyncio.to_thread(everything_done.wait))
        limiter = anyio.to_thread.current_default_thread_limiter()

        def read(session: Annotated[Session, Depends(of.get_session)]) -> Account:
            return session.scalars(ACCOUNT).one()

        async def key(account: Annotated[Account, Depends(read)]) -> str:
            limiter.total_tokens = 1
            await limiter.acquire_on_behalf_of(everything_done)
            return "x"

        app = FastAPI()
        install(app, url)

        returned = []
        event.listen(of.engine, "checkin", lambda *_: returned.append("a connection"))

        @app.post("/", dependencies=[Depends(lock(key))])
        async def view() -> list[str]:
            limiter.release_on_behalf_of(everything_done)
            return returned

        try:
            async with asyncio.timeout(PATIENCE), client_of(app) as client:
                assert (await client.post("/")).json() == ["a connection"]
        finally:
            everything_done.set()
        await waiting
    await of.close()


async def test_a_part_of_a_request_knows_the_sessions_that_are_used_around_it(database, url):
    """A mounted application ends what a middleware around it has read after it was called."""
    called, read = asyncio.Event(), asyncio.Event()

    async def mounted(_scope, _receive, _send) -> None:
        called.set()
        await read.wait()
        await request_locks().acquire("x")
        assert not session.in_transaction()

    async def middleware(scope, receive, send) -> None:
        inside = asyncio.create_task(inner(scope, receive, send))
        await called.wait()
        session.execute(ACCOUNT)
        read.set()
        await inside

    async with AsyncLocks.from_url(url) as mine, AsyncLocks.from_url(url) as others:
        inner = RequestLayer(mounted, mine)
        outer = RequestLayer(middleware, others)
        with Session(database) as session:
            await outer({"type": "http", "method": "GET", "path": "/"}, None, None)


async def test_a_row_that_was_read_before_the_lock_can_be_returned(database, url, parts):
    """An endpoint returns such a row with its values, which FastAPI reads from its ``__dict__``."""
    of = parts()
    read = of.dependency("read", of.get_session)
    app = FastAPI()
    install(app, url)

    def key(user: Annotated[Account, Depends(read)]) -> str:
        return f"user:{user.id}"

    @app.get("/", dependencies=[Depends(lock(key))], response_model=None)
    async def view(user: Annotated[Account, Depends(read)]) -> Account:
        return user

    async with client_of(app) as client:
        assert (await client.get("/")).json() == {"id": 7, "credit": 1}


async def test_a_session_that_begins_at_once_is_guarded(database, url, parts):
    """``with sessionmaker.begin() as session: yield session`` has sent nothing when it is guarded."""
    of = parts()
    app = FastAPI()
    install(app, url)

    @app.post("/")
    def add(session: Annotated[Any, Depends(guarded(of.begun, lock("user:7")))]) -> None:
        assert session.get_bind().dialect.name == "postgresql"
        session.add(Purchase(account_id=7))

    async with client_of(app) as client:
        assert (await client.post("/")).status_code == 200
    assert bought(database) == (1, 1)


async def test_a_session_that_was_used_before_the_lock_in_a_block_is_refused(database, url, parts):
    """A ``begin()`` block ends its transaction by itself; the error says what to write instead."""
    of = parts()
    app = FastAPI()
    install(app, url)
    app.post("/", dependencies=[Depends(of.dependency("read", of.begun)), Depends(lock("x"))])(
        lambda: None
    )
    async with client_of(app) as client:
        with pytest.raises(ConfigurationError, match=r"begin\(\).*yield session"):
            await client.post("/")
    assert of.pool.checkedout() == 0


async def test_objects_of_an_async_session_are_as_they_were(server, database, url, locks):
    """Also their relationships can be used at once, and a row that is gone hinders nobody."""
    with Session(database) as session:
        session.add_all([Purchase(account_id=7), Account(id=8, credit=0)])
        session.commit()
    of = Asyncio(server, "asyncpg")

    async def read(session: Annotated[AsyncSession, Depends(of.get_session)]) -> list[Account]:
        loaded = select(Account).order_by(Account.id).options(selectinload(Account.purchases))
        return [*await session.scalars(loaded)]

    app = FastAPI()
    install(app, url)

    @app.post("/")
    async def look(
        rows: Annotated[Any, Depends(read)], lease: Annotated[Any, Depends(lock("user:7"))]
    ) -> list[int]:
        return [rows[0].credit, len(rows[0].purchases)]

    holder = locks.acquire("user:7")
    async with client_of(app) as client:
        asked = asyncio.create_task(client.post("/"))
        await asyncio.to_thread(eventually, lambda: waiters(locks, "user:7") == 1)
        with Session(database) as session:
            session.execute(update(Account).where(Account.id == 7).values(credit=5))
            session.execute(text("DELETE FROM account WHERE id = 8"))
            session.add(Purchase(account_id=7))
            session.commit()
        holder.release()
        assert (await asked).json() == [5, 2]
    await of.close()


async def test_error_handlers_can_use_what_was_read(server, database, url, locks):
    """If the lock is not acquired, nothing is read again, and the objects stay usable."""
    of = Asyncio(server, "psycopg")
    app = FastAPI()
    install(app, url)

    async def current_user(
        request: Request, session: Annotated[AsyncSession, Depends(of.get_session)]
    ) -> None:
        request.state.user = (await session.scalars(ACCOUNT)).one()

    app.post("/", dependencies=[Depends(current_user), Depends(lock("x", wait=0))])(lambda: None)

    @app.exception_handler(LockTimeout)
    async def busy(request, _error):
        return JSONResponse(request.state.user.credit, 409)

    with locks.hold("x"):
        async with client_of(app) as client:
            assert (await client.post("/")).json() == 1
    await of.close()


def read_before_a_change(session, database):
    """An account as the session reads it, just before another one sets its credit to 5."""
    account = session.scalars(ACCOUNT).one()
    with Session(database) as another:
        another.execute(update(Account).values(credit=5))
        another.commit()
    return account


async def test_a_session_older_than_the_request_reads_again(server, database, url):
    """A middleware outside of ``install`` has begun its transaction, and a dependency goes on in it."""
    of = Blocking(server)
    app = FastAPI()
    install(app, url)

    @app.middleware("http")
    async def with_session(request, call_next):
        with of.make() as session:
            session.connection()
            request.state.session = session
            return await call_next(request)

    def read(request: Request) -> Account:
        return read_before_a_change(request.state.session, database)

    @app.post("/")
    def view(
        account: Annotated[Account, Depends(read)], lease: Annotated[Any, Depends(lock("x"))]
    ) -> int:
        return account.credit

    async with client_of(app) as client:
        assert (await client.post("/")).json() == 5
    await of.close()


def test_an_abstract_class_of_sessions_is_passed_over():
    """It has no sessions; the classes that are made from it are known."""

    class Abstract(Session, ABC):
        @abstractmethod
        def shard(self) -> str: ...

    class Concrete(Abstract):
        def shard(self) -> str:
            return "one"

    assert Concrete in sessions.known_classes()


async def test_a_session_whose_beginning_is_not_reported_reads_again(server, database, url):
    """SQLAlchemy reports none while another thread uses the session's class for the first time."""
    app = FastAPI()
    install(app, url)
    of = Blocking(server)
    is_filling, is_asked = threading.Event(), threading.Event()

    def trace(frame, event, _argument):
        known = frame.f_locals
        if frame.f_code.co_name != "update_subclass":
            return trace
        # The class has its list of listeners, which is still empty.
        is_empty = "clslevel" in known and "cls" not in known
        if event == "line" and is_empty and known["self"].name == "after_transaction_create":
            is_filling.set()
            assert is_asked.wait(PATIENCE)
        return trace

    def use_first():
        sys.settrace(trace)
        with of.make() as session:
            session.begin()

    def read(session: Annotated[Session, Depends(of.get_session)]) -> Account:
        return read_before_a_change(session, database)

    @app.post("/")
    def view(
        account: Annotated[Account, Depends(read)], lease: Annotated[Any, Depends(lock("x"))]
    ) -> int:
        return account.credit

    with ThreadPoolExecutor(1) as threads:
        first = threads.submit(use_first)
        assert is_filling.wait(PATIENCE)
        try:
            async with client_of(app) as client:
                assert (await client.post("/")).json() == 5
        finally:
            is_asked.set()
        first.result()
    await of.close()


async def test_no_event_of_a_class_from_before_the_start_is_missed(server, url):
    """SQLAlchemy has nothing left to fill for it when requests use it, in several threads."""
    app, filled = FastAPI(), []
    install(app, url)
    of = Blocking(server)
    async with client_of(app) as client:
        await client.get("/")

    def note(frame, event, _argument):
        if event == "call" and frame.f_code.co_name == "update_subclass":
            filled.append(frame.f_locals["target"])

    sys.setprofile(note)
    try:
        with of.make() as session:
            session.execute(text("SELECT 1"))
    finally:
        sys.setprofile(None)
    assert type(session) not in filled
    await of.close()


def test_a_session_that_began_before_weblock_loses_nothing(database):
    """What it has written by then is not known, also when it reads from a further database now."""
    further = create_engine(database.url)
    with further.connect() as another, Session(database) as session:
        session.execute(insert(Purchase).values(account_id=7))
        sessions._open.pop(session)
        session.execute(text("SELECT 1"), bind_arguments={"bind": another})
        with pytest.raises(ConfigurationError, match="before weblock was installed"):
            sessions.end_reading(session)
        session.commit()
    assert bought(database) == (1, 1)
    further.dispose()


async def test_an_object_of_a_closed_session_is_warned_of(server, database, url, caplog):
    """Nothing can read it again, until it is added to the session that would write it."""
    of = Blocking(server)
    app = FastAPI()
    install(app, url)

    def read() -> Account:
        with of.make() as session:
            return session.scalars(ACCOUNT).one()

    @app.post("/")
    def view(
        account: Annotated[Account, Depends(read)],
        lease: Annotated[Any, Depends(lock("x"))],
        session: Annotated[Session, Depends(of.get_session)],
    ) -> None:
        session.add(account)

    async with client_of(app) as client:
        assert (await client.post("/")).status_code == 200
    assert len([each for each in caplog.messages if "object of Account" in each]) == 1
    await of.close()


def statement(sql):
    return lambda session: session.execute(text(sql))


@pytest.mark.parametrize(
    ("use", "says"),
    [
        (lambda session: session.add(Purchase(account_id=7)), "changes to objects"),
        (lambda session: session.bulk_save_objects([Purchase(account_id=7)]), "INSERT"),
        (lambda session: session.bulk_insert_mappings(Purchase, [{"account_id": 7}]), "INSERT"),
        (
            lambda session: session.connection().execute(insert(Purchase).values(account_id=7)),
            "INSERT",
        ),
        (lambda session: session.scalars(ACCOUNT.with_for_update()).one(), "FOR UPDATE"),
        (statement("SELECT id FROM account FOR NO KEY UPDATE"), "FOR NO KEY UPDATE"),
        (statement("SET LOCAL lock_timeout = '1s'"), "SET LOCAL"),
        (statement("SELECT set_config('app.user', '7', true)"), "set_config"),
        (lambda session: (session.scalars(ACCOUNT), session.begin_nested()), "begin_nested"),
        (
            lambda session: session.connection(
                execution_options={"isolation_level": "SERIALIZABLE"}
            ),
            "isolation_level",
        ),
        (
            lambda session: session.connection(
                execution_options={"schema_translate_map": {None: "public"}}
            ),
            "schema_translate_map",
        ),
    ],
    ids=[
        "added",
        "bulk objects",
        "bulk mappings",
        "connection",
        "for update",
        "for no key update",
        "set local",
        "set_config",
        "savepoint",
        "isolation level",
        "schema",
    ],
)
@pytest.mark.parametrize("framework", ["fastapi", "flask"])
async def test_what_a_rollback_would_lose_is_refused(  # noqa: PLR0917 - fixtures
    server, database, url, framework, use, says
):
    """A request fails before it waits, and the error says what it has sent."""
    of = Blocking(server)

    if framework == "fastapi":

        def before(session: Annotated[Session, Depends(of.get_session)]) -> None:
            use(session)

        app = FastAPI()
        install(app, url)
        app.post("/", dependencies=[Depends(before), Depends(lock("x"))])(lambda: None)
        async with client_of(app) as client:
            with pytest.raises(ConfigurationError, match=says):
                await client.post("/")
    else:
        flask = Flask(__name__)
        flask.testing = True
        web = WebLock(flask, url)

        @flask.before_request
        def before() -> None:
            g.session = of.make()
            use(g.session)

        flask.teardown_request(lambda _error: g.session.close())
        flask.post("/")(web.lock("x")(lambda: "done"))
        with pytest.raises(ConfigurationError, match=says):
            flask.test_client().post("/")
    assert of.pool.checkedout() == 0
    assert bought(database) == (0, 1)
    await of.close()


async def test_a_session_on_a_connection_is_refused(server, database, url):
    """Its transaction belongs to the connection's owner, such as a test."""
    app = FastAPI()
    install(app, url)

    with database.connect() as connection, Session(connection) as session:

        def read() -> Account:
            return session.scalars(ACCOUNT).one()

        app.post("/", dependencies=[Depends(read), Depends(lock("x"))])(lambda: None)
        async with client_of(app) as client:
            with pytest.raises(ConfigurationError, match=r"dependency_overrides"):
                await client.post("/")
        assert connection.in_transaction()


async def test_a_held_key_ends_nothing(server, database, url):
    """What is written under a lock stays, when another dependency names the same key again."""
    of = Blocking(server)

    def write(
        lease: Annotated[Any, Depends(lock("x"))],
        session: Annotated[Session, Depends(of.get_session)],
    ) -> None:
        session.execute(insert(Purchase).values(account_id=7))

    app = FastAPI()
    install(app, url)
    written, again = Depends(write), Depends(lock("x", wait=1))
    app.post("/", dependencies=[written, again])(lambda: None)
    async with client_of(app) as client:
        assert (await client.post("/")).status_code == 200
    assert bought(database) == (1, 1)
    await of.close()


async def test_a_connection_without_a_session_is_warned_of(database, url, caplog):
    """Its rows are no objects, so nothing can read them again."""

    def connection():
        with database.connect() as connection:
            yield connection

    def read(connection: Annotated[Connection, Depends(connection)]) -> int:
        return connection.execute(text("SELECT credit FROM account")).scalar_one()

    app = FastAPI()
    install(app, url)
    app.post("/", dependencies=[Depends(read), Depends(lock("x"))])(lambda: None)
    async with client_of(app) as client:
        assert (await client.post("/")).status_code == 200
        assert (await client.post("/")).status_code == 200
    told = [
        each.message for each in caplog.records if "its own database connection" in each.message
    ]
    assert len(told) == 1


@pytest.mark.parametrize("decides", ["by statement", "by flushing"])
@pytest.mark.parametrize("when", ["before the lock", "inside the lock"])
async def test_a_session_that_reads_from_a_replica_is_warned_of(  # noqa: PLR0917 - fixtures
    database, url, caplog, request, when, decides
):
    """Its get_bind sends reads and writes to different engines."""
    replica = create_engine(database.url)

    class Routing(Session):
        def get_bind(self, mapper=None, *, clause=None, **_options):
            writes = clause is not None and clause.is_dml
            return database if self._flushing or (decides == "by statement" and writes) else replica

    Routing.__qualname__ = request.node.name  # Each kind of session is told of once.

    def get_session():
        with Routing() as session:
            yield session
            session.commit()

    def read(session: Annotated[Session, Depends(get_session)]) -> Account:
        return session.scalars(ACCOUNT).one()

    app = FastAPI()
    install(app, url)
    both = [Depends(read), Depends(lock("x"))]

    @app.post("/", dependencies=both if when == "before the lock" else both[::-1])
    def view(session: Annotated[Session, Depends(get_session)]) -> None:
        session.add(Purchase(account_id=7))

    async with client_of(app) as client:
        assert (await client.post("/")).status_code == 200
    assert len([each for each in caplog.messages if "A replica may lag" in each]) == 1
    replica.dispose()


def flask_shop(app, url, session, way):
    """Make an application read the account before its lock, by the session that a function returns."""

    @app.teardown_request
    def commit(error):
        if error is None:
            session().commit()
        session().close()

    @app.before_request
    def read():
        if way != "key function":
            g.user = session().scalars(ACCOUNT).one()
        if way == "committed":
            session().commit()

    def key_of_user():
        g.user = session().scalars(ACCOUNT).one()
        return f"user:{g.user.id}"

    web = WebLock(app, url, wait=PATIENCE)
    key = key_of_user if way == "key function" else "user:7"

    @app.post("/")
    @web.lock(key, guard="database" if way == "guarded" else None)
    def view():
        account = session().scalars(ACCOUNT).one() if way == "selected again" else g.user
        if account.credit < 1:
            return "no credit", 402
        buy(session(), account)
        return "bought"


@in_each_way(
    "before request", "committed", "selected again", "key function", "guarded", "plain session"
)
def test_flask_loses_no_update(  # noqa: PLR0917 - fixtures
    server, database, url, locks, way, isolation
):
    """Neither ``db.session`` nor a session of the application's own returns what it read before."""
    app = Flask(__name__)
    if way == "plain session":
        engine = create_engine(server.url(driver="psycopg"), isolation_level=isolation)
        flask_shop(app, url, lambda: g.setdefault("session", Session(engine)), way)
    else:
        app.config["SQLALCHEMY_DATABASE_URI"] = server.url(driver="psycopg")
        app.config["SQLALCHEMY_ENGINE_OPTIONS"] = {"isolation_level": isolation}
        db = SQLAlchemy(app, session_options={"expire_on_commit": False})
        with app.app_context():
            engine = db.engine
        flask_shop(app, url, lambda: db.session, way)

    holder = locks.acquire("user:7")
    with ThreadPoolExecutor(3) as threads:
        asked = [threads.submit(app.test_client().post, "/") for _ in range(3)]
        eventually(lambda: waiters(locks, "user:7") == 3)
        assert engine.pool.checkedout() == 0
        holder.release()
        assert sorted(each.result().status_code for each in asked) == [200, 402, 402]
    assert bought(database) == (1, 0)
    engine.dispose()
