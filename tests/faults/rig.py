"""Workers, and what happens to them."""

from __future__ import annotations

import itertools
import json
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from tests.support.nursery import Forked, nursery_of_engines
from tests.support.waiting import PATIENCE, eventually
from weblock import Locks
from weblock.stores.quorum import TIMEOUT

from .history import History, Span, out_of_order, overlaps, read, unexcused
from .worker import KEY, now

TTL = 1.0
SOON: dict[str, Any] = {"timeout": 1, "connect_timeout": 1}
"""Options of clients that notice soon that a server hangs."""

OF_A_QUORUM: dict[str, Any] = {"timeout": TIMEOUT, "connect_timeout": TIMEOUT}
"""The same, of a server of several, of which one that hangs is no outage."""

DURABLE: dict[str, Any] = {"appendonly": "yes", "appendfsync": "always"}
"""How a server is set up that keeps its data over a restart."""


class Workers:
    """Four processes of four workers each: threads in two of them, tasks in the others."""

    def __init__(self, url: str | Sequence[str], **options: Any) -> None:
        self._urls = [url] if isinstance(url, str) else list(url)
        self._url = url
        self._options = {"ttl": TTL, "wait": 5.0, **options}
        self._folder = tempfile.TemporaryDirectory(prefix="weblock-faults-")
        self._apis = itertools.cycle(["sync", "asyncio"])
        self._losses: list[Span] = []
        self.processes = [self._new() for _ in range(4)]
        self.worst = 0.0
        self._begun = 0
        self._read: Counter[Path] = Counter()
        self.go_on()

    def history(self) -> History:
        return read(Path(self._folder.name))

    def go_on(self, sections: int = 10) -> float:
        """Waits until there have been so many more sections; seconds until the first."""
        started, before = time.monotonic(), self._sections()
        first: float | None = None
        while (done := self._sections()) < before + sections:
            waited = time.monotonic() - started
            assert waited < PATIENCE, (
                f"nobody got the key for {PATIENCE:g} s: {self.history().errors}"
            )
            assert all(process.poll() is None for process in self.processes), "a worker has ended"
            if done > before and first is None:
                first = waited
            time.sleep(0.05)
        first = time.monotonic() - started if first is None else first
        self.worst = max(self.worst, first)
        return first

    def begun(self) -> list[int]:
        """The processes that have imported what they need, and been inside."""
        folder = Path(self._folder.name)
        paths = {pid: folder.glob(f"{pid}-*.jsonl") for pid in (p.pid for p in self.processes)}
        return [pid for pid, found in paths.items() if any(path.stat().st_size for path in found)]

    def kill_one(self) -> None:
        """Kills a process, and starts another in its place."""
        self.processes.pop(0).close()
        self.processes.append(self._new())

    def stop_one(self, lasting: float) -> None:
        victim = self.processes[0]
        victim.send_signal(signal.SIGSTOP)
        time.sleep(lasting)
        victim.send_signal(signal.SIGCONT)

    @contextmanager
    def losing_leases(self) -> Iterator[None]:
        """Takes note that what happens meanwhile voids leases, as the engine says that it may.

        Holders are told when they renew, and until then they and the next ones are both at work.
        """
        began = now()
        yield
        self._losses.append(Span(began, now() + round(TTL * 1e9)))

    def check(self) -> History:
        """Ends them. Nobody overlapped, every fence was higher, and nothing is left."""
        self.go_on()
        for process in self.processes:
            process.stdin.close()
        eventually(lambda: None not in [process.poll() for process in self.processes])
        assert [process.poll() for process in self.processes] == [0] * len(self.processes)
        history = self.history()
        overlapped = unexcused(overlaps(history.holds), self._losses)
        assert not overlapped, f"they overlapped: {overlapped[:3]}"
        fences = out_of_order(history.fences)
        fences = [each for each in fences if not any(each[0] in loss for loss in self._losses)]
        assert not fences, f"fences: {fences[:3]}"
        with Locks.from_url(self._url, ttl=TTL) as locks:
            give_up_at = time.monotonic() + PATIENCE
            while locks.inspect(KEY) is not None:
                assert time.monotonic() < give_up_at, f"left behind: {locks.inspect(KEY)}"
                time.sleep(0.05)
        return history

    def _sections(self) -> int:
        """The number so far. Only what was written since the last look is read: it is looked often."""
        for path in Path(self._folder.name).glob("*.jsonl"):
            with path.open("rb") as journal:
                journal.seek(self._read[path])
                news = journal.read()
            self._read[path] += len(news)
            self._begun += news.count(b'"event": "began"')
        return self._begun

    def _new(self) -> Forked:
        words = [next(self._apis), self._folder.name, json.dumps(self._options), *self._urls]
        return Forked(nursery_of_engines(), "tests.faults.worker", *words)

    def close(self) -> None:
        for process in self.processes:
            process.close()
        self._folder.cleanup()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()
