"""``weblock ping``."""

from __future__ import annotations

import statistics

import click

from .app import Session, command, pass_session


@command("ping")
@click.option("--count", default=1, show_default=True, type=click.IntRange(min=1))
@pass_session
def ping_command(session: Session, count: int) -> None:
    """Sends the engine a request, and prints how long the answer took.

    Exits with 69 if the engine does not answer. Kubernetes can use it as a probe.
    """
    with session.locks() as locks:
        locks.ping()  # The first one connects, too.
        trips = [locks.ping() for _ in range(count)]
        engine = locks.engine
    median = statistics.median(trips)
    session.say(
        f"{engine} answers in {median * 1000:.2f} ms" + (" (median)" if count > 1 else ""),
        {"engine": engine, "seconds": median},
    )
