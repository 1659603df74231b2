"""``weblock bench``: what locks cost on the user's own engine. ``weblock doctor`` measures with it, too."""

from __future__ import annotations

import math
import secrets
import statistics
import threading
import time
from contextlib import suppress
from typing import Any

import click

from .. import Locks, WeblockError
from .app import Session, command, pass_session


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
    # Jain's index: 1 where all got as much, and 1/n where one of n got all.
    squares = sum(each * each for each in counts)
    jain = sum(counts) ** 2 / (len(counts) * squares) if squares else 1.0
    facts: dict[str, Any] = {"engine": engine}
    lines = [engine]
    for name, text, times in (
        ("acquire", "Acquire a free key", acquired),
        ("release", "Release it", released),
        ("hand_off", "Hand it over, from the release to the next holder", handed_over),
    ):
        count, median = len(times), statistics.median(times)
        p99 = sorted(times)[math.ceil(count * 0.99) - 1]
        facts[name] = {"count": count, "median": round(median, 7), "p99": round(p99, 7)}
        lines.append(f"{text}: {millis(median)} (median), {millis(p99)} (p99), {count} times")
    facts["fairness"] = {"jain": round(jain, 4), "counts": counts}
    lines.append(f"Fairness: {jain:.0%} (Jain's index) of {threads} threads that want one key")
    session.say("\n".join(lines), facts)


def millis(seconds: float) -> str:
    """Return seconds as milliseconds, for people."""
    return f"{seconds * 1000:.3g} ms"


def new_key() -> str:
    """Return a key that no application uses."""
    return f"weblock bench {secrets.token_hex(6)}"


def acquisitions(locks: Locks, seconds: float) -> tuple[list[float], list[float]]:
    """Return how many seconds it takes to acquire a free key, and to release it, each time."""
    key, acquired, released = new_key(), list[float](), list[float]()
    end = time.perf_counter() + seconds
    while not acquired or time.perf_counter() < end:
        asked = time.perf_counter()
        lease = locks.acquire(key)
        got = time.perf_counter()
        lease.release()
        acquired.append(got - asked)
        released.append(time.perf_counter() - got)
    return acquired, released


def hand_offs(locks: Locks, seconds: float, *, most: int = 1000) -> list[float]:
    """Return how many seconds pass from the call of ``release`` until the next waiter has the key."""
    key, times = new_key(), list[float]()
    end = time.perf_counter() + seconds
    while not times or (time.perf_counter() < end and len(times) < most):
        got: list[float] = []

        def wait(got: list[float] = got) -> None:
            # The measuring caller also gets the error of an engine that fails.
            with suppress(WeblockError), locks.hold(key, wait=None):
                got.append(time.perf_counter())

        waiter = threading.Thread(target=wait, daemon=True)
        with locks.hold(key) as lease:
            waiter.start()
            while waiter.is_alive() and not ((info := locks.inspect(key)) and info.waiters):
                time.sleep(0.0005)
            released = time.perf_counter()
            lease.release()
        waiter.join()
        # Without a lock, as on noop://, nobody waits.
        times.append(max(0.0, got[0] - released) if got else 0.0)
    return times


def shares(locks: Locks, seconds: float, threads: int) -> list[int]:
    """Return how often each of several threads gets a key that all want, a millisecond at a time."""
    key, counts, over = new_key(), [0] * threads, threading.Event()

    def take_turns(number: int) -> None:
        while not over.is_set():
            with suppress(WeblockError), locks.hold(key, wait=None):
                counts[number] += 1
                time.sleep(0.001)

    crowd = [threading.Thread(target=take_turns, args=[n], daemon=True) for n in range(threads)]
    for each in crowd:
        each.start()
    time.sleep(seconds)
    over.set()
    for each in crowd:
        each.join()
    return counts
