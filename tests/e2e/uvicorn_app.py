"""An application under uvicorn, in a process of its own: ``python -m tests.e2e.uvicorn_app PORT``.

Tests steer it (``steering``). When the server has shut down, ``left.json`` says what is left of it.
"""

import json
import os
import signal
import socket
import sys
import threading
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import Depends, FastAPI, Request
from fastapi.responses import PlainTextResponse, Response

from tests.support.waiting import PATIENCE
from weblock.contrib.fastapi import install, lock

from . import steering

app = FastAPI(lifespan=steering.lifespan)
locks = install(app, os.environ.get("WEBLOCK_TEST_ENGINE", "noop://"), wait=PATIENCE)


@app.api_route("/health", methods=["GET", "POST"])
def health() -> str:
    """Takes no lock."""
    return "well"


@app.post("/steered/{key}/{name}", dependencies=[Depends(lock("{key:str}", wait=None))])
def steered(name: str) -> str:
    return steering.steered(name)


@app.post("/fixed", dependencies=[Depends(lock("fixed"))])
def fixed() -> str:
    return "done"


@app.post("/quick/{key}", dependencies=[Depends(lock("{key:str}"))])
def quick() -> str:
    return "done"


@app.post("/upload/{key}", dependencies=[Depends(lock("{key:str}", wait=None))])
async def upload(request: Request, key: str) -> str:
    return await steering.digest_of_body(request)


@app.post("/large/{key}", dependencies=[Depends(lock("{key:str}"))])
def large(size: int) -> Response:
    return Response(b"x" * size)


@app.get("/memory")
def memory() -> PlainTextResponse:
    return steering.most_memory()


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
            and str(steering.FOLDER) in (path := str(each.readlink()))
        ],
    }
    (steering.FOLDER / "left.json").write_text(json.dumps(left))


if __name__ == "__main__":
    main()
