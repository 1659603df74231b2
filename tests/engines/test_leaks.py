"""What stays behind of keys, event loops and ``Locks`` that come and go: nothing that grows."""

from __future__ import annotations

import asyncio
import gc
import itertools
import os
import subprocess
import sys
import weakref
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from tests.servers import fresh_memcached, fresh_quorum, fresh_url
from tests.servers.ports import free_port
from tests.servers.postgres import fresh_postgresql
from tests.servers.zookeeper import fresh_zookeeper
from tests.support.waiting import PATIENCE
from weblock import AsyncLocks, EngineUnavailable, Locks

TOP = Path(__file__).parents[2]

LONG = "WEBLOCK_LONG" in os.environ
ROUNDS = {"keys": 4_000, "loops": 200, "dropped": 200, "async_dropped": 200}
"""Keys are more than those that an engine remembers, which are 1,024 at most without ``WEBLOCK_LONG``."""

SWEEP = """
import asyncio, gc, os, re, sys, threading, time, warnings
from weblock import AsyncLocks, Locks
what, rounds, given = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
warnings.simplefilter("ignore", ResourceWarning)  # asyncio's own: of loops that are not closed.

def url(number):
    "The same place, as another engine."
    if given[0].startswith(("memory:", "file:")):
        return given[0].format(number % 8)
    spelled = [re.sub("(?<=[?&])timeout=[^&]*&?", "", each).rstrip("&") for each in given]
    spelled = [f"{each}&timeout={5 + number / 1e6:f}" for each in spelled]
    return spelled if len(spelled) > 1 else spelled[0]

def on_a_loop(work):
    "Runs it on a loop that nobody closes."
    asyncio.new_event_loop().run_until_complete(work)

async def hold(locks, key):
    async with locks.hold(key, ttl=60):
        pass

def keys(number):
    with locks.hold(f"key {number}", ttl=60):
        pass

def loops(number):
    on_a_loop(hold(async_locks, "key"))

def dropped(number):
    with Locks.from_url(url(number)).hold("key", ttl=60) as lease:
        lease.check()

def async_dropped(number):
    on_a_loop(hold(AsyncLocks.from_url(url(number)), "key"))

def measured():
    gc.collect()
    return sys.getallocatedblocks(), len(os.listdir("/dev/fd")), threading.active_count()

def settled():
    "Returns what there is when it has not become less for a while: threads may be about to end."
    least, since = measured(), time.monotonic()
    while time.monotonic() < since + 0.5:
        time.sleep(0.05)
        found = measured()
        if found[1:] < least[1:]:
            since = time.monotonic()
        least = min(least, found, key=lambda each: each[1:])
    return found

locks, async_locks = Locks.from_url(url(0)), AsyncLocks.from_url(url(0))
work = globals()[what]
for number in range(1, 1 + rounds // 2):
    work(number)
before = settled()
for number in range(1 + rounds // 2, 1 + rounds):
    work(number)
after = settled()
# Of each round, no object stays, beyond what is remembered of some, and no descriptor or thread of any.
most = (before[0] + 250 + rounds // 8, before[1] + 3, before[2] + 1)
assert all(one <= other for one, other in zip(after, most)), (before, after, most)
print("well")
"""

URLS: dict[str, Callable[[Path], list[str]]] = {
    "memory": lambda _: ["memory://{0}"],
    "file": lambda folder: [f"file://{folder}/{{0}}?allow_container=true"],
    "redis": lambda _: [fresh_url()],
    "quorum": lambda _: fresh_quorum(3),
    "memcached": lambda _: [fresh_memcached()],
    "postgresql": lambda _: [fresh_postgresql()],
    "zookeeper": lambda _: [fresh_zookeeper()],
}
WHATS = ("keys", "loops", "dropped", "async_dropped")
CHEAP = [
    *((engine, what) for engine in ("file", "redis") for what in WHATS),
    ("memory", "dropped"),
    ("memcached", "loops"),
]


class Thing:
    """What a caller's frame refers to."""


def test_a_failed_acquire_keeps_nothing_of_its_caller() -> None:
    """No cycle of an error and a frame: a lease in a caller's frame would be renewed until the collector runs."""
    locks, seen = Locks.from_url(f"memcached://127.0.0.1:{free_port()}"), []

    def view() -> None:
        thing = Thing()
        seen.append(weakref.ref(thing))
        locks.acquire("seat", wait=0)

    gc.disable()
    try:
        with suppress(EngineUnavailable):
            view()
        assert seen[0]() is None
    finally:
        gc.enable()
        locks.close()


async def test_a_failed_acquire_keeps_nothing_of_its_task() -> None:
    """The same in asyncio, where a thread asks the engine and passes its error on."""
    locks, seen = AsyncLocks.from_url(f"memcached://127.0.0.1:{free_port()}"), []

    async def view() -> None:
        thing = Thing()
        seen.append(weakref.ref(thing))
        await locks.acquire("seat", wait=0)

    gc.disable()
    try:
        with suppress(EngineUnavailable):
            await view()
        # The step of the task, and the thread, have the error until they end.
        async with asyncio.timeout(PATIENCE):
            while seen[0]():  # noqa: ASYNC110 - there is no event for it
                await asyncio.sleep(0.001)
    finally:
        gc.enable()
        await locks.close()


@pytest.mark.parametrize(
    ("engine", "what"), list(itertools.product(URLS, WHATS)) if LONG else CHEAP
)
def test_nothing_grows_with_the_rounds(engine: str, what: str, tmp_path: Path) -> None:
    """Many keys, loops that are not closed, and ``Locks`` that are dropped, leave nothing behind.

    The second half of the rounds adds no memory, descriptor or thread to what the first half left.
    """
    rounds = 100_000 if LONG else ROUNDS[what]
    done = subprocess.run(
        [sys.executable, "-c", SWEEP, what, str(rounds), *URLS[engine](tmp_path)],
        cwd=TOP,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "well\n"), done.stderr
