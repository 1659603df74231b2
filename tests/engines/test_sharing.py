"""Keys that several processes hold at once, on the servers whose engines have no scripts."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from tests.servers.postgres import fresh_postgresql
from tests.servers.zookeeper import fresh_zookeeper
from tests.support.waiting import PATIENCE

from .processes import Child
from .seats import crowded, turns_in

KINDS = [{}, {"limit": 2}, {"limit": 3}, {"shared": True}, {"shared": True}]

ROUNDS = 4


@pytest.mark.parametrize("fresh", [fresh_postgresql, fresh_zookeeper])
def test_never_more_than_the_limits_of_all(fresh: Callable[..., str], tmp_path: Path) -> None:
    """Readers, writers and holders of two or three places, in several processes, are never too many."""
    url = fresh(timeout=PATIENCE)
    with ExitStack() as stack:
        children = [stack.enter_context(closing(Child(url).open())) for _ in range(2)]
        for child in children:
            child.begin(f"""
                from tests.engines.sharing import share
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
