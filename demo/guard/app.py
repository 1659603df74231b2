"""At most three items, with a commit that the lock alone protects, and one that the database refuses.

It runs by itself, too: ``uvicorn demo.guard.app:app --workers 4``.
"""

import os
import time
from collections.abc import Iterator
from typing import Annotated

from fastapi import Depends, FastAPI, HTTPException
from sqlalchemy import create_engine, func, select
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column
from sqlalchemy.schema import CreateTable

from demo.trace import section
from weblock.contrib.fastapi import guarded, install, lock
from weblock.contrib.sqlalchemy import fence_table

BOUND = 3
engine = create_engine(
    f"sqlite:///{os.environ.get('DEMO_DATABASE', 'items.sqlite3')}", connect_args={"timeout": 30}
)
app = FastAPI()
install(
    app,
    os.environ.get("DEMO_ENGINE", "file://"),
    namespace=os.environ.get("DEMO_NAMESPACE", "demo"),
    ttl=float(os.environ.get("DEMO_TTL", "10")),
)


class Base(DeclarativeBase):
    """The application's tables, and the guard's."""


class Item(Base):
    """What there may be three of."""

    __tablename__ = "item"
    id: Mapped[int] = mapped_column(primary_key=True)


fence_table(Base.metadata)
with engine.begin() as connection:
    for table in Base.metadata.sorted_tables:  # Other workers make them at the same time.
        connection.execute(CreateTable(table, if_not_exists=True))


def get_session() -> Iterator[Session]:
    """Gives a session, which ends with the request."""
    with Session(engine) as session:
        yield session


@app.post("/locked/items", status_code=201, dependencies=[Depends(lock("create_item"))])
def create_locked(
    session: Annotated[Session, Depends(get_session)], work: float = 0.15
) -> dict[str, int]:
    """Makes an item under the lock alone."""
    return add_item(session, work)


@app.post("/guarded/items", status_code=201)
def create_guarded(
    session: Annotated[Session, Depends(guarded(get_session, lock("create_item")))],
    work: float = 0.15,
) -> dict[str, int]:
    """Makes an item under the lock, with the database as referee."""
    return add_item(session, work)


def add_item(session: Session, work: float) -> dict[str, int]:
    """Makes an item, unless there are three already."""
    if (session.scalar(select(func.count(Item.id))) or 0) >= BOUND:
        raise HTTPException(422, f"limit reached: {BOUND} items")
    with section():  # It has counted: whoever stops it now has it sleep on what it has read.
        time.sleep(work)  # Some work: a payment, a call to another service.
        item = Item()
        session.add(item)
        session.commit()
    return {"item": item.id}
