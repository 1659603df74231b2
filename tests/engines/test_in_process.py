"""The engines whose truth is a dict of this process."""

from __future__ import annotations

import time
from collections.abc import ItemsView

import pytest

from tests.support.waiting import eventually
from weblock import ConfigurationError, Locks
from weblock._engines import _registry
from weblock._runtime.runtimes import BlockingRuntime, drive
from weblock.stores.memory import open_engine


@pytest.mark.parametrize("url", ["memory://pruned", "noop://pruned"])
def test_leases_that_just_end_are_forgotten(url: str) -> None:
    """Keys whose holders never released them cost no memory for long, and fences still increase."""
    with Locks.from_url(url) as locks:
        kept = locks._engine.states
        ended = [locks.acquire(f"stranger:{n}", ttl=0.1, renew=False) for n in range(1_000)]
        eventually(lambda: not locks.list())
        again = [locks.acquire(f"known:{n}", ttl=60) for n in range(len(kept) + 200)]
        assert len(kept) == len(again)
        assert min(lease.fence for lease in again) > max(lease.fence for lease in ended)


@pytest.mark.parametrize("url", ["memory://forgotten", "noop://forgotten"])
def test_what_was_forgotten_stays_so_if_the_clock_is_set_back(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The step is run again, whatever time it is then."""
    with Locks.from_url(url) as locks:
        locks.once("init", lambda: None)
        locks.forget("init")
        before = time.time() - 3600
        monkeypatch.setattr(time, "time", lambda: before)
        assert locks.once("init", lambda: None)


def test_marks_that_have_ended_are_dropped_now_and_then() -> None:
    """They do not pile up, and those that last are not searched for each new one."""
    engine = open_engine("memory://")
    store, searches = engine.connect(BlockingRuntime()), 0

    class Marks(dict[str, float]):
        def items(self) -> ItemsView[str, float]:
            nonlocal searches
            searches += 1
            return super().items()

    engine.marks = Marks()
    for number in range(2000):
        drive(store.mark(f"ended:{number}", 1e-9))
        drive(store.mark(f"lasting:{number}", None))
    assert searches < 20
    assert all(drive(store.marked(f"lasting:{number}")) for number in range(2000))
    assert sum(name.startswith("ended") for name in engine.marks) <= len(engine.marks) / 2


def test_what_dropped_locks_have_left_stays() -> None:
    """A lease that was handed over, and a mark, outlive the ``Locks`` until one is closed."""
    url = "memory://dropped"
    locks = Locks.from_url(url)
    token = locks.acquire("key", ttl=60).hand_over()
    locks.once("init", lambda: None)
    engine = locks._engine
    del locks
    eventually(lambda: engine not in _registry.in_use)
    with pytest.raises(ConfigurationError):
        Locks.from_url(url, ttl=-1)
    with Locks.from_url(url) as locks:
        assert not locks.try_acquire("key")
        assert not locks.once("init", lambda: None)
        locks.take_over(token).release()
    with Locks.from_url(url) as locks:
        assert locks.once("init", lambda: None)


def test_noop_asks_the_holder() -> None:
    """Without an engine that locks, a holder is asked too, and the next one is not."""
    with Locks.from_url("noop://") as locks:
        assert not locks.ask_release("key")
        for asked in (True, False):
            with locks.hold("key", ttl=60) as lease:
                assert not asked or locks.ask_release("key")
                lease.extend(0)
                assert lease.asked_to_release is asked
