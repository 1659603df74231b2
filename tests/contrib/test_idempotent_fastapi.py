"""``Depends(idempotent(...))``: each request is executed once, with real databases and sessions of both kinds."""

import asyncio
import os
import uuid
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Any

import httpx
import pytest
from fastapi import (
    APIRouter,
    BackgroundTasks,
    Depends,
    FastAPI,
    Form,
    Header,
    HTTPException,
    Request,
    Response,
    UploadFile,
)
from fastapi.responses import JSONResponse, RedirectResponse, StreamingResponse
from sqlalchemy import create_engine, func, insert, select, text, update
from sqlalchemy.exc import IntegrityError, OperationalError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column
from starlette.middleware.gzip import GZipMiddleware
from starlette.middleware.sessions import SessionMiddleware

from tests.servers.mariadb import MariaDB
from tests.servers.postgres import shared_postgres
from tests.support.events import Heard
from tests.support.http import client_of
from tests.support.waiting import PATIENCE
from weblock import AsyncLocks, ConfigurationError
from weblock.contrib.fastapi import idempotent, install, lock, request_locks
from weblock.contrib.fastapi.installation import locked_in
from weblock.contrib.kit import BodyDigest
from weblock.contrib.sqlalchemy import answer_table, guard
from weblock.events import Repeated

from .losing import lose


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "idempotent_order"

    id: Mapped[int] = mapped_column(primary_key=True)
    amount: Mapped[int] = mapped_column(unique=True)


ANSWERS = answer_table(Base.metadata)


class Shop:
    """An application, its database, and a client that is a user."""

    def __init__(self, locks: AsyncLocks, url: str, kind: str) -> None:
        self.engine = create_engine(url)
        Base.metadata.drop_all(self.engine)
        Base.metadata.create_all(self.engine)
        self.app = FastAPI()
        self.ran: list[str] = []
        self.is_async = kind != "def"
        if self.is_async:
            self.async_engine = create_async_engine(url.replace("psycopg", kind), pool_size=2)
        self.app.add_middleware(GZipMiddleware, minimum_size=10)
        self.app.add_middleware(SessionMiddleware, secret_key="x")
        install(self.app, locks)
        self.locks = locks

    def get_session(self):
        with Session(self.engine) as session:
            yield session

    async def get_async_session(self):
        async with AsyncSession(self.async_engine) as session:
            yield session

    def session(self, **options: Any) -> Any:
        """The dependency of the tests."""
        get = self.get_async_session if self.is_async else self.get_session
        options = {"caller": user, "session": get, **options}
        return Depends(idempotent(**options))

    def add(self, path: str, work: Any, **options: Any) -> None:
        """An endpoint that gets a sync session, and runs as the kind of session wants it."""
        depends = self.session(**options)

        async def on_loop(request: Request, tasks: BackgroundTasks, session: Any = depends) -> Any:
            self.ran.append(path)
            return await session.run_sync(lambda found: work(found, request, tasks))

        def in_thread(request: Request, tasks: BackgroundTasks, session: Any = depends) -> Any:
            self.ran.append(path)
            return work(session, request, tasks)

        self.app.post(path, status_code=201, response_model=None)(
            on_loop if self.is_async else in_thread
        )

    async def post(self, path: str, key: str = "key", user: str = "anna", **more: Any) -> Any:
        """What a request is answered."""
        headers = {"Idempotency-Key": key, "X-User": user, **more.pop("headers", {})}
        transport = httpx.ASGITransport(self.app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://shop") as client:
            return await client.post(path, headers=headers, **more)

    def rows(self) -> tuple[int, int]:
        """How many orders and answers there are."""
        with Session(self.engine) as session:
            tables = Order.__table__, ANSWERS
            orders, answers = (session.scalar(select(func.count()).select_from(t)) for t in tables)
            return orders or 0, answers or 0

    async def close(self) -> None:
        assert self.engine.pool.checkedout() == 0
        self.engine.dispose()
        if self.is_async:
            assert self.async_engine.pool.checkedout() == 0
            await self.async_engine.dispose()


def user(x_user: Annotated[str, Header()]) -> str:
    """Return the caller."""
    return x_user


@pytest.fixture(params=["sqlite-def", "postgresql-def", "postgresql-psycopg", "postgresql-asyncpg"])
async def shop(request, locks, tmp_path):
    """A shop with a database of each kind."""
    database, _, kind = request.param.partition("-")
    on_server = database == "postgresql"
    url = shared_postgres().url(driver="psycopg") if on_server else f"sqlite:///{tmp_path}/db"
    found = Shop(locks, url, kind)
    yield found
    await found.close()


in_two_ways = pytest.mark.parametrize("shop", ["sqlite-def", "postgresql-asyncpg"], indirect=True)
"""For what is decided before a driver is asked."""


def order(session, request, _tasks):
    """Add an order, commit, and answer by its number."""
    made = Order(amount=int(request.query_params.get("amount", 1)))
    session.add(made)
    session.commit()
    return {"id": made.id, "text": "x" * 20}


async def test_a_request_that_is_sent_again_gets_the_same_answer(shop):
    """It is marked, middleware runs again, and neither another user nor another body gets it."""

    def work(session, request, tasks):
        request.session["seen"] = True
        return JSONResponse(order(session, request, tasks), 201, {"X-A": "é", "Date": "then"})

    shop.add("/orders", work)
    first = await shop.post("/orders", headers={"Accept-Encoding": "identity"})
    again = await shop.post("/orders", '"key"', headers={"Accept-Encoding": "gzip"})
    assert (first.status_code, again.status_code) == (201, 201)
    assert first.json() == again.json()
    assert first.headers["x-a"] == again.headers["x-a"]
    assert "idempotency-replayed" not in first.headers
    assert again.headers["idempotency-replayed"] == "true"
    assert "set-cookie" in first.headers
    assert {"set-cookie", "date"}.isdisjoint(again.headers)
    assert first.headers.get("content-encoding") is None
    assert again.headers["content-encoding"] == "gzip"
    assert shop.rows() == (1, 1)
    other_body = await shop.post("/orders?amount=2")
    assert (other_body.status_code, other_body.json()["code"]) == (422, "idempotency_key_reused")
    other_user = await shop.post("/orders?amount=2", user="bert")
    assert other_user.status_code == 201
    assert shop.rows() == (2, 2)
    missing = await shop.post("/orders", "")
    assert missing.status_code == 400


def ends_with(end):
    """Return work that adds an order, commits, and then ends in its way."""

    def work(session, request, tasks):
        order(session, request, tasks)
        if isinstance(end, Exception):
            raise end
        return end()

    return work


def answered(status):
    """Return work that responds with a status."""
    return ends_with(lambda: JSONResponse(None, status))


@in_two_ways
@pytest.mark.parametrize(
    ("work", "status"),
    [
        (ends_with(HTTPException(404)), 404),
        (ends_with(ValueError()), 500),
        (ends_with(lambda: StreamingResponse(iter([b"a"]))), 500),
        (ends_with(lambda: StreamingResponse(iter([b"a"]), 503)), 503),
        (ends_with(lambda: JSONResponse("x" * 1000)), 500),
        *((answered(each), each) for each in (409, 429, 503)),
    ],
    ids=["raised", "failed", "stream", "busy", "long", "409", "429", "503"],
)
async def test_what_is_not_stored_is_not_committed(shop, work, status):
    """Though the application has committed: so a retry can be executed."""
    shop.add("/orders", work, max_body=100)
    for _ in range(2):
        assert (await shop.post("/orders")).status_code == status
    assert len(shop.ran) == 2
    assert shop.rows() == (0, 0)


@in_two_ways
async def test_an_error_that_was_returned_and_a_redirect_are_stored(shop):
    """A handler that returns them has decided; other work of the handler is committed with them."""
    shop.add("/422", answered(422))
    shop.add("/302", lambda *_: RedirectResponse("/x", 302))
    for path, rows in (("/422", (1, 1)), ("/302", (1, 2))):
        answers = [await shop.post(path) for _ in range(2)]
        assert [each.status_code for each in answers] == [int(path[1:])] * 2
        assert answers[1].headers["idempotency-replayed"] == "true"
        assert shop.rows() == rows
    assert answers[1].headers["location"] == "/x"


@pytest.mark.parametrize("shop", ["sqlite-def"], indirect=True)
async def test_forms_are_compared_by_their_parts(shop):
    """A client chooses another boundary each time, and FastAPI has parsed the form."""

    def caller(upload: UploadFile) -> str:
        return str(bool(upload.filename))

    def create(text: Annotated[str, Form()], upload: UploadFile, session: Any) -> str:
        session.add(Order(amount=1))
        return text + upload.file.read().decode()

    create.__annotations__["session"] = Annotated[Any, shop.session(caller=caller)]
    shop.app.post("/orders")(create)

    async def form(content):
        return await shop.post("/orders", data={"text": "x"}, files={"upload": ("name", content)})

    answers = [await form(b"1"), await form(b"1"), await form(b"2")]
    assert [each.status_code for each in answers] == [200, 200, 422]
    assert answers[0].json() == answers[1].json() == "x1"
    assert shop.rows() == (1, 1)


MULTIPART = "multipart/form-data; boundary=b"


@pytest.mark.parametrize("shop", ["sqlite-def"], indirect=True)
@pytest.mark.parametrize("reads", ["all", "first", "elsewhere", "nothing"])
@pytest.mark.parametrize(
    "content_type", ["text/plain", MULTIPART, "application/x-www-form-urlencoded"]
)
async def test_a_body_is_compared_whatever_has_read_it(shop, reads, content_type):
    """A dependency may read it before, or a part of it; the endpoint gets the rest."""
    read: list[bytes] = []

    async def caller(request: Request) -> str:
        if reads == "elsewhere":
            request = Request(request.scope, request.receive)
        if reads != "nothing":
            async for chunk in request.stream():
                read.append(chunk)
                if chunk and reads == "first":
                    break
        return "anna"

    async def create(request: Request, session: Any) -> None:
        shop.ran.append("/orders")
        if reads in ("first", "nothing"):
            rest = Request(request.scope, request.receive).stream()
            read.extend([each async for each in rest])

    create.__annotations__["session"] = Annotated[Any, shop.session(caller=caller)]
    shop.app.post("/orders")(create)

    async def post(*chunks):
        async def body():
            for chunk in chunks:
                yield chunk

        headers = {"Content-Type": content_type}
        sending = shop.post("/orders", content=body(), headers=headers)
        return await asyncio.wait_for(sending, PATIENCE)

    assert ((await post(b"--b x --", b"b y")).status_code, shop.ran) == (200, ["/orders"])
    assert b"".join(read) == b"--b x --b y"
    again = await post(b"--b x -", b"-b y")
    assert (again.status_code, again.headers["idempotency-replayed"]) == (200, "true")
    for other in ((b"--b x --", b"b z"), (b"--b x --b y--b",), (b"--b x",), ()):
        assert (await post(*other)).status_code == 422
    assert shop.ran == ["/orders"]


@pytest.mark.parametrize("shop", ["sqlite-def"], indirect=True)
async def test_bodies_of_other_routes_are_not_digested(shop, monkeypatch):
    """Only an idempotent route compares bodies: a large upload to another one costs nothing more."""
    digested: list[bytes] = []
    monkeypatch.setattr(BodyDigest, "add", lambda _self, piece: digested.append(piece))

    async def read(request: Request) -> int:
        return len(await request.body())

    shop.add("/orders", order)
    router = APIRouter(prefix="/included")
    router.post("/files")(read)
    shop.app.include_router(router)
    shop.app.post("/files")(read)
    for path in ("/files", "/included/files"):
        assert (await shop.post(path, content=b"12345")).json() == 5
    assert digested == []
    await shop.post("/orders", content=b"12345")
    assert b"12345" in digested


@pytest.mark.parametrize("shop", ["sqlite-def"], indirect=True)
async def test_a_body_that_middleware_has_taken_away_is_rejected(shop):
    """Nothing is left to compare: another body would get the old answer."""
    errors: list[str] = []

    @shop.app.middleware("http")
    async def consume(request: Request, call_next: Any) -> Any:
        async for _ in request.stream():
            pass
        return await call_next(request)

    @shop.app.exception_handler(ConfigurationError)
    def explain(_request: Request, error: ConfigurationError) -> JSONResponse:
        errors.append(str(error))
        return JSONResponse({}, 500)

    shop.add("/orders", order)
    sent = await asyncio.wait_for(shop.post("/orders", content=b"pay=1"), PATIENCE)
    assert (sent.status_code, shop.ran) == (500, [])
    assert "something has read their body" in errors[0]
    assert shop.rows() == (0, 0)


@pytest.mark.parametrize("shop", ["sqlite-def"], indirect=True)
async def test_a_body_that_middleware_replaces_is_compared(shop):
    """It may be shorter than its header says, as one that was decrypted."""

    def shortened(app):
        async def serve(scope, receive, send):
            async def receive_shorter():
                message = await receive()
                return {**message, "body": message.get("body", b"")[:5]}

            await app(scope, receive_shorter, send)

        return serve

    shop.app.add_middleware(shortened)
    shop.add("/orders", order)
    bodies = b"pay 1 encrypted", b"pay 1 otherwise", b"pay 2"
    answers = [await shop.post("/orders", content=each) for each in bodies]
    assert [each.status_code for each in answers] == [201, 201, 422]


async def test_many_at_once_are_executed_once(shop):
    """The others get 409 with ``Retry-After``, or wait; each gets the same answer in the end."""
    heard = Heard()
    shop.locks.observe(heard.observer)
    shop.add("/orders", order)
    shop.add("/waits", order, wait=30)
    answers = await asyncio.gather(*(shop.post("/orders") for _ in range(10)))
    busy = [each for each in answers if each.status_code == 409]
    assert all(int(each.headers["retry-after"]) > 0 for each in busy)
    outcomes = Counter(each.outcome for each in heard.of(Repeated))
    assert outcomes == Counter(running=len(busy), replayed=9 - len(busy))
    assert len({each.text for each in answers if each.status_code == 201}) == 1
    answers = await asyncio.gather(*(shop.post("/waits?amount=2") for _ in range(10)))
    assert Counter(each.status_code for each in answers) == {201: 10}
    assert len({each.text for each in answers}) == 1
    assert shop.ran == ["/orders", "/waits"]
    assert shop.rows() == (2, 2)


@pytest.fixture
async def locks(request):
    """Locks that never lock, for a test that has marked itself."""
    url = f"memory://idempotent-{uuid.uuid4().hex}"
    async with AsyncLocks.from_url(
        "noop://" if "unlocked" in request.fixturenames else url
    ) as found:
        yield found


@pytest.fixture
def unlocked():
    """Mark a test in which locks are no use."""


@pytest.mark.usefixtures("unlocked")
async def test_of_two_that_were_executed_only_one_is_committed(shop):
    """Without any lock, the database rejects the second: it gets the answer of the first."""
    begun, done = asyncio.Event(), asyncio.Event()

    @shop.app.post("/orders", status_code=201)
    async def create(tasks: BackgroundTasks, session: Annotated[Any, shop.session()]) -> Any:
        made = Order(amount=1 if begun.is_set() else 2)
        if not begun.is_set():
            begun.set()
            await done.wait()
            tasks.add_task(shop.ran.append, "of the first")
        session.add(made)
        if isinstance(session, AsyncSession):
            await session.commit()
        else:
            await asyncio.to_thread(session.commit)
        return {}

    late = asyncio.create_task(shop.post("/orders"))
    await begun.wait()
    other = await shop.post("/orders")
    done.set()
    overtaken = await late
    assert (overtaken.status_code, overtaken.text) == (201, other.text)
    assert "idempotency-replayed" not in other.headers
    assert overtaken.headers["idempotency-replayed"] == "true"
    assert shop.rows() == (1, 1)
    assert shop.ran == []  # No task follows work that was rolled back.


async def test_a_request_that_lost_its_lease_commits_nothing(shop):
    """Another may be executed meanwhile: it is not reported as successful, and a retry is executed."""

    async def create(session: Annotated[Any, shop.session()]) -> None:
        session.add(Order(amount=1))
        if not shop.ran:
            lose(request_locks().leases[0])
        shop.ran.append("ran")

    shop.app.post("/orders")(create)
    lost = await shop.post("/orders")
    assert (lost.status_code, lost.json()["code"]) == (503, "lease_lost")
    assert shop.rows() == (0, 0)
    assert (await shop.post("/orders")).status_code == 200
    assert shop.rows() == (1, 1)


async def test_tasks_follow_the_commit_and_are_not_repeated(shop):
    """They find the committed rows, and a retry is answered while they run."""

    def work(session, request, tasks):
        found = order(session, request, tasks)
        tasks.add_task(lambda: shop.ran.append(str(shop.rows())))
        return found

    shop.add("/orders", work)
    for _ in range(2):
        assert (await shop.post("/orders")).status_code == 201
    assert shop.ran == ["/orders", "(1, 1)"]


async def test_work_that_nobody_has_committed_is_committed_with_the_answer(shop):
    """As it is where the session's dependency commits, after the response."""

    def work(session, _request, _tasks):
        session.add(Order(amount=1))
        return {}

    shop.add("/orders", work)
    shop.add("/nothing", lambda *_: {})
    await shop.post("/orders")
    await shop.post("/nothing")
    assert shop.rows() == (1, 2)


@in_two_ways
@pytest.mark.parametrize("how", ["begin", "function", "mounted", "raises"])
async def test_it_works_wherever_sessions_and_applications_end(shop, how):
    """The session ends before or after the response, and a mounted application answers errors by itself."""

    async def get_session():
        if shop.is_async:
            async with AsyncSession(shop.async_engine) as session, session.begin():
                yield session
        else:
            with Session(shop.engine) as session, session.begin():
                yield session

    scope: Any = "function" if how == "function" else None
    depends = Depends(idempotent(caller=user, session=get_session), scope=scope)

    async def create(session: Annotated[Any, depends]) -> Any:
        session.add(Order(amount=1))
        if how == "raises":
            raise HTTPException(404)
        return {}

    if how == "mounted":
        mounted = FastAPI()
        mounted.post("/orders", status_code=201)(create)
        shop.app.mount("/shop", mounted)
    else:
        shop.app.post("/shop/orders", status_code=201)(create)
    answers = [await shop.post("/shop/orders") for _ in range(2)]
    assert [each.status_code for each in answers] == [404 if how == "raises" else 201] * 2
    assert [each.headers.get("idempotency-replayed") for each in answers] == [
        None,
        None if how == "raises" else "true",
    ]
    assert shop.rows() == ((0, 0) if how == "raises" else (1, 1))


@in_two_ways
@pytest.mark.parametrize("commits", [False, True])
async def test_a_lock_comes_before_the_session_is_used(shop, commits, caplog):
    """Afterwards its transaction cannot be ended for the wait, not by ``session.commit()``; the error says so."""
    shop.add("/orders", order)
    errors = []

    async def late(session: Annotated[Any, shop.session()]) -> None:
        def read(found):
            found.scalar(select(func.count()).select_from(Order))
            if commits:
                found.commit()

        if shop.is_async:
            await session.run_sync(read)
        else:
            read(session)
        try:
            await request_locks().acquire("late")
        except ConfigurationError as error:
            errors.append(str(error))
            raise

    async def early(
        session: Annotated[Any, shop.session()], _lease: Annotated[Any, Depends(lock("early"))]
    ) -> None:
        session.add(Order(amount=1))

    shop.app.post("/late")(late)
    shop.app.post("/early")(early)
    assert (await shop.post("/late")).status_code == 500
    assert "acquire the lock before the session is used" in errors[0]
    assert not [each for each in caplog.messages if "its own database connection" in each]
    assert (await shop.post("/early")).status_code == 200
    assert shop.rows() == (1, 1)


@in_two_ways
@pytest.mark.parametrize("writes", [True, False])
async def test_a_lock_that_is_released_before_the_commit_is_reported(shop, caplog, writes):
    """``session.commit()`` is a savepoint: the next holder would read old rows."""
    key = uuid.uuid4().hex

    async def create(session: Annotated[Any, shop.session()]) -> None:
        def work(found):
            found.add(Order(amount=1)) if writes else found.scalar(select(1))
            found.commit()

        async with shop.locks.hold(key):
            if shop.is_async:
                await session.run_sync(work)
            else:
                work(session)

    shop.app.post("/orders")(create)
    assert (await shop.post("/orders")).status_code == 200
    assert shop.rows() == (int(writes), 1)
    reported = [each for each in caplog.messages if key in each and "uncommitted writes" in each]
    assert len(reported) == writes


async def test_a_conflict_inside_is_for_the_application(shop):
    """It rolls back to its savepoint and continues."""

    def work(session, _request, _tasks):
        session.add(Order(amount=1))
        session.commit()
        session.add(Order(amount=1))
        with pytest.raises(IntegrityError):
            session.commit()
        session.rollback()
        with session.begin_nested():
            session.add(Order(amount=2))
        session.commit()
        return {}

    shop.add("/orders", work)
    assert (await shop.post("/orders")).status_code == 201
    assert shop.rows() == (2, 1)


@in_two_ways
@pytest.mark.parametrize("how", ["sql", "connection", "rollback", "guard"])
async def test_what_would_commit_without_the_answer_is_rejected(shop, how):
    """Nothing is committed, and the error says what to do instead."""
    errors = []

    def work(session, request, tasks):
        order(session, request, tasks)
        try:
            if how == "sql":
                session.execute(text("COMMIT"))
            elif how == "connection":
                session.connection().commit()
            elif how == "rollback":
                session.connection().rollback()
            else:
                guard(session, asked_for[0], fence=True)
                session.execute(text("SELECT 1"))
        except ConfigurationError as error:
            errors.append(error)
            raise
        return {}

    lease = await shop.locks.acquire("x")
    asked_for = [lease]
    shop.add("/orders", work)
    assert (await shop.post("/orders")).status_code == 500
    assert shop.rows() == (0, 0)
    assert errors or how == "rollback"
    await lease.release()


@pytest.mark.parametrize("ends", ["continues", "raises"])
@pytest.mark.parametrize("shop", ["sqlite-def"], indirect=True)
async def test_work_that_sqlite_has_rolled_back_is_not_answered(shop, ends):
    """The application may go on after the error: nothing of it is committed, before the answer or without it."""
    errors = []

    def work(session, request, tasks):
        order(session, request, tasks)
        with pytest.raises(IntegrityError):
            session.execute(text("INSERT OR ROLLBACK INTO idempotent_order(amount) VALUES (1)"))
        if ends == "raises":
            raise HTTPException(404)
        for _ in range(2):
            try:
                session.rollback()
                session.add(Order(amount=2))
                session.commit()
            except (ConfigurationError, SQLAlchemyError) as error:
                errors.append(str(error))
        return {}

    shop.add("/orders", work)
    assert (await shop.post("/orders")).status_code == (404 if ends == "raises" else 500)
    assert shop.rows() == (0, 0)
    assert ends == "raises" or "was rolled back as a whole by its database" in errors[0]


@pytest.mark.skipif(
    not os.environ.get("WEBLOCK_LONG"), reason="it starts a MariaDB: WEBLOCK_LONG=1"
)
async def test_work_that_mariadb_has_rolled_back_is_not_answered(locks):
    """After a deadlock InnoDB begins anew, and what the application commits then is not all of its work."""
    with MariaDB() as server:
        shop = Shop(locks, server.url(), "def")
        with shop.engine.begin() as setup:
            setup.execute(insert(Order), [{"id": each, "amount": -each} for each in (1, 2)])

        def take(found, row):
            found.execute(update(Order).values(amount=Order.amount * 10).where(Order.id == row))

        def work(session, request, tasks):
            order(session, request, tasks)
            take(session, 1)
            with shop.engine.begin() as other, ThreadPoolExecutor(1) as thread:
                # InnoDB rolls back the transaction that has changed fewer rows.
                other.execute(insert(Order), [{"amount": each} for each in range(100, 200)])
                take(other, 2)
                waits = thread.submit(take, other, 1)
                with pytest.raises(OperationalError, match="1213"):
                    take(session, 2)
                waits.result()
            with pytest.raises(OperationalError, match="1305"):
                session.rollback()
            session.rollback()
            session.add(Order(amount=3))
            session.commit()
            return {}

        shop.add("/orders", work)
        answer = await shop.post("/orders")
        assert (answer.status_code, shop.ran) == (500, ["/orders"])
        assert shop.rows() == (102, 0)
        shop.add("/good", order)
        answers = [await shop.post("/good") for _ in range(2)]
        assert [each.status_code for each in answers] == [201, 201]
        assert shop.rows() == (103, 1)
        await shop.close()


@in_two_ways
async def test_answers_are_bounded_for_each_caller_and_expire(shop):
    """At the bound nothing runs; other callers have bounds of their own; a replay is no new answer."""
    shop.add("/orders", order, max_answers=1)
    assert (await shop.post("/orders")).status_code == 201
    assert (await shop.post("/orders")).status_code == 201
    refused = await shop.post("/orders?amount=2", "other")
    assert refused.status_code == 429
    assert int(refused.headers["retry-after"]) == 60
    assert (await shop.post("/orders?amount=2", "other", user="bert")).status_code == 201
    with shop.engine.begin() as connection:
        connection.execute(update(ANSWERS).values(expires_at=0))
    assert (await shop.post("/orders?amount=3")).status_code == 201
    assert shop.ran == ["/orders"] * 3


@in_two_ways
async def test_without_the_database_nothing_runs(shop):
    """503, and a database without the table is a mistake that its error explains."""
    shop.add("/orders", order)
    ANSWERS.drop(shop.engine)
    assert (await shop.post("/orders")).status_code == 500
    ANSWERS.create(shop.engine)
    broken = create_engine("postgresql+psycopg://localhost:1/none")

    def get_broken():
        with Session(broken) as session:
            yield session

    kind, shop.is_async = shop.is_async, False
    shop.add("/broken", order, session=get_broken)
    shop.is_async = kind
    answer = await shop.post("/broken")
    assert (answer.status_code, answer.json()["code"]) == (503, "answers_unavailable")
    assert shop.ran == []


@in_two_ways
async def test_rows_read_before_the_lock_are_read_again(shop):
    """Authentication may have read them with the same session."""
    shop.add("/orders", order)
    seen = []

    def read(session):
        return session.scalar(select(Order.amount).where(Order.id == 1))

    if shop.is_async:

        async def caller(session: Annotated[AsyncSession, Depends(shop.get_async_session)]) -> str:
            (await session.get(Order, 1)).amount  # noqa: B018
            return "anna"

        async def endpoint(session: Any) -> None:
            found = await session.get(Order, 1)
            seen.append(found.amount)
    else:

        def caller(session: Annotated[Session, Depends(shop.get_session)]) -> str:
            session.get(Order, 1).amount  # noqa: B018
            return "anna"

        def endpoint(session: Any) -> None:
            seen.append(session.get(Order, 1).amount)

    endpoint.__annotations__["session"] = Annotated[Any, shop.session(caller=caller)]
    shop.app.post("/reads")(endpoint)
    await shop.post("/orders")
    assert (await shop.post("/reads")).status_code == 200
    assert seen == [1]


async def test_the_engine_stores_answers_for_work_in_another_database(url):
    """When the request's dependencies have ended: what was raised, or not committed, is executed again."""
    app, ran, commits = FastAPI(), Counter(), []
    once = Depends(idempotent(caller=user, store="engine"))

    def commit():
        yield
        commits.append(1)
        if len(commits) == 1:
            raise ZeroDivisionError

    failing: list[int] = []

    @app.middleware("http")
    async def commit_late(asked: Request, call_next: Any) -> Response:
        answer = await call_next(asked)
        return Response(status_code=failing.pop()) if failing else answer

    install(app, url)

    @app.post("/orders/{how}", dependencies=[once, Depends(commit)])
    def create(how: str, background: BackgroundTasks) -> Any:
        ran[how] += 1
        if how != "creates":  # A response with tasks does not wait for the end of dependencies.
            background.add_task(ran.update, [f"after {how}"])
        if how == "raises":
            raise HTTPException(422)
        if how == "streams":
            return StreamingResponse(iter(["x" * 40_000] * 2))
        return JSONResponse({"ran": ran[how]}, 422 if how == "rejects" else 201)

    headers = {"X-User": "anna", "Idempotency-Key": "k1"}
    async with client_of(app) as client:

        async def post(how: str) -> tuple[int, str | None]:
            answer = await client.post(f"/orders/{how}", headers=headers)
            return answer.status_code, answer.headers.get("idempotency-replayed")

        assert [await post("creates") for _ in range(3)] == [
            (500, None),
            (201, None),
            (201, "true"),
        ]
        assert [await post("rejects") for _ in range(2)] == [(422, None), (422, "true")]
        assert [await post("raises") for _ in range(2)] == [(422, None)] * 2
        assert [await post("streams") for _ in range(2)] == [(200, None)] * 2
        assert (await client.post("/orders/creates", headers=headers, params={"a": 1})).json()[
            "code"
        ] == "idempotency_key_reused"
    assert ran["creates"] == ran["raises"] == ran["streams"] == 2
    assert ran["rejects"] == ran["after rejects"] == 1
    ran["tasks fail"] = 0

    def fail() -> None:
        raise ZeroDivisionError

    @app.post("/tasks", status_code=201, dependencies=[once])
    def with_tasks(background: BackgroundTasks) -> int:
        ran["tasks fail"] += 1
        background.add_task(fail)
        return ran["tasks fail"]

    async with client_of(app) as client:
        answers = [await client.post("/tasks", headers=headers) for _ in range(2)]
    assert [(each.status_code, each.text) for each in answers] == [(201, "1")] * 2
    failing.append(500)
    headers["Idempotency-Key"] = "k2"
    async with client_of(app) as client:
        answers = [await client.post("/orders/creates", headers=headers) for _ in range(3)]
    assert [each.status_code for each in answers] == [500, 201, 201]
    assert ["idempotency-replayed" in each.headers for each in answers] == [False, False, True]
    unfit = FastAPI()
    install(unfit, "noop://")
    unfit.post("/orders", dependencies=[once])(user)
    with pytest.raises(ConfigurationError, match=r'idempotent\(store="engine"\) keeps answers'):
        async with client_of(unfit, raises=True) as client:
            await client.post("/orders")
    for wrong in ({"session": user}, {"max_body": 65537}, {"store": "redis"}):
        with pytest.raises(ConfigurationError, match=r"store=|max_body="):
            idempotent(**{"caller": user, "store": "engine", **wrong})


async def test_a_stream_that_fails_is_reported_as_not_stored(caplog):
    """Its client has got a part of a success, and executes the request again if it sends it again."""
    app = FastAPI()

    async def parts():
        yield "a part"
        raise ValueError("the rest is missing")

    @app.post("/", dependencies=[Depends(idempotent(caller="anonymous", store="engine"))])
    async def post() -> StreamingResponse:
        return StreamingResponse(parts(), media_type="text/event-stream")

    install(app, "memory://")
    async with client_of(app) as client:
        await client.post("/", headers={"Idempotency-Key": "key"})
    assert "the answer to POST / was not stored" in caplog.text
    assert "the response ended before it was complete" in caplog.text


def test_what_cannot_work_is_rejected_when_the_application_starts(url):
    """A GET needs no key, and a websocket has no response; a session and a caller are functions."""
    app = FastAPI()
    install(app, url)
    dependencies = [Depends(idempotent(caller="anonymous", session=lambda: None))]
    app.get("/orders", dependencies=dependencies)(lambda: None)
    app.websocket("/live", dependencies=dependencies)(user)
    errors = "".join(str(each) for each in locked_in(app, None))
    assert "GET requests can be repeated" in errors
    assert "websocket /live is idempotent(), but" in errors
    for wrong in ({"caller": None}, {"caller": Depends(user)}, {"session": Depends(user)}):
        with pytest.raises((TypeError, ConfigurationError)):
            idempotent(**{"caller": user, "session": user, **wrong})


async def test_openapi_describes_it(url):
    """The header, and the problems with their codes."""
    app = FastAPI()
    install(app, url)
    dependency = idempotent(caller="anonymous", session=lambda: None)

    @app.post("/orders", dependencies=[Depends(dependency)])
    def create() -> None: ...

    operation = app.openapi()["paths"]["/orders"]["post"]
    assert [each["name"] for each in operation["parameters"]] == ["Idempotency-Key"]
    assert {"400", "409", "422", "429", "503"} <= operation["responses"].keys()


class TestOverrides:
    """What an application's tests put into ``dependency_overrides``."""

    def app(self, **options: Any) -> tuple[FastAPI, list[object]]:
        app, ran = FastAPI(), list[object]()
        install(app, f"memory://{uuid.uuid4()}")

        @app.post("/")
        def order(given: Annotated[object, Depends(idempotent(**options))]) -> int:
            ran.append(given)
            return len(ran)

        return app, ran

    async def test_without_it_each_request_is_executed(self) -> None:
        """A function in its place gives the session, and no key is needed."""
        app, ran = self.app(caller=user, store="engine")
        app.dependency_overrides[idempotent(caller=user, store="engine")] = lambda: "session"
        async with client_of(app) as client:
            answers = [await client.post("/", headers={"Idempotency-Key": "k"}) for _ in range(2)]
            assert [each.json() for each in answers] == [1, 2]
            assert (await client.post("/")).json() == 3
        assert ran == ["session"] * 3

    async def test_another_in_its_place_is_obeyed(self) -> None:
        """A test can store the answers in the engine, without the database of the route."""
        app, ran = self.app(caller=user, session=list)
        of_test = idempotent(caller="anonymous", store="engine")
        app.dependency_overrides[idempotent(caller=user, session=list)] = of_test
        async with client_of(app) as client:
            answers = [await client.post("/", headers={"Idempotency-Key": "k"}) for _ in range(2)]
        assert [each.text for each in answers] == ["1", "1"]
        assert answers[1].headers["Idempotency-Replayed"] == "true"
        assert ran == [None]

    async def test_one_that_no_route_has_is_named(self) -> None:
        """FastAPI would ignore it: the test would be of something else than it says."""
        app, ran = self.app(caller=user, store="engine")
        app.dependency_overrides[idempotent(caller="anonymous", store="engine")] = lambda: None
        async with client_of(app, raises=True) as client:
            with pytest.raises(ConfigurationError, match="that no route has: repeat the arguments"):
                await client.post("/", headers={"Idempotency-Key": "k", "X-User": "anna"})
        assert not ran
