"""One process of workers: each enters a section, looks whether it holds, and writes down what it saw.

Times are those of one clock that all processes of the machine share.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path
from typing import Any, Self

from weblock import AsyncLocks, Locks, WeblockError

KEY = "contended"
FLOWS = 4
LOOK_EVERY = 0.001 if "WEBLOCK_LONG" in os.environ else 0.005
"""Seconds between two looks at a lease: the shorter, the more often the key changes hands."""

MIXED: dict[str, Any] = {"kinds": [{}, {}, {"limit": 2}, {"limit": 3}, {"shared": True}]}
"""An option of workers that want the key exclusively at times, and share it at others."""

CALM_DOWN = 0.05
"""Seconds after an error."""


class Journal:
    """A file of JSON lines, each of which is written in one go."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def write(self, **facts: Any) -> None:
        os.write(self._file, json.dumps(facts).encode() + b"\n")


def now() -> int:
    """Nanoseconds."""
    return time.clock_gettime_ns(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class Watch:
    """What one worker sees of one lease: since when it has it, and until when it surely did."""

    def __init__(self, journal: Journal, lease: Any) -> None:
        self._journal = journal
        self._lease = lease
        self.began = self.held_at = now()
        # One that was stopped since it was granted may have lost it by now: then it never saw that it held.
        self._came_late = not lease.held
        event = "came late" if self._came_late else "began"
        journal.write(event=event, fence=lease.fence, at=self.began, limit=lease.limit)

    def look(self) -> bool:
        before = now()
        if held := self._lease.held:
            self.held_at = before
        return held

    def go_on(self, lease: Any) -> None:
        """Looks at the lease that continues this one, with its fence: nobody else held the key meanwhile."""
        assert lease.fence == self._lease.fence
        self._lease = lease

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._came_late:
            return
        facts = {"began": self.began, "held_at": self.held_at}
        lease = self._lease
        self._journal.write(event="ended", fence=lease.fence, limit=lease.limit, **facts)


def looks() -> int:
    return random.choice([1, 3, 10, 30])


def moves() -> bool:
    """Whether a lease is handed over in this section, and continued by who takes it over."""
    return random.random() < 0.2


Kinds = Sequence[dict[str, Any]]
"""Options, of which each section has some."""


def in_a_thread(locks: Locks, journal: Journal, stop: threading.Event, kinds: Kinds) -> None:
    while not stop.is_set():
        try:
            with (
                locks.hold(KEY, **random.choice(kinds)) as lease,
                ExitStack() as moved,
                Watch(journal, lease) as watch,
            ):
                for _ in range(looks()):
                    if not watch.look():
                        break
                    time.sleep(LOOK_EVERY)
                if moves():
                    watch.go_on(moved.enter_context(locks.take_over(lease.hand_over())))
                watch.look()
        except WeblockError as error:
            journal.write(
                event="error", error=type(error).__name__, at=now(), said=str(error)[:200]
            )
            time.sleep(CALM_DOWN)


async def in_a_task(
    locks: AsyncLocks, journal: Journal, stop: threading.Event, kinds: Kinds
) -> None:
    while not stop.is_set():
        try:
            options = random.choice(kinds)
            async with locks.hold(KEY, **options) as lease, AsyncExitStack() as moved:
                with Watch(journal, lease) as watch:
                    for _ in range(looks()):
                        if not watch.look():
                            break
                        await asyncio.sleep(LOOK_EVERY)
                    if moves():
                        taken = await locks.take_over(await lease.hand_over())
                        watch.go_on(await moved.enter_async_context(taken))
                    watch.look()
        except WeblockError as error:
            journal.write(
                event="error", error=type(error).__name__, at=now(), said=str(error)[:200]
            )
            await asyncio.sleep(CALM_DOWN)


def _end_loudly(failure: threading.ExceptHookArgs) -> None:
    """A thread that failed with anything but an error of weblock is a fault that was found."""
    threading.__excepthook__(failure)
    # kazoo's own thread ends when replies do not match its requests; the engine starts another client.
    if "zk_loop" not in getattr(failure.thread, "name", ""):
        os._exit(70)


def main() -> None:
    threading.excepthook = _end_loudly
    api, folder, given, *urls = sys.argv[1:]
    options = json.loads(given)
    kinds = options.pop("kinds", [{}])
    url = urls if len(urls) > 1 else urls[0]
    stop = threading.Event()
    journals = [Journal(Path(folder) / f"{os.getpid()}-{flow}.jsonl") for flow in range(FLOWS)]
    threading.Thread(target=lambda: (sys.stdin.read(), stop.set()), daemon=True).start()
    if api == "sync":
        with Locks.from_url(url, **options) as locks:
            threads = [
                threading.Thread(target=in_a_thread, args=(locks, journal, stop, kinds))
                for journal in journals
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
    else:
        asyncio.run(_tasks(url, options, journals, stop, kinds))


async def _tasks(
    url: str | list[str],
    options: Any,
    journals: list[Journal],
    stop: threading.Event,
    kinds: Kinds,
) -> None:
    async with AsyncLocks.from_url(url, **options) as locks:
        await asyncio.gather(*(in_a_task(locks, journal, stop, kinds) for journal in journals))


if __name__ == "__main__":
    main()
