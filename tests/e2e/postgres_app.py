"""The bounded "create item" on PostgreSQL, in every way that a team may write it.

``uvicorn tests.e2e.postgres_app:app``, with ``DATABASE`` (host, port and path of a URL) and
``ENGINE`` in the environment. ``/ours/...`` uses the lock, ``/naive/...`` what one writes first.
"""

import asyncio
import itertools
import os
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

from fastapi import Depends, FastAPI, HTTPException, Request
from sqlalchemy import create_engine, func, select
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column
from starlette.middleware.base import BaseHTTPMiddleware

from tests.contrib.naive import naive_lock
from weblock import AsyncLease
from weblock.contrib.fastapi import install, lock
from weblock.contrib.sqlalchemy import guard

BOUND = 3
DRIVERS = ("psycopg", "async psycopg", "asyncpg")
SCOPES = ("request", "function")
ORDERS = ("lock-first", "session-first")
WAYS = ["/".join(way).replace(" ", "-") for way in itertools.product(DRIVERS, SCOPES, ORDERS)]

DATABASE = os.environ.get("DATABASE", "localhost/none")

SLOW_COMMITS = """
CREATE FUNCTION commit_slowly() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_sleep(0.1);
    IF NEW.note = 'fails' THEN RAISE EXCEPTION 'it could not commit'; END IF;
    RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER slowly AFTER INSERT ON item DEFERRABLE INITIALLY DEFERRED
FOR EACH ROW EXECUTE FUNCTION commit_slowly();
"""
"""A deferred trigger runs inside COMMIT, which it slows down and can have fail."""


class Base(DeclarativeBase):
    """Of all tables."""


class Item(Base):
    """What there may be three of."""

    __tablename__ = "item"

    id: Mapped[int] = mapped_column(primary_key=True)
    note: Mapped[str]


app = FastAPI()
locks = install(app, os.environ.get("ENGINE", "noop://"), wait=60)
naive = naive_lock(locks, "create_item")


def sync_session(driver: str) -> Callable[[], Iterator[Session]]:
    """A dependency that commits when it ends."""
    engine = create_engine(f"postgresql+{driver}://{DATABASE}")

    def opened() -> Iterator[Session]:
        with Session(engine) as session:
            yield session
            session.commit()

    return opened


def async_session(driver: str) -> Callable[[], AsyncIterator[AsyncSession]]:
    """The same, for asyncio."""
    engine = create_async_engine(f"postgresql+{driver}://{DATABASE}")

    async def opened() -> AsyncIterator[AsyncSession]:
        async with AsyncSession(engine) as session:
            yield session
            await session.commit()

    return opened


SESSIONS: dict[str, Any] = {
    driver: async_session(driver.removeprefix("async "))
    if driver in ("async psycopg", "asyncpg")
    else sync_session(driver)
    for driver in DRIVERS
}


def refuse_if_enough(count: int | None) -> None:
    """The rule that must hold whatever happens at the same time."""
    if (count or 0) >= BOUND:
        raise HTTPException(422, "there are enough")


def add(path: str, one_at_a_time: Any, driver: str, scope: Any, order: str) -> None:
    """One of the ways, as an endpoint."""
    session = Annotated[Any, Depends(SESSIONS[driver], scope=scope)]
    lease = Annotated[Any, one_at_a_time]
    counted = select(func.count(Item.id))

    def create(session: Session, note: str) -> None:
        refuse_if_enough(session.scalar(counted))
        session.add(Item(note=note))

    async def create_async(session: AsyncSession, note: str) -> None:
        refuse_if_enough(await session.scalar(counted))
        session.add(Item(note=note))

    def lock_first(_: lease, session: session, note: str = "") -> None:
        create(session, note)

    def session_first(session: session, _: lease, note: str = "") -> None:
        create(session, note)

    async def lock_first_async(_: lease, session: session, note: str = "") -> None:
        await create_async(session, note)

    async def session_first_async(session: session, _: lease, note: str = "") -> None:
        await create_async(session, note)

    endpoints: dict[tuple[bool, bool], Any] = {
        (False, True): lock_first,
        (False, False): session_first,
        (True, True): lock_first_async,
        (True, False): session_first_async,
    }
    endpoint = endpoints["async" in driver, order == "lock-first"]
    app.post(path, status_code=201, response_model=None)(endpoint)


for way, parts in zip(WAYS, itertools.product(DRIVERS, SCOPES, ORDERS), strict=True):
    add(f"/ours/{way}", Depends(lock("create_item")), *parts)
add("/naive/yield", Depends(naive), "psycopg", "request", "session-first")
add("/naive/early", Depends(naive, scope="function"), "asyncpg", "request", "lock-first")
add("/naive/middleware", Depends(lambda: None), "asyncpg", "request", "lock-first")


Frozen = Annotated[AsyncLease, Depends(lock("frozen", ttl=1, on_lost="continue"))]
"""Of work that takes longer than its lease, if its process stands still meanwhile."""


def guarded_session(
    lease: Frozen, session: Annotated[Session, Depends(SESSIONS["psycopg"])]
) -> Session:
    """A session that commits nothing without the lease."""
    guard(session, lease)
    return session


async def guarded_async_session(
    lease: Frozen, session: Annotated[AsyncSession, Depends(SESSIONS["asyncpg"])]
) -> AsyncSession:
    """The same, for asyncio."""
    guard(session, lease)
    return session


@app.post("/guarded/def", status_code=201, response_model=None)
def guarded(
    session: Annotated[Session, Depends(guarded_session)], begun: Path, go_on: Path
) -> None:
    """Commits by itself, when it is told to, what it knew when it held the lease."""
    begun.touch()
    while not go_on.exists():
        time.sleep(0.01)
    session.add(Item(note=""))
    session.commit()


@app.post("/guarded/async", status_code=201, response_model=None)
async def guarded_async(
    session: Annotated[AsyncSession, Depends(guarded_async_session)], begun: Path, go_on: Path
) -> None:
    """The same, for asyncio."""
    begun.touch()  # noqa: ASYNC240 - it takes no time
    while not go_on.exists():  # noqa: ASYNC110, ASYNC240 - a test sets it, in another process
        await asyncio.sleep(0.01)
    session.add(Item(note=""))
    await session.commit()


class NaiveMiddleware(BaseHTTPMiddleware):
    """Releases when ``call_next`` returns, which is when the response begins."""

    async def dispatch(self, request: Request, call_next: Any) -> Any:
        """Holds the lock around one path."""
        if request.url.path != "/naive/middleware":
            return await call_next(request)
        async with locks.hold("create_item"):
            return await call_next(request)


app.add_middleware(NaiveMiddleware)
