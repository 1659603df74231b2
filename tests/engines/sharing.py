"""Threads of a process that hold one key together, each up to its limit, and note when."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.support.waiting import PATIENCE, now
from weblock import LeaseLost, Locks

from .seats import Turn


def share(locks: Locks, folder: str, kinds: Sequence[dict[str, Any]], rounds: int) -> None:
    """Hold a key so many times in each of several threads, one for each kind of options."""
    turns: list[Turn] = []
    threads = [
        threading.Thread(target=_take_turns, args=(locks, kind, rounds, turns)) for kind in kinds
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    Path(folder, f"{os.getpid()}.json").write_text(json.dumps(turns))


def _take_turns(locks: Locks, kind: dict[str, Any], rounds: int, turns: list[Turn]) -> None:
    done = 0
    while done < rounds:
        # On a machine that stood still, a lease may be lost before it is confirmed: that turn is none.
        with suppress(LeaseLost), locks.hold("turns", wait=None, ttl=PATIENCE, **kind) as lease:
            entered = now()
            time.sleep(0)
            left = now()
            if lease.held:
                turns.append(Turn(entered, left, lease.limit, lease.fence))
                done += 1
