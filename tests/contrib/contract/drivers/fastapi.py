"""``Depends(lock(...))``, with a dependency that commits, and sessions of SQLAlchemy."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Annotated, Any

from fastapi import Depends, FastAPI
from fastapi.responses import StreamingResponse
from sqlalchemy import create_engine, text
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column
from sqlalchemy.pool import NullPool

from tests.contrib.contract.driver import ROUTES, OverAsgi
from weblock import AsyncLease, Lease
from weblock.contrib.fastapi import guarded, install, lock, request_locks


class Base(DeclarativeBase):
    pass


class Row(Base):
    """A row, also for Flask."""

    __tablename__ = "row"
    id: Mapped[int] = mapped_column(primary_key=True)
    number: Mapped[int]


Held = Annotated[AsyncLease, Depends(lock("item:{item_id}"))]


class Driver(OverAsgi):
    """An application whose dependencies commit."""

    name = "FastAPI"
    folder = "fastapi"

    def application(self) -> Any:
        site, app = self.site, FastAPI()
        install(app, self.locks)

        async def committing() -> AsyncIterator[None]:
            yield
            await asyncio.to_thread(site.commit)

        @app.post("/items/{item_id}", dependencies=[Depends(committing)])
        @app.post("/again/{item_id}")
        async def items(item_id: int, lease: Held) -> Any:
            await asyncio.to_thread(site.handle, lease)
            return StreamingResponse(site.parts()) if site.parts else "done"

        @app.post("/threads/{item_id}")
        def threads(item_id: int, lease: Annotated[Lease, Depends(lock("item:{item_id}"))]) -> str:
            site.handle(lease)
            return "done"

        for path in ("/names/{name:str}", "/pairs/{a:int}/{b:int}", "/some/{item_id:int}"):
            locked = Depends(lock(*ROUTES[path]))

            @app.post(path)
            async def others(lease: Annotated[AsyncLease | None, locked]) -> str:
                await asyncio.to_thread(site.handle, lease)
                return "done"

        self._add_database(app)
        return app

    def _add_database(self, app: FastAPI) -> None:
        engine = create_engine(f"sqlite:///{self.site.database}", poolclass=NullPool)

        def get_session() -> Iterator[Session]:
            with Session(engine) as session:
                yield session
                session.commit()

        unaware = lock("item:{item_id}", renew=False)

        @app.post("/orders/{item_id}")
        def order(
            item_id: int,
            session: Annotated[Session, Depends(guarded(get_session, unaware))],
            lease: Annotated[AsyncLease, Depends(unaware)],
        ) -> str:
            session.execute(text("SELECT count(*) FROM orders"))
            self.site.handle(lease)
            session.execute(text("INSERT INTO orders DEFAULT VALUES"))
            return "done"

        @app.post("/rows/{item_id}")
        def row(item_id: int, session: Annotated[Session, Depends(get_session)]) -> int:
            found = session.get_one(Row, item_id)
            request_locks().acquire(f"item:{item_id}")
            return found.number
