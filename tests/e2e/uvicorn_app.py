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
import sys
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import Depends, FastAPI, Request
from fastapi.responses import FileResponse, PlainTextResponse, Response, StreamingResponse
from starlette.requests import ClientDisconnect

from tests.support.waiting import PATIENCE
from weblock.contrib.fastapi import install, lock

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
