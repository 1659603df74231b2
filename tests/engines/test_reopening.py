"""An engine that is opened again: what the collector does meanwhile does not hang its thread."""

from __future__ import annotations

import random
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from redis.exceptions import ConnectionError  # noqa: A004 - redis-py's

from tests.support.interrupts import Interrupter
from tests.support.waiting import PATIENCE, eventually
from weblock import ConfigurationError, EngineUnavailable, Locks
from weblock._engines import _registry, registering
from weblock.stores.file import FileEngine
from weblock.stores.redis.asking import Lookup
from weblock.stores.zookeeper import open_engine as open_zookeeper

LONG = 3600.0
"""Seconds that no test waits for."""

TRIED = 20
"""Of some hundreds of lines with files. Nearly all are inside of the mutex, so that each would find it."""


def files(folder: Path) -> Iterator[tuple[Any, Callable[[], object]]]:
    """An engine whose directory is left, and what opens it again."""
    engine = FileEngine(str(folder / "locks"))
    yield engine, partial(engine.home_at, 0.0)
    engine.close()


class Session:
    """What stands in for ZooKeeper's client, which has threads of its own."""

    def __init__(self, _settings: object) -> None:
        self.ended = False

    def close(self) -> None:
        """End it."""

    begin_to_close = close


def zookeeper(_folder: Path) -> Iterator[tuple[Any, Callable[[], object]]]:
    """An engine whose session has failed."""
    engine = open_zookeeper("zookeeper://127.0.0.1:1")
    yield engine, engine.session
    engine.close()


def servers(_folder: Path) -> Iterator[tuple[Any, Callable[[], object]]]:
    """Who knows where Redis's servers are, and asks them again."""
    known = Lookup(lambda: True, every=LONG, stale=LONG)

    def ask() -> bool:
        try:
            known.refresh()
        except ConnectionError as refused:
            raise EngineUnavailable("redis", str(refused)) from refused
        return known.ready()

    yield known, ask


def shut(engine: Any) -> None:
    """What makes the engine open again: what it has open is gone."""
    if isinstance(engine, Lookup):
        engine.doubt()
        engine._asked_at = engine._again_at = 0.0
    elif isinstance(engine, FileEngine):
        if engine.home:
            engine.leave(engine.home)
    else:
        engine.session().ended = True


@pytest.mark.parametrize("engines", [files, zookeeper, servers])
def test_a_lease_that_is_collected_while_an_engine_opens_does_not_hang_it(
    tmp_path: Path, engines: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At any line of it, a release in the same thread is refused or served; the keeper tries again."""
    monkeypatch.setattr("weblock.stores.zookeeper.session.Session", Session)
    seed = random.randrange(2**32)
    for engine, ask in engines(tmp_path):
        whole = Interrupter(None, bool)
        shut(engine)
        whole.run(ask)
        asked = 0

        def release(ask: Callable[[], object] = ask) -> None:
            nonlocal asked
            asked += 1
            with suppress(EngineUnavailable):
                ask()

        tried = min(TRIED, whole.lines)
        for number in random.Random(seed).sample(range(1, whole.lines + 1), tried):
            shut(engine)
            interrupter = Interrupter(number, release)
            thread = threading.Thread(target=interrupter.run, args=(ask,), daemon=True)
            thread.start()
            thread.join(PATIENCE)
            assert not thread.is_alive(), f"it waits for itself in {interrupter.where}; seed {seed}"
            assert ask()
        assert asked > tried / 2


class Collecting:
    """A mutex at whose first acquisition the collector runs, before the next line of its thread."""

    def __init__(self, mutex: Any, collect: Callable[[], object]) -> None:
        self._mutex = mutex
        self._collect: Callable[[], object] | None = collect

    def __enter__(self) -> None:
        self._mutex.acquire()
        collect, self._collect = self._collect, None
        if collect:
            with suppress(EngineUnavailable):
                collect()

    def __exit__(self, *exc_info: object) -> None:
        self._mutex.release()

    def locked(self) -> bool:
        """Whether anybody has it: its own thread, here."""
        return True


@pytest.mark.parametrize("engines", [files, zookeeper])
@pytest.mark.parametrize("how", ["open", "close"])
def test_a_lease_that_is_collected_when_the_mutex_was_just_acquired(
    tmp_path: Path, engines: Any, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing has been noted of the thread then, neither to open the engine nor to close it."""
    monkeypatch.setattr("weblock.stores.zookeeper.session.Session", Session)
    for engine, ask in engines(tmp_path):
        entrance = engine._entrance
        entrance.mutex = Collecting(entrance.mutex, engine._open)
        work = ask if how == "open" else engine.close
        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        thread.join(PATIENCE)
        hangs = thread.is_alive()
        if hangs:  # Nor would the end of the test get in.
            engine.after_fork()
        assert not hangs


def test_locks_that_are_collected_while_others_on_their_engine_open(tmp_path: Path) -> None:
    """At any line of it, a generator may end that closes the last ones: the new ones do not hang, and lock."""
    url = f"file://{tmp_path / 'locks'}"

    def opened(at: int | None) -> Interrupter:
        last, new = Locks.from_url(url), list[Locks]()
        interrupter = Interrupter(at, last.close)
        work = partial(interrupter.run, lambda: new.append(Locks.from_url(url)))
        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        thread.join(PATIENCE)
        assert not thread.is_alive(), f"it waits for itself in {interrupter.where}"
        last.close()
        with new[0] as locks:
            locks.acquire("key").release()
        assert locks._engine not in _registry.by_url.values()
        return interrupter

    for number in range(1, opened(None).lines + 1):
        opened(number)
    assert number > TRIED


def test_closing_that_is_interrupted_can_be_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At any line before the engine itself closes: others can lock, and a second call closes it."""
    url = f"file://{tmp_path / 'locks'}"
    lines = 0

    def use() -> None:
        with Locks.from_url(url) as others:
            others.acquire("key", wait=PATIENCE / 2).release()

    def closed(at: int | None) -> None:
        locks = Locks.from_url(url)
        engine = locks._engine
        locks.acquire("key").release()
        interrupter = Interrupter(at)
        ended: list[int] = []

        def end(close: Callable[[], None] = engine.close) -> None:
            ended.append(interrupter.lines)
            interrupter.at = None
            close()

        monkeypatch.setattr(engine, "close", end)
        if interrupter.run(locks.close):
            user = threading.Thread(target=use, daemon=True)
            user.start()
            user.join(PATIENCE)
            assert not user.is_alive(), f"it was interrupted in {interrupter.where}"
        locks.close()
        assert ended
        assert engine not in {*_registry.by_url.values(), *_registry.in_use}
        nonlocal lines
        lines = lines or ended[0]

    closed(None)
    assert lines > TRIED
    for number in range(1, lines + 1):
        closed(number)


def test_locks_that_are_collected_where_engines_are_opened_wait_for_nobody(tmp_path: Path) -> None:
    """Another thread may be opening these locks again at that time: neither waits for the other."""
    locks = Locks.from_url(f"file://{tmp_path / 'locks'}")
    locks._rest()
    inside, collects = threading.Event(), threading.Event()

    def collect() -> None:
        with registering():
            inside.set()
            collects.wait(PATIENCE)
            locks.close()

    def use() -> None:
        with suppress(ConfigurationError):  # It comes after the end.
            locks.acquire("key")

    collector = threading.Thread(target=collect, daemon=True)
    collector.start()
    assert inside.wait(PATIENCE)
    user = threading.Thread(target=use, daemon=True)
    user.start()
    eventually(lambda: is_in(user, "_ensure_open"))
    collects.set()
    for thread in (collector, user):
        thread.join(PATIENCE)
        assert not thread.is_alive()


def is_in(thread: threading.Thread, function: str) -> bool:
    """Whether the thread runs a function of that name, or what it calls."""
    frame = sys._current_frames().get(thread.ident or 0)
    while frame and frame.f_code.co_name != function:
        frame = frame.f_back
    return frame is not None
