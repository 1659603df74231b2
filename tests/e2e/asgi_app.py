"""An application that any ASGI server runs: ``tests.e2e.asgi_app:app``, in $WEBLOCK_TEST_FOLDER.

Tests steer it by files in that folder: a handler notes there that it began, waits for leave to go
on, and notes that it ended.
"""

import asyncio
import hashlib
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from tests.support.waiting import PATIENCE
from weblock.contrib.asgi import LockMiddleware, Rule

FOLDER = Path(os.environ.get("WEBLOCK_TEST_FOLDER", "."))

RULES = [
    Rule("/fixed", methods=["POST"], key="fixed"),
    Rule("/{kind}/{key}", methods=["POST"], key="{key}"),
    Rule("/{kind}/{key}/{name}", methods=["POST"], key="{key}"),
]


def noted(name: str) -> bool:
    """Whether there is a note, of the test or of a handler."""
    return (FOLDER / name).exists()


def note(name: str) -> None:
    """Leaves a note for the test."""
    (FOLDER / name).touch()


async def until_it_goes_on(name: str) -> None:
    """Returns when the test says so."""
    async with asyncio.timeout(PATIENCE):
        while not noted(f"{name}-goes-on"):  # noqa: ASYNC110 - it is another process's to make
            await asyncio.sleep(0.005)


async def steered(request: Request) -> Response:
    """Ends when it is told to."""
    name = request.path_params["name"]
    note(f"{name}-began")
    await until_it_goes_on(name)
    note(f"{name}-ended")
    return PlainTextResponse(name)


async def quick(request: Request) -> Response:
    """Takes little time."""
    return PlainTextResponse("done")


async def upload(request: Request) -> Response:
    """The digest of what was uploaded."""
    digest = hashlib.sha256()
    try:
        async for part in request.stream():
            digest.update(part)
    except ClientDisconnect:
        note(f"{request.path_params['key']}-broke-off")
    return PlainTextResponse(digest.hexdigest())


async def large(request: Request) -> Response:
    """A response in one piece."""
    return Response(b"x" * int(request.query_params["size"]))


async def events(request: Request) -> Response:
    """The second event is made when the first has been seen."""
    name = request.path_params["name"]

    async def make() -> AsyncIterator[str]:
        yield "data: first\n\n"
        await until_it_goes_on(name)
        yield "data: second\n\n"

    return StreamingResponse(make(), media_type="text/event-stream")


async def memory(request: Request) -> Response:
    """The most memory that this process has ever had, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()  # noqa: ASYNC240 - of the kernel's
    kilobytes = next(line.split()[1] for line in lines if line.startswith("VmHWM"))
    return PlainTextResponse(str(int(kilobytes) * 1024))


@asynccontextmanager
async def lifespan(_app: Starlette) -> AsyncIterator[None]:
    """Notes that it was started, and shut down."""
    note("started")
    yield
    note("shut-down")


app = Starlette(
    routes=[
        Route("/steered/{key}/{name}", steered, methods=["POST"]),
        Route("/fixed", quick, methods=["POST"]),
        Route("/quick/{key}", quick, methods=["POST"]),
        Route("/upload/{key}", upload, methods=["POST"]),
        Route("/large/{key}", large, methods=["POST"]),
        Route("/events/{key}/{name}", events, methods=["POST"]),
        Route("/memory", memory),
    ],
    lifespan=lifespan,
    middleware=[
        Middleware(
            LockMiddleware,
            locks=os.environ.get("WEBLOCK_TEST_ENGINE", "noop://"),
            rules=RULES,
            wait=PATIENCE,
        )
    ],
)
