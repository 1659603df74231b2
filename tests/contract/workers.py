"""The other processes of the contract suite: ``python -m tests.contract.workers ROLE ...``.

They speak JSON, one value a line: orders come in by stdin, outcomes go out by stdout.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import os
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.support.forks import fork_in_c
from tests.support.renewals import renewed
from tests.support.waiting import PATIENCE
from weblock import AsyncLocks, Locks, WeblockError
from weblock._platform import forks
from weblock._runtime.runtimes import now

from .apis import APIS
from .history import Counter, Journal


def main() -> None:
    role, *args = sys.argv[1:]
    words = [json.loads(each) if each.startswith("[") else each for each in args]
    {"puppet": puppet, "sections": sections}[role](*words)


def say(value: Any) -> None:
    os.write(1, json.dumps(value).encode() + b"\n")


def puppet(api: str, url: str, options: str) -> None:
    """Does as it is told, with one actor and at most one lease at a time."""
    strings = Strings(api, url, json.loads(options))
    say("ready")
    for line in sys.stdin:
        verb, args, kwargs = json.loads(line)
        say(strings.pull(verb, *args, **kwargs))


class Strings:
    """What a puppet can do. Every outcome is a dict: of facts, or of an error and its facts."""

    def __init__(self, api: str, url: str, options: dict[str, Any]) -> None:
        self.api = APIS[api]()
        self.actor = self.api.actor()
        self._own = _sockets()
        self.locks = self.api.open(url, **options)
        self.lease: Any = None

    def pull(self, verb: str, *args: Any, **kwargs: Any) -> dict[str, Any]:
        try:
            return getattr(self, verb)(*args, **kwargs)
        except WeblockError as error:
            return {"error": type(error).__name__, "reason": getattr(error, "reason", None)}

    def acquire(self, *keys: str, **options: Any) -> dict[str, Any]:
        self.lease = self.actor.do(self.locks.acquire, *keys, **options)
        return {"fence": self.lease.fence, "at": now()}

    def release(self) -> dict[str, Any]:
        self.actor.do(self.lease.release)
        return {"at": now()}

    def renewed(self) -> dict[str, Any]:
        """Returns when its keeper has renewed the lease, which it does now."""
        renewed(self.locks, self.lease)
        return {}

    def hand_over(self, **options: Any) -> dict[str, Any]:
        return {"token": self.actor.do(self.lease.hand_over, **options)}

    def take_over(self, token: str, **options: Any) -> dict[str, Any]:
        self.lease = self.actor.do(self.locks.take_over, token, **options)
        return {"fence": self.lease.fence}

    def check(self) -> dict[str, Any]:
        self.lease.check()
        return {"at": now()}

    def once(self, key: str, journal: str, *, hang: bool = False, **options: Any) -> dict[str, Any]:
        """Runs a step that notes that it ran, and perhaps never ends."""

        def step() -> None:
            with Path(journal).open("a") as lines:
                lines.write(f"{os.getpid()}\n")
            if hang:
                say("running")
                time.sleep(PATIENCE)

        return {"ran": self.actor.do(self.locks.once, key, self.api.work(step), **options)}

    def run(self, key: str, **options: Any) -> dict[str, Any]:
        self.actor.do(self.locks.run, key, self.api.work(list), **options)
        return {}

    def lead(self, key: str) -> dict[str, Any]:
        def body(term: Any) -> None:
            say({"fence": term.fence})
            time.sleep(PATIENCE)

        self.actor.do(self.api.lead, self.locks, key, self.api.work(body), block=True)
        return {}

    def work_until_lost(self) -> dict[str, Any]:
        """Works on while the lease holds; says when it last was sure of it, and how it ended."""
        last = 0.0
        say("working")
        try:
            while True:
                asked = now()
                self.lease.check()
                last = asked
        except WeblockError as error:
            return {"last": last, "error": type(error).__name__, "reason": error.reason}

    def sockets(self) -> dict[str, Any]:
        """The sockets of this process, and the pipes, that its locks have opened."""
        return {"opened": sorted(_sockets() - self._own)}

    def fork(self, *, announced: bool = True, held: bool = False) -> dict[str, Any]:
        """Forks a child, which waits to be told what to do; Python's hooks run if it is announced.

        ``held``: another thread is inside of everything that is free.
        """
        orders, self.orders = os.pipe()
        self.outcomes, outcomes = os.pipe()
        with inside_everything() if held else contextlib.nullcontext():
            pid = os.fork() if announced else fork_in_c()
        if pid == 0:
            try:
                self._serve_as_child(orders, outcomes)
            finally:
                os._exit(0)
        os.close(orders)
        os.close(outcomes)
        return {"pid": pid}

    def child(self, verb: str, *args: Any, **kwargs: Any) -> dict[str, Any]:
        os.write(self.orders, json.dumps([verb, args, kwargs]).encode() + b"\n")
        return json.loads(os.read(self.outcomes, 65536))

    def end_child(self) -> dict[str, Any]:
        os.close(self.orders)
        os.wait()
        return {}

    def _serve_as_child(self, orders: int, outcomes: int) -> None:
        os.close(self.orders)
        for _ in range(
            8
        ):  # They get the identifiers of the parent's threads, which own mutexes here.
            threading.Thread(target=threading.Event().wait, daemon=True).start()
        self.api = APIS[self.api.name]()
        self.actor = self.api.actor()
        with open(orders, encoding="utf-8") as lines:
            for line in lines:
                verb, args, kwargs = json.loads(line)
                os.write(outcomes, json.dumps(self.pull(verb, *args, **kwargs)).encode())


@contextlib.contextmanager
def inside_everything() -> Iterator[None]:
    """Another thread has all mutexes of weblock's objects that were free; in a fork of this process, for ever."""
    pid, held, over = os.getpid(), threading.Event(), threading.Event()

    def hold() -> None:
        mutexes = [each for each in _mutexes() if each.acquire(blocking=False)]
        held.set()
        over.wait()
        for each in mutexes:
            each.release()

    thread = threading.Thread(target=hold, daemon=True)
    thread.start()
    held.wait()
    try:
        yield
    finally:
        if os.getpid() == pid:
            over.set()
            thread.join()


def _mutexes() -> Iterator[Any]:
    """The mutexes that objects of weblock have, also as a part of an event or condition."""
    ours = [each for each in gc.get_objects() if str(type(each).__module__).startswith("weblock.")]
    for each in (*ours, *forks._resetting.values()):  # Those that are frozen are no garbage's.
        parts = gc.get_referents(each)
        for part in (*parts, *(value for d in parts if type(d) is dict for value in d.values())):
            condition = getattr(part, "_cond", part)
            mutex = getattr(condition, "_lock", condition)
            if type(mutex).__module__ == "_thread" and hasattr(mutex, "acquire"):
                yield mutex


def _sockets() -> set[str]:
    """The names that the kernel gives to the sockets of this process, in copies of them too, and to its pipe."""
    names = set()
    for each in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # That of the directory itself.
            names.add(str(each.readlink()))
    return {name for name in names if name.startswith("socket:") or name.endswith(".bell")}


def sections(url: str, folder: str, flows: str, rounds: str) -> None:
    """Runs ``rounds`` critical sections in each of ``flows`` threads and as many tasks."""
    work = Work(Path(folder), int(rounds))
    with Locks.from_url(url, wait=None) as locks:
        threads = [
            threading.Thread(target=work.in_thread, args=(locks,), daemon=True)
            for _ in range(int(flows))
        ]
        say("ready")
        sys.stdin.readline()
        for thread in threads:
            thread.start()
        asyncio.run(work.in_tasks(url, int(flows)))
        for thread in threads:
            thread.join()
    say({"done": work.done})


class Work:
    """Sections of one key that add to a counter in a file, and note when they ran."""

    def __init__(self, folder: Path, rounds: int) -> None:
        self._journal = Journal(folder / f"{os.getpid()}.journal")
        self._counter = Counter(folder / "counter")
        self._rounds = rounds
        self.done = 0

    def in_thread(self, locks: Locks) -> None:
        for _ in range(self._rounds):
            with locks.hold("one key") as lease:
                for _ in self._section(lease.fence):
                    time.sleep(0)

    async def in_tasks(self, url: str, count: int) -> None:
        locks = AsyncLocks.from_url(url, wait=None)
        async with locks, asyncio.TaskGroup() as group:
            for _ in range(count):
                group.create_task(self._in_task(locks))

    async def _in_task(self, locks: AsyncLocks) -> None:
        for _ in range(self._rounds):
            async with locks.hold("one key") as lease:
                for _ in self._section(lease.fence):
                    await asyncio.sleep(0)

    def _section(self, fence: int) -> Iterator[None]:
        """Lets others run between the read and the write: that is where an update gets lost."""
        entered = now()
        value = self._counter.read()
        yield
        self._counter.write(value + 1)
        self.done += 1
        self._journal.note(fence, entered, now())


if __name__ == "__main__":
    main()
