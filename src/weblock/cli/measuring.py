"""Measures an engine: acquiring, a hand-off, and how fairly a crowd is served."""

from __future__ import annotations

import math
import os
import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

from .. import Locks, WeblockError

LOOK_EVERY = 0.0005
"""Seconds between two looks at whether a waiter has joined the queue."""


class Times(NamedTuple):
    """The durations of one operation, in seconds."""

    all: list[float]

    @property
    def median(self) -> float:
        """The median."""
        return statistics.median(self.all)

    @property
    def p99(self) -> float:
        """The 99th percentile."""
        return sorted(self.all)[math.ceil(len(self.all) * 0.99) - 1]

    def histogram(self) -> Iterator[tuple[float, int]]:
        """Return how many were shorter than 1, 2, 4, ... units, and not shorter than the last."""
        counts: dict[int, int] = {}
        for each in self.all:
            bucket = math.ceil(math.log2(max(each, 1e-6) / 1e-6))
            counts[bucket] = counts.get(bucket, 0) + 1
        for bucket in range(min(counts), max(counts) + 1):
            yield 2.0**bucket * 1e-6, counts.get(bucket, 0)


def new_key() -> str:
    """Return a key that no application uses."""
    return f"weblock bench {os.urandom(6).hex()}"


def acquisitions(locks: Locks, seconds: float) -> tuple[Times, Times]:
    """Return how long it takes to acquire a free key, and to release it."""
    key, acquired, released = new_key(), Times([]), Times([])
    end = time.perf_counter() + seconds
    while not acquired.all or time.perf_counter() < end:
        asked = time.perf_counter()
        lease = locks.acquire(key)
        got = time.perf_counter()
        lease.release()
        acquired.all.append(got - asked)
        released.all.append(time.perf_counter() - got)
    return acquired, released


def hand_offs(locks: Locks, seconds: float, *, most: int = 1000) -> Times:
    """Return how long it takes from the call of ``release`` until the next waiter has the key."""
    key, times = new_key(), Times([])
    end = time.perf_counter() + seconds
    while not times.all or (time.perf_counter() < end and len(times.all) < most):
        times.all.append(_hand_off(locks, key))
    return times


def _hand_off(locks: Locks, key: str) -> float:
    got: list[float] = []

    def wait() -> None:
        # The measuring caller also gets the error of an engine that fails.
        with suppress(WeblockError), locks.hold(key, wait=None):
            got.append(time.perf_counter())

    waiter = threading.Thread(target=wait, daemon=True)
    with locks.hold(key) as lease:
        waiter.start()
        while waiter.is_alive() and not _is_waited_for(locks, key):
            time.sleep(LOOK_EVERY)
        released = time.perf_counter()
        lease.release()
    waiter.join()
    # Without a lock, as on noop://, nobody waits.
    return max(0.0, got[0] - released) if got else 0.0


def _is_waited_for(locks: Locks, key: str) -> bool:
    info = locks.inspect(key)
    return info is not None and bool(info.waiters)


def shares(locks: Locks, seconds: float, threads: int) -> list[int]:
    """Return how often each of several threads gets a key that all want, a millisecond at a time."""
    key, counts, over = new_key(), [0] * threads, threading.Event()

    def take_turns(number: int) -> None:
        while not over.is_set():
            with suppress(WeblockError), locks.hold(key, wait=None):
                counts[number] += 1
                time.sleep(0.001)

    crowd = [
        threading.Thread(target=take_turns, args=(number,), daemon=True)
        for number in range(threads)
    ]
    for each in crowd:
        each.start()
    time.sleep(seconds)
    over.set()
    for each in crowd:
        each.join()
    return counts


def fairness(counts: list[int]) -> float:
    """Return Jain's index: 1 where all got as much, and 1/n where one of n got all."""
    squares = sum(each * each for each in counts)
    return sum(counts) ** 2 / (len(counts) * squares) if squares else 1.0
