"""Keys that several processes hold at once."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing, suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.servers import a_valkey, fresh_url
from tests.servers.postgres import fresh_postgresql
from tests.servers.zookeeper import fresh_zookeeper
from tests.support.waiting import PATIENCE, now
from weblock import LeaseLost, Locks

from .processes import Child


class Turn(NamedTuple):
    """A time during which a caller held the key."""

    entered: float
    left: float
    limit: int
    fence: int


KINDS = [{}, {"limit": 2}, {"limit": 3}, {"shared": True}, {"shared": True}]

ROUNDS = 4


@pytest.mark.parametrize(
    "fresh", [partial(fresh_url, a_valkey()), fresh_postgresql, fresh_zookeeper]
)
def test_never_more_than_the_limits_of_all(fresh: Callable[..., str], tmp_path: Path) -> None:
    """Readers, writers and holders of two or three places, in several processes, are never too many."""
    url = fresh(timeout=PATIENCE)
    with ExitStack() as stack:
        children = [stack.enter_context(closing(Child(url).open())) for _ in range(2)]
        for child in children:
            child.begin(f"""
                from tests.engines.test_sharing import share
                share(locks, {str(tmp_path)!r}, {KINDS}, {ROUNDS})
            """)
        for child in children:
            child.outcome()
    turns = turns_in(tmp_path)
    assert len(turns) == 2 * len(KINDS) * ROUNDS
    assert len({turn.fence for turn in turns}) == len(turns)
    assert crowded(turns) == []
    writers = [turn.fence for turn in turns if turn.limit == 1]
    assert writers == sorted(writers)


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


def turns_in(folder: Path) -> list[Turn]:
    """The turns of all processes, in the order in which they began."""
    return sorted(
        Turn(*each) for path in folder.glob("*.json") for each in json.loads(path.read_text())
    )


def crowded(turns: Sequence[Turn]) -> list[Turn]:
    """The turns that began while there were as many as their limits, or that of one of them, allow."""
    found, at_once = [], list[Turn]()
    for turn in turns:
        at_once = [each for each in at_once if each.left > turn.entered]
        at_once.append(turn)
        if len(at_once) > min(each.limit for each in at_once):
            found.append(turn)
    return found
