"""Packages for the header ``Idempotency-Key`` on one handler: FastAPI, SQLAlchemy and PostgreSQL, two uvicorn workers.

Each is set up as its documentation shows for several workers, and separates users where it has an option for that. Each
lock lasts ``TTL`` seconds; where one option sets the lock and the answers' age, the answers last as long. A worker is
killed when its connection goes back to the pool: after COMMIT, before the response. The client then sends its order again
every 0.1 s. A package that is not installed is left out. (idemptx needs redis-py before 6.)
"""

import asyncio
import importlib.util
import os
import random
import signal
import sys
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from importlib import import_module
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import httpx
import sqlalchemy as sa
from fastapi import Depends, FastAPI, Header, Request
from fastapi.responses import JSONResponse
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

from tests.servers import Postgres, Server
from tests.servers.ports import free_port
from tests.servers.process import spawn
from tests.support.waiting import PATIENCE, eventually
from weblock.contrib.fastapi import idempotent, install
from weblock.contrib.sqlalchemy import answer_table

from . import machine
from .measuring import Case, Effort
from .report import Findings

TTL, LONG, RACES, CLIENTS, PAUSE = 5, 8, 200, 4, 0.02
"""Seconds of a lock and of the long handler; races, clients in each, and seconds of their handler."""
FOLDER = Path(os.environ.get("FOLDER", "/nowhere"))
MODULES = {
    "weblock, file://": "weblock",
    "weblock, redis://": "weblock",
    "fastapi-idempotency 0.1.1": "fastapi_idempotency",
    "fastapi-idempotency-key 0.1.1": "fastapi_idempotency_key",
    "fastidempotent 0.1.0, Postgres": "fastidempotent",
    "fastidempotent 0.1.0, Redis": "fastidempotent",
    "idemptx 0.2.2": "idemptx",
    "ichido 0.1.0": "ichido",
}
METADATA = sa.MetaData()
NUMBER, TEXT = sa.Column("number", sa.Integer, primary_key=True), sa.Column("text", sa.Text)
ORDERS = sa.Table("orders", METADATA, NUMBER, TEXT)
answer_table(METADATA)
_database = create_async_engine(os.environ.get("POSTGRES", "postgresql+asyncpg://"))


async def _get_session() -> AsyncIterator[AsyncSession]:
    async with AsyncSession(_database) as session:
        yield session


def _user(x_user: Annotated[str, Header()]) -> str:
    return x_user


def make_app() -> FastAPI:
    """The application with the package that the environment names."""

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        for each in starting:
            await each
        yield

    starting: list[Any] = []
    app = FastAPI(lifespan=lifespan)
    given, decorated = _protected(app, os.environ["PEER"], starting)
    app.post("/orders")(decorated(_order_form(given)))
    app.post("/bare")(_order_form(_get_session))
    return app


def _order_form(given: Callable[..., Any]) -> Callable[..., Any]:
    async def make(request: Request, session: Annotated[AsyncSession, Depends(given)]) -> Any:
        wanted = await request.json()
        order = sa.insert(ORDERS).values(text=wanted["text"]).returning(NUMBER)
        number = await session.scalar(order)
        await asyncio.sleep(wanted["seconds"])
        if wanted["text"] == "doomed" and not (FOLDER / "died").exists():
            (FOLDER / "died").touch()
            pool = _database.sync_engine.pool
            sa.event.listen(pool, "checkin", lambda *_: os.kill(os.getpid(), signal.SIGKILL))
        await session.commit()
        return JSONResponse({"number": number}, status_code=201)

    return make


def _protected(app: FastAPI, peer: str, starting: list[Any]) -> tuple[Any, Callable[..., Any]]:
    """Set up a package; return the dependency that gives the session, and a decorator."""
    name, *_, store = peer.split()
    if name == "weblock,":
        redis = f"{os.environ['REDIS']}?recovery=off"
        install(app, redis if "redis" in store else f"file://{FOLDER}/locks", ttl=TTL)
        return idempotent(caller=_user, session=_get_session), lambda order: order
    package: Any = import_module(MODULES[peer])
    client = import_module("redis.asyncio").from_url(os.environ["REDIS"])
    match name:
        case "idemptx":
            backend = import_module("idemptx.backend").AsyncRedisBackend(client)
            refused = package.IdempotencyException
            app.add_exception_handler(refused, lambda *_error: JSONResponse(None, 409))
            return _get_session, package.idempotent(storage_backend=backend, key_ttl=TTL)
        case "fastapi-idempotency":
            stores = import_module("fastapi_idempotency.stores.tortoise")
            register = import_module("tortoise.contrib.fastapi").RegisterTortoise
            url = os.environ["POSTGRES"].replace("postgresql+", "")
            models = {"models": [stores.__name__]}
            starting.append(register(app, db_url=url, modules=models, generate_schemas=True))
            options: dict[str, Any] = {"lease_seconds": TTL, "heartbeat_seconds": TTL / 3}
            options |= {"store": stores.TortoiseStore(), "path_prefix": "/orders"}
            options["scope"] = lambda request: request.headers["x-user"]
            app.add_middleware(package.IdempotencyMiddleware, **options)
        case "fastapi-idempotency-key":
            # Its RedisBackend stores no fingerprint, so that each repeated request gets 422.
            backend = package.SQLiteBackend(database_path=FOLDER / "answers")
            app.add_middleware(package.IdempotencyMiddleware, backend=backend, default_ttl=TTL)
        case "fastidempotent":
            backend = getattr(package, f"{store}Backend")(url=os.environ[store.upper()])
            starting.append(backend.init())
            options = {"lock_timeout": TTL, "fingerprint_headers": ["x-user"], "optional": True}
            config = package.IdempotencyConfig(**options)
            app.add_middleware(package.IdempotencyMiddleware, backend=backend, config=config)
        case "ichido":
            backend = package.RedisIdempotencyStore(client, ttl=TTL)
            app.add_middleware(package.IchidoMiddleware, store=backend)
    return _get_session, lambda order: order


def _measured(client: httpx.Client, engine: sa.Engine) -> list[str]:
    """Return the figures of the package that is served."""

    def send(
        text: str, seconds: float = 0, delay: float = 0, user: str = "anna", path: str = "/orders"
    ) -> Any:
        """Send an order whose text is its key, too; ``None`` if the connection is lost."""
        time.sleep(delay)
        headers = {"X-User": user} | ({} if path == "/bare" else {"Idempotency-Key": text})
        try:
            return client.post(path, json={"text": text, "seconds": seconds}, headers=headers)
        except httpx.HTTPError:
            return None

    def made(*texts: str) -> int:
        with engine.connect() as connection:
            counting = sa.select(sa.func.count()).where(TEXT.in_(texts))
            return connection.scalar(counting) or 0

    def retried(text: str, seconds: float = 0) -> str:
        """Send an order until it succeeds, for three ttl; what happened, and how many were made."""
        start, statuses = time.monotonic(), dict[str, None]()
        while time.monotonic() - start < 3 * TTL and "201" not in statuses:
            if answer := send(text, seconds, delay=0.1):
                statuses[str(answer.status_code)] = None
        waited = (time.monotonic() - start) / TTL
        return f"{' '.join(statuses)} after {waited:.1f} ttl, {made(text)} made"

    eventually(lambda: send("hello", path="/bare"), within=PATIENCE)
    with ThreadPoolExecutor(CLIENTS) as pool:
        races = [uuid.uuid4().hex for _ in range(RACES)]
        for text in races:
            delays = [random.uniform(0, 2 * PAUSE) for _ in range(CLIENTS)]
            list(pool.map(partial(send, text, PAUSE), delays))
        times: dict[str, list[float]] = {"/orders": [], "/bare": []}
        for path in [*times] * RACES:
            start = time.monotonic()
            send(uuid.uuid4().hex, path=path)
            times[path].append(time.monotonic() - start)
        first, other = (send("shared", user=user) for user in ("anna", "bert"))
        to_other = "her answer" if other.text == first.text else str(other.status_code)
        assert send("doomed") is None
        assert made("doomed") == 1
        killed = retried("doomed")
        slow = pool.submit(send, "slow", LONG)
        time.sleep(TTL / 10)
        outlasted = retried("slow", LONG)
        slow.result()
    cost = median(times["/orders"]) / median(times["/bare"])
    outlasted += f", {made('slow')} in the end"
    return [str(made(*races) - RACES), killed, outlasted, to_other, f"{cost:.2f}"]


def idempotency(_effort: Effort) -> Iterator[Findings]:
    """Idempotency keys: races, a killed worker, a handler that outlasts its lock, two users."""
    rows = []
    with Postgres() as postgres, Server() as redis:
        servers = {"REDIS": f"redis://127.0.0.1:{redis.port}"}
        servers["POSTGRES"] = postgres.url(driver="asyncpg")
        engine = sa.create_engine(postgres.url(driver="psycopg"))
        for peer in (each for each, name in MODULES.items() if importlib.util.find_spec(name)):
            METADATA.drop_all(engine)
            METADATA.create_all(engine)
            url = f"http://127.0.0.1:{(port := free_port())}"
            command = [sys.executable, "-m", "uvicorn", "benchmarks.idempotency:make_app"]
            command += ["--factory", "--workers=2", f"--port={port}", "--log-level=critical"]
            client = httpx.Client(base_url=url, timeout=PATIENCE)
            with machine.scratch() as folder, client:
                servers |= {"PEER": peer, "FOLDER": str(folder)}
                workers = spawn(command, log=folder / "log", env=servers)
                rows.append([peer, *_measured(client, engine)])
                workers.terminate()
                workers.wait()
        engine.dispose()
    heads = ["duplicates", "killed after COMMIT", "outlasts its lock", "another user", "÷ bare"]
    yield Findings(f"One order for each key, {RACES} races", heads, rows)


CASES: dict[str, Case] = {"idempotency": idempotency}
