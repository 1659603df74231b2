"""Every version, one after the other, and what came of each."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

from rich.console import Console

from demo.engine import redis_on
from demo.load import Request
from demo.outcome import Run
from demo.server import VERSIONS_COMMAND, serving
from demo.shop import WORK
from demo.story import run_until
from demo.versions import TTL, VERSIONS, Version, report

SLOW: Final = 2.3 * TTL
"""Seconds of a slow request: a slow payment, a long collection of garbage."""


async def tell(console: Console, *, requests: int, replicas: int, picture: Path | None) -> int:
    """The walk-through, from start to end. Returns the exit status.

    Raises ``EngineError`` or ``ServerError`` if something that is needed does not run.
    """
    report.introduce(console, requests, replicas, SLOW)
    runs = await run_all(console, requests=requests, replicas=replicas)
    report.compare(console, runs)
    if picture:
        report.draw(runs, picture, slow=(WORK + SLOW) / 2)
        console.print(f"\nPicture of all timelines: {picture}")
    return report.verdict(console, runs)


async def run_all(console: Console, *, requests: int, replicas: int) -> dict[Version, Run]:
    """What became of each version, weblock's last."""
    runs = {}
    async with AsyncExitStack() as stack:
        status = stack.enter_context(
            console.status("starting three Redis servers and the replicas")
        )
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="weblock-demo-")))
        urls = [
            await stack.enter_async_context(redis_on(directory, f"redis-{number}.log"))
            for number in range(3)
        ]
        environment = {"DEMO_SERVERS": ",".join(urls)}
        application = await stack.enter_async_context(
            serving(directory, VERSIONS_COMMAND, environment, workers=replicas)
        )
        for version in VERSIONS:
            status.update(f"{version.title} ...")
            path = f"/{version.name}/items"
            runs[version] = await run_until(_shows(version), application, plan(requests), path)
    return runs


def plan(requests: int) -> list[Request]:
    """The same requests for every version.

    One comes first, and its work takes longer than a ttl. A burst comes while the lock is young,
    another when its ttl has just ended, and some one by one.
    """
    early = late = requests // 4
    rest = requests - 1 - early - late
    moments = [0.1] * early + [1.1 * TTL] * late
    moments += [TTL * (1.3 + 0.7 * number / rest) for number in range(rest)]
    return [Request(0.0, SLOW), *(Request(at, WORK) for at in moments)]


def _shows(version: Version) -> Callable[[Run], bool]:
    """What a run is repeated for if it does not show it.

    Of the versions that can race, that is a race. weblock's shows at once that it cannot, unless the
    machine stands still for longer than a ttl: then a lease is lost, and the answer says so.
    """
    if version is VERSIONS[-1]:
        return lambda run: not run.lost
    return lambda run: run.raced
