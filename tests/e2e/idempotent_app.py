"""An application that executes each order once, and whose worker dies where a test tells it to.

``uvicorn tests.e2e.idempotent_app:app``, with ``DATABASE``, ``ENGINE``, ``SESSIONS`` (``sync`` or ``async``) and
``FOLDER`` in the environment. The worker dies once at each step whose file is in the folder, and stops or takes long in the handler.
"""

import os
import signal
import time
from pathlib import Path
from typing import Annotated, Any

from fastapi import Depends, FastAPI, Header
from sqlalchemy import String, create_engine, event
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from weblock.contrib.fastapi import idempotent, install
from weblock.contrib.sqlalchemy import answer_table

STEPS = ("handler", "commit", "response", "sending")
DATABASE = os.environ.get("DATABASE", "sqlite://")
FOLDER = Path(os.environ.get("FOLDER", "/nowhere"))


class Base(DeclarativeBase):
    """Of all tables."""


class Order(Base):
    """What is to be made once for each key."""

    __tablename__ = "order_of_someone"

    id: Mapped[int] = mapped_column(primary_key=True)
    text: Mapped[str] = mapped_column(String(40))


answer_table(Base.metadata)


TTL = 2


def is_told_to(step: str) -> bool:
    try:
        (FOLDER / step).unlink()
    except FileNotFoundError:
        return False
    return True


def die_at(step: str) -> None:
    if is_told_to(step):
        os.kill(os.getpid(), signal.SIGKILL)


def work() -> None:
    """Die, stop until a test continues the worker, or outlast the lock."""
    die_at("handler")
    if is_told_to("stop"):
        (FOLDER / "stopping").write_text(str(os.getpid()))
        (FOLDER / "stopping").rename(FOLDER / "stopped")
        os.kill(os.getpid(), signal.SIGSTOP)
    if is_told_to("outlast"):
        time.sleep(2.5 * TTL)


def user(x_user: Annotated[str, Header()]) -> str:
    return x_user


def get_session() -> Any:
    with Session(engine) as session:
        yield session


async def get_async_session() -> Any:
    async with AsyncSession(async_engine) as session:
        yield session


is_async = os.environ.get("SESSIONS") == "async"
if is_async:
    async_engine = create_async_engine(DATABASE)
    engine = async_engine.sync_engine
else:
    engine = create_engine(DATABASE)


@event.listens_for(engine, "after_cursor_execute")
def _sent(_connection: object, _cursor: object, statement: str, *_more: object) -> None:
    if "INSERT INTO weblock_answer" in statement:
        die_at("commit")


app = FastAPI()


class Dying:
    """Dies when the work is committed, before the response, or with half of it sent."""

    def __init__(self, app: Any, *, outermost: bool) -> None:
        self.app, self.outermost = app, outermost

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async def send_or_die(message: Any) -> None:
            if message["type"] == "http.response.start" and not self.outermost:
                die_at("response")
            if message["type"] == "http.response.body" and self.outermost:
                half = {**message, "body": message["body"][:5], "more_body": True}
                if (FOLDER / "sending").exists():
                    await send(half)
                die_at("sending")
            await send(message)

        await self.app(scope, receive, send_or_die)


app.add_middleware(Dying, outermost=False)
install(app, os.environ.get("ENGINE", "noop://"), ttl=TTL)
app.add_middleware(Dying, outermost=True)

if is_async:
    Once = Annotated[
        AsyncSession, Depends(idempotent(caller=user, session=get_async_session, wait=1))
    ]

    @app.post("/orders", status_code=201)
    async def create(session: Once, text: str) -> dict[str, int]:
        """Make an order."""
        work()
        order = Order(text=text)
        session.add(order)
        await session.commit()
        await session.refresh(order)
        return {"id": order.id}
else:
    SyncOnce = Annotated[Session, Depends(idempotent(caller=user, session=get_session, wait=1))]

    @app.post("/orders", status_code=201)
    def create_in_thread(session: SyncOnce, text: str) -> dict[str, int]:
        """Make an order."""
        work()
        order = Order(text=text)
        session.add(order)
        session.commit()
        return {"id": order.id}
