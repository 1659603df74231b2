"""The other processes of the contract suite: ``python -m tests.contract.workers ROLE ...``.

They speak JSON, one value a line: orders come in by stdin, outcomes go out by stdout.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from weblock import AsyncLocks, Locks, WeblockError
from weblock._runtime.clock import now

from .faces import FACES
from .history import Counter, Journal


def main() -> None:
    role, *args = sys.argv[1:]
    {"puppet": puppet, "sections": sections}[role](*args)


def say(value: Any) -> None:
    os.write(1, json.dumps(value).encode() + b"\n")


def puppet(face: str, url: str, options: str) -> None:
    """Does as it is told, with one actor and at most one lease at a time."""
    strings = Strings(face, url, json.loads(options))
    say("ready")
    for line in sys.stdin:
        verb, args, kwargs = json.loads(line)
        say(strings.pull(verb, *args, **kwargs))


class Strings:
    """What a puppet can do. Every outcome is a dict: of facts, or of an error and its facts."""

    def __init__(self, face: str, url: str, options: dict[str, Any]) -> None:
        self.face = FACES[face]()
        self.locks = self.face.open(url, **options)
        self.actor = self.face.actor()
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

    def check(self) -> dict[str, Any]:
        self.lease.check()
        return {"at": now()}

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

    def fork(self, own_key: str) -> dict[str, Any]:
        """What a child finds that is forked in the middle of the section, and then the parent."""
        reader, writer = os.pipe()
        if (pid := os.fork()) == 0:
            try:
                found = json.dumps(self._in_child(own_key)).encode()
            except BaseException as error:  # noqa: BLE001 - a child must not go on as its parent
                found = json.dumps({"failed": repr(error)}).encode()
            os.write(writer, found)
            os._exit(0)
        os.close(writer)
        with open(reader, "rb") as pipe:
            child = json.loads(pipe.read())
        os.waitpid(pid, 0)
        return {"child": child, "parent": self.pull("check")}

    def _in_child(self, own_key: str) -> dict[str, Any]:
        self.face = FACES[self.face.name]()
        self.actor = self.face.actor()
        return {
            "check": self.pull("check"),
            "release": self.pull("release"),
            "own": self.pull("acquire", own_key),
            "own release": self.pull("release"),
        }


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
        async with AsyncLocks.from_url(url, wait=None) as locks:
            async with asyncio.TaskGroup() as group:
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
