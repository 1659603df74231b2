"""The arguments, and what an interrupt does."""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import logging
import signal
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Final

from rich.console import Console

from demo.engine import EngineError
from demo.process import ServerError
from demo.server import FRAMEWORKS
from demo.story import tell
from demo.versions.story import tell as tell_versions

DESCRIPTION: Final = """\
A web application that may make at most 3 items breaks that bound in several workers, and keeps it
with one line of weblock. Then a worker is killed while it holds the lock."""

EXIT_STATUS: Final = """\
Exit status: 0 if the race was seen, the lock held, and a waiting request took over from the killed
worker; 1 if not; 2 for bad arguments, or if the engine cannot be used; 130 if interrupted."""


def run() -> int:
    """Tells the story. Returns the exit status."""
    options = _arguments()
    logging.getLogger("weblock").setLevel(logging.CRITICAL)  # The demo itself says what went wrong.
    console = Console(highlight=False)
    workers, picture = options.workers, options.picture
    if options.versions:
        requests = options.requests or 24
        story = tell_versions(console, requests=requests, replicas=workers, picture=picture)
    else:
        story = tell(
            console,
            engine=options.engine,
            framework=FRAMEWORKS[options.framework],
            requests=options.requests or 12,
            workers=workers,
            picture=picture,
        )
    try:
        return asyncio.run(_until_interrupted(story))
    except (EngineError, ServerError) as error:
        print(f"scripts/demo: {error}", file=sys.stderr)
        return 2 if isinstance(error, EngineError) else 1


async def _until_interrupted(story: Coroutine[Any, Any, int]) -> int:
    """Ends the story at its next ``await`` when a signal says so; tidying up is not disturbed."""
    loop, telling = asyncio.get_running_loop(), asyncio.ensure_future(story)

    def handle(action: Any) -> None:
        for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(each, action)

    def interrupt(*_: object) -> None:
        handle(signal.SIG_IGN)
        loop.call_soon_threadsafe(telling.cancel)

    handle(interrupt)
    try:
        return await telling
    except asyncio.CancelledError:
        print("Interrupted: the servers are stopped, nothing is left behind.", file=sys.stderr)
        return 130
    finally:
        handle(signal.SIG_IGN)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="scripts/demo", description=DESCRIPTION, epilog=EXIT_STATUS
    )
    parser.add_argument(
        "--engine",
        default="file://",
        metavar="URL",
        help="where the locks are: file:// (this machine, the default), redis://host:port or the like,"
        " or just redis, which starts a server for the demo",
    )
    parser.add_argument(
        "--framework",
        default="fastapi",
        choices=sorted(FRAMEWORKS),
        help="what the application is written in (fastapi)",
    )
    parser.add_argument(
        "--requests",
        type=_number(4, 500),
        metavar="N",
        help="how many are sent (12; 24 with --versions)",
    )
    parser.add_argument(
        "--workers",
        type=_number(2, 16),
        default=4,
        metavar="N",
        help="servers of the application (4)",
    )
    parser.add_argument(
        "--versions",
        action="store_true",
        help="instead, the same in five versions as articles have it, and in one line of weblock, on"
        " three Redis servers",
    )
    parser.add_argument(
        "--picture",
        type=Path,
        metavar="FILE",
        help="also draw the timelines into this SVG file; this needs matplotlib",
    )
    options = parser.parse_args()
    if options.picture and not importlib.util.find_spec("matplotlib"):
        parser.error(f"--picture needs matplotlib: {sys.executable} -m pip install matplotlib")
    return options


def _number(least: int, most: int) -> Callable[[str], int]:
    def number(text: str) -> int:
        if not text.isdecimal() or not least <= int(text[:9]) <= most:
            raise argparse.ArgumentTypeError(f"{text!r} is not a number from {least} to {most}")
        return int(text)

    return number
