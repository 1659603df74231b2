"""``weblock bench``: what locks cost on the user's own engine."""

from __future__ import annotations

from typing import Any

import click

from .app import Session, command, pass_session
from .measuring import Times, acquisitions, fairness, hand_offs, shares
from .output import bar


@command("bench")
@click.option("--seconds", type=click.FloatRange(0.03, 10), default=6.0, show_default=True)
@click.option("--threads", type=click.IntRange(2, 64), default=8, show_default=True)
@pass_session
def bench_command(session: Session, seconds: float, threads: int) -> None:
    """Measures how long it takes to acquire, release and hand over a key, and how fair that is.

    It uses keys of its own, from this process alone: the times are those of the engine and the network
    between it and here. An engine in production can be measured, too: it has more to do for some seconds.
    """
    with session.locks() as locks:
        acquired, released = acquisitions(locks, seconds / 3)
        handed_over = hand_offs(locks, seconds / 3)
        counts = shares(locks, seconds / 3, threads)
        engine = locks.engine
    facts: dict[str, Any] = {
        "engine": engine,
        "acquire": _facts(acquired),
        "release": _facts(released),
        "hand_off": _facts(handed_over),
        "fairness": {"jain": round(fairness(counts), 4), "counts": counts},
    }
    lines = [
        engine,
        "",
        *_drawn("Acquire a free key", acquired),
        *_drawn("Release it", released),
        *_drawn("Hand it over, from the release to the next holder", handed_over),
        f"Fairness: {fairness(counts):.0%} (Jain's index) of {threads} threads that want one key",
        *(
            f"  thread {n:<4} {count:>6}  {bar(count / (max(counts) or 1))}"
            for n, count in enumerate(counts, 1)
        ),
    ]
    session.say("\n".join(lines), facts)


def _facts(times: Times) -> dict[str, Any]:
    return {
        "count": len(times.all),
        "median": round(times.median, 7),
        "p99": round(times.p99, 7),
    }


def _drawn(what: str, times: Times) -> list[str]:
    most = max(count for _, count in times.histogram())
    head = f"{what}: {_millis(times.median)} (median), {_millis(times.p99)} (p99), {len(times.all)} times"
    rows = [
        f"  < {_millis(below):<9} {count:>6}  {bar(count / most)}".rstrip()
        for below, count in times.histogram()
    ]
    return [head, *rows, ""]


def _millis(seconds: float) -> str:
    return f"{seconds * 1000:.3g} ms"
