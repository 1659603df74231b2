"""How tests steer an application in another process: by files in the folder $WEBLOCK_TEST_FOLDER.

A handler notes there that it began, waits for leave to go on, and notes that it ended.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse

from tests.support.waiting import eventually

FOLDER = Path(os.environ.get("WEBLOCK_TEST_FOLDER", "."))


def note(name: str) -> None:
    """Leaves a note, which a test sees when it says which process has written it."""
    unfinished = FOLDER / f"{name}-unfinished"
    unfinished.write_text(str(os.getpid()))
    unfinished.rename(FOLDER / name)


def steered(name: str) -> str:
    note(f"{name}-began")
    until_it_goes_on(name)
    note(f"{name}-ended")
    return name


def until_it_goes_on(name: str) -> None:
    eventually((FOLDER / f"{name}-goes-on").exists)


async def digest_of_body(request: Request) -> str:
    digest = hashlib.sha256()
    try:
        async for part in request.stream():
            digest.update(part)
    except ClientDisconnect:
        note(f"{request.path_params['key']}-broke-off")
    return digest.hexdigest()


def most_memory() -> PlainTextResponse:
    """The most memory that this process has ever had, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    kilobytes = next(line.split()[1] for line in lines if line.startswith("VmHWM"))
    return PlainTextResponse(str(int(kilobytes) * 1024))


@asynccontextmanager
async def lifespan(_app: object) -> AsyncIterator[None]:
    note("started")
    yield
    note("shut-down")
