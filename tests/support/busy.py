"""Others who hold and wait, in threads, while a test looks on."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from weblock import LeaseLost, Locks

from .waiting import PATIENCE, eventually


@contextmanager
def busy(locks: Locks, key: str, holder: str, *waiters: str) -> Iterator[None]:
    """Somebody holds the key, and others wait for it in that order, until the block ends."""
    done = threading.Event()

    def hold(label: str) -> None:
        try:
            with locks.hold(key, label=label, wait=PATIENCE):
                done.wait(PATIENCE)
        except LeaseLost:
            pass  # It was taken away, as the test has it.

    threads = []
    try:
        for place, label in enumerate([holder, *waiters]):
            threads.append(threading.Thread(target=hold, args=(label,)))
            threads[-1].start()
            eventually(lambda place=place: _in_line(locks, key) > place)  # type: ignore[misc]
        yield
    finally:
        done.set()
        for thread in threads:
            thread.join()


def _in_line(locks: Locks, key: str) -> int:
    info = locks.inspect(key)
    return (info.holder is not None) + len(info.waiters) if info else 0
