"""An application under uvicorn, in a process of its own: ``python -m tests.e2e.uvicorn_app PORT``.

Tests steer it by files in the folder: a handler notes there that it began, waits for leave to go
on, and notes that it ended. When the server has shut down, ``left.json`` says what is left of it.
"""

import asyncio
import hashlib
import json
import os
import signal
import socket
import sqlite3
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Annotated, Any

import uvicorn
from fastapi import Depends, FastAPI, HTTPException, Request
from fastapi.responses import FileResponse, PlainTextResponse, Response, StreamingResponse
from starlette.requests import ClientDisconnect

from tests.contrib.naive import naive_lock
from tests.support.waiting import PATIENCE
from weblock.contrib.fastapi import install, lock

BOUND = 3
COMMITTING = 0.1
"""Seconds that a commit takes."""

FOLDER = Path(os.environ.get("WEBLOCK_TEST_FOLDER", "."))


def noted(name: str) -> bool:
    """Whether there is a note, of the test or of a handler."""
    return (FOLDER / name).exists()


def most_memory() -> int:
    """The most memory that this process has ever had, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    kilobytes = next(line.split()[1] for line in lines if line.startswith("VmHWM"))
    return int(kilobytes) * 1024


def note(name: str) -> None:
    """Leaves a note for the test."""
    (FOLDER / name).touch()


@asynccontextmanager
async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
    """Notes that it was started, and shut down."""
    note("started")
    yield
    note("shut-down")


app = FastAPI(lifespan=lifespan)
locks = install(app, os.environ.get("WEBLOCK_TEST_ENGINE", "noop://"), wait=PATIENCE)


def session() -> Iterator[sqlite3.Connection]:
    """Commits when its dependency ends, which takes a while."""
    with closing(
        sqlite3.connect(FOLDER / "items.sqlite3", timeout=PATIENCE, check_same_thread=False)
    ) as connection:
        yield connection
        if connection.in_transaction:
            time.sleep(COMMITTING)
            connection.commit()


Session = Annotated[sqlite3.Connection, Depends(session)]
EarlySession = Annotated[sqlite3.Connection, Depends(session, scope="function")]
NaiveLock = Depends(naive_lock(locks, "naive"))
EarlyNaiveLock: Any = Depends(naive_lock(locks, "naive"), scope="function")
OurLock = Depends(lock("create_item"))


def create(connection: sqlite3.Connection) -> None:
    """Makes an item, unless there are enough. It writes last, so that nobody waits for SQLite."""
    (count,) = connection.execute("SELECT count(*) FROM item").fetchone()
    if count >= BOUND:
        raise HTTPException(422, "there are enough")
    connection.execute("INSERT INTO item DEFAULT VALUES")


@app.post("/ours/lock-first", status_code=201)
def ours_lock_first(_: Annotated[Any, OurLock], connection: Session) -> None:
    """The lock is entered first, and so would be left last."""
    create(connection)


@app.post("/ours/session-first", status_code=201)
def ours_session_first(connection: Session, _: Annotated[Any, OurLock]) -> None:
    """The lock would be left before the session commits."""
    create(connection)


@app.post("/ours/early-session", status_code=201)
def ours_early_session(connection: EarlySession, _: Annotated[Any, OurLock]) -> None:
    """The session commits before the response is sent."""
    create(connection)


@app.post("/ours/commit-inside", status_code=201)
async def ours_commit_inside(connection: Session, _: Annotated[Any, OurLock]) -> None:
    """The endpoint commits by itself."""
    create(connection)
    await asyncio.sleep(COMMITTING)
    connection.commit()


@app.post("/naive/session-first", status_code=201)
def naive_session_first(connection: Session, _: Annotated[Any, NaiveLock]) -> None:
    """The lock is left before the session commits."""
    create(connection)


@app.post("/naive/early-lock", status_code=201)
def naive_early_lock(_: Annotated[Any, EarlyNaiveLock], connection: Session) -> None:
    """So it is here, whatever the order, because of its scope."""
    create(connection)


@app.api_route("/health", methods=["GET", "POST"])
def health() -> str:
    """Takes no lock."""
    return "well"


@app.post("/steered/{key}/{name}", dependencies=[Depends(lock("{key:str}", wait=None))])
def steered(name: str) -> str:
    """Ends when it is told to."""
    note(f"{name}-began")
    give_up_at = time.monotonic() + PATIENCE
    while not noted(f"{name}-goes-on") and time.monotonic() < give_up_at:
        time.sleep(0.005)
    note(f"{name}-ended")
    return name


@app.post("/fixed", dependencies=[Depends(lock("fixed"))])
def fixed() -> str:
    """Takes the same lock each time."""
    return "done"


@app.post("/quick/{key}", dependencies=[Depends(lock("{key:str}"))])
def quick() -> str:
    """Takes one, and little time."""
    return "done"


@app.post("/upload/{key}", dependencies=[Depends(lock("{key:str}", wait=None))])
async def upload(request: Request, key: str) -> str:
    """The digest of what was uploaded."""
    digest = hashlib.sha256()
    try:
        async for part in request.stream():
            digest.update(part)
    except ClientDisconnect:
        note(f"{key}-broke-off")
    return digest.hexdigest()


@app.post("/large/{key}", dependencies=[Depends(lock("{key:str}"))])
def large(size: int) -> Response:
    """A response in one piece."""
    return Response(b"x" * size)


@app.post("/file/{key}", dependencies=[Depends(lock("{key:str}"))])
def file(size: int) -> FileResponse:
    """A response in many pieces."""
    path = FOLDER / f"file-{size}"
    path.write_bytes(b"x" * size)
    return FileResponse(path)


@app.post("/events/{key}/{name}", dependencies=[Depends(lock("{key:str}"))])
async def events(name: str) -> StreamingResponse:
    """The second event is made when the first has been seen."""

    async def make() -> Any:
        yield "data: first\n\n"
        async with asyncio.timeout(PATIENCE):
            while not noted(f"{name}-goes-on"):  # noqa: ASYNC110 - it is another process's to make
                await asyncio.sleep(0.005)
        yield "data: second\n\n"

    return StreamingResponse(make(), media_type="text/event-stream")


@app.get("/memory")
def memory() -> PlainTextResponse:
    """The most memory that this process has ever had, in bytes."""
    return PlainTextResponse(str(most_memory()))


class CountCalls:
    """Says in a header of ``/health`` how many calls its thread made meanwhile, whoever made them."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope.get("path") != "/health":
            await self.app(scope, receive, send)
            return
        calls, held = 0, []

        def count(_frame: Any, event: str, _argument: Any) -> None:
            nonlocal calls
            calls += event == "call"

        async def hold(message: Any) -> None:
            held.append(message)

        sys.setprofile(count)
        try:
            await self.app(scope, receive, hold)
        finally:
            sys.setprofile(None)
        held[0]["headers"].append((b"x-calls", str(calls).encode()))
        for message in held:
            await send(message)


def main() -> None:
    """Serves until it is told to end."""
    with closing(sqlite3.connect(FOLDER / "items.sqlite3")) as database:
        database.execute("PRAGMA journal_mode=WAL")
        database.execute("CREATE TABLE item (id INTEGER PRIMARY KEY)")
        database.commit()
    with socket.socket() as listener:
        # Little is buffered between client and server, so that each feels when the other is slow.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16 * 1024)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 16 * 1024)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", int(sys.argv[1])))
        listener.listen(1024)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # uvicorn raises it again when it has ended.
        server = uvicorn.Server(uvicorn.Config(CountCalls(app), log_level="warning", ws="none"))
        server.run([listener])
    left = {
        "threads": [thread.name for thread in threading.enumerate() if "weblock" in thread.name],
        "files": [
            path
            for each in Path("/proc/self/fd").iterdir()
            if int(each.name) > sys.stderr.fileno()
            and os.path.lexists(each)
            and str(FOLDER) in (path := str(each.readlink()))
        ],
    }
    (FOLDER / "left.json").write_text(json.dumps(left))


if __name__ == "__main__":
    main()
