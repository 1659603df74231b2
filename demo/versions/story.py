"""Every version, one after the other, and what came of each."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Final

from rich.console import Console

from demo import trace
from demo.server import Application
from demo.versions import VERSIONS, Version, report
from demo.versions.load import ask
from demo.versions.outcome import Outcome
from demo.versions.servers import serving

ATTEMPTS: Final = 4
"""How often it is tried: on a busy machine, requests may come one by one, or all stand still."""


async def tell(console: Console, *, requests: int, replicas: int, picture: Path | None) -> int:
    """The walk-through, from start to end. Returns the exit status.

    Raises ``EngineError`` or ``ServerError`` if something that is needed does not run.
    """
    report.introduce(console, requests, replicas)
    outcomes = await run_all(console, requests=requests, replicas=replicas)
    report.compare(console, outcomes)
    if picture:
        report.draw(console, outcomes, picture)
    return report.verdict(console, outcomes)


async def run_all(console: Console, *, requests: int, replicas: int) -> list[Outcome]:
    """What became of each version, weblock's last."""
    with (
        tempfile.TemporaryDirectory(prefix="weblock-demo-") as name,
        console.status("starting three Redis servers and the replicas ...") as status,
    ):
        async with serving(Path(name), replicas=replicas) as application:
            outcomes = []
            for version in VERSIONS:
                status.update(f"{version.title} ...")
                outcomes.append(await _until_it_shows(application, version, requests))
    return outcomes


async def _until_it_shows(application: Application, version: Version, requests: int) -> Outcome:
    """The first run in which a version shows what is said of it, or the last that was tried.

    Of those that can race, that is a race. weblock's shows it at once, unless the machine stands
    still for longer than a ttl: then a lease is lost, and the answer says so.
    """
    naive = version is not VERSIONS[-1]
    for _ in range(ATTEMPTS):
        outcome = await _run(application, version, requests)
        if outcome.raced if naive else not outcome.lost:
            break
    return outcome


async def _run(application: Application, version: Version, requests: int) -> Outcome:
    application.start_anew()
    answers = await ask(application.url, version.name, requests)
    sections = trace.read(application.trace)
    return Outcome(answers, application.items(), sections, application.workers, version)
