"""An engine that is opened again: what the collector does meanwhile does not hang its thread."""

from __future__ import annotations

import asyncio
import gc
import random
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from redis.exceptions import ConnectionError  # noqa: A004 - redis-py's

from tests.support.collecting import collect
from tests.support.interrupts import PACKAGE, Interrupter
from tests.support.waiting import PATIENCE, eventually
from weblock import (
    AsyncLocks,
    ConfigurationError,
    EngineUnavailable,
    Lease,
    LeaseLost,
    Locks,
)
from weblock._engines import _registry, registering
from weblock.stores.file import FileEngine
from weblock.stores.redis.asking import Lookup

LONG = 3600.0
"""Seconds that no test waits for."""

TRIED = 20
"""Of some hundreds of lines with files. Nearly all are inside of the mutex, so that each would find it."""


def test_a_lease_that_is_collected_while_its_engine_opens_does_not_hang_it(tmp_path: Path) -> None:
    """At any line of it: another thread releases the lease, and the engine is open in the end."""
    seed = random.randrange(2**32)
    with Locks(FileEngine(str(tmp_path / "locks"))) as locks:
        engine = locks._engine
        assert isinstance(engine, FileEngine)

        def shut() -> None:
            if engine.home:
                engine.leave(engine.home)

        whole = Interrupter(None, bool)
        shut()
        whole.run(engine.open)
        for number in random.Random(seed).sample(range(1, whole.lines + 1), TRIED):
            collected = locks.acquire("key")
            shut()
            interrupter = Interrupter(number, partial(collect, collected.release))
            work = partial(interrupter.run, engine.open)
            thread = threading.Thread(target=work, daemon=True)
            thread.start()
            thread.join(PATIENCE)
            assert not thread.is_alive(), f"it waits for itself in {interrupter.where}; seed {seed}"
            if not interrupter.where:  # It took fewer lines this time.
                with suppress(LeaseLost):
                    collected.release()
            eventually(lambda lease=collected: not lease.held)
            assert engine.open()


def test_a_signal_handler_that_locks_while_its_thread_opens_the_engine(tmp_path: Path) -> None:
    """At any line of it, the handler gets a lease that excludes others, or an error, and nothing hangs."""
    path, seed = str(tmp_path / "locks"), random.randrange(2**32)
    with Locks(FileEngine(path)) as locks, Locks(FileEngine(path)) as others:
        engine = locks._engine
        assert isinstance(engine, FileEngine)
        leases: list[Lease] = []

        def shut() -> None:
            if engine.home:
                engine.leave(engine.home)

        def handler() -> None:
            with suppress(EngineUnavailable):
                leases.append(locks.acquire("key", wait=0))

        whole = Interrupter(None, bool)
        shut()
        whole.run(engine.open)
        for number in random.Random(seed).sample(range(1, whole.lines + 1), TRIED):
            shut()
            interrupter = Interrupter(number, handler)
            work = partial(interrupter.run, engine.open)
            thread = threading.Thread(target=work, daemon=True)
            thread.start()
            thread.join(PATIENCE)
            where = f"{interrupter.where}; seed {seed}"
            assert not thread.is_alive(), f"it waits for itself in {where}"
            if leases:
                assert others.try_acquire("key") is None, f"two have the key, since {where}"
                leases.pop().release()
            locks.acquire("key", wait=0).release()


def test_a_release_while_its_thread_looks_for_the_servers_is_refused() -> None:
    """At any line of it, a signal handler may release a lease, for which its thread does not wait."""
    known = Lookup(lambda: True, every=LONG, stale=LONG)

    def ask() -> bool:
        known.refresh()
        return known.ready()

    def shut() -> None:
        known.doubt()
        known._asked_at = known._again_at = 0.0

    def release() -> None:
        with suppress(ConnectionError):
            ask()

    whole = Interrupter(None, bool)
    shut()
    whole.run(ask)
    for number in range(1, whole.lines + 1):
        shut()
        interrupter = Interrupter(number, release)
        thread = threading.Thread(target=interrupter.run, args=(ask,), daemon=True)
        thread.start()
        thread.join(PATIENCE)
        assert not thread.is_alive(), f"it waits for itself in {interrupter.where}"
        assert ask()


async def test_a_lease_of_a_coroutine_that_is_collected_is_released() -> None:
    """A coroutine that nobody finishes can wait for nothing in its ``async with`` blocks."""

    async def unfinished(locks: AsyncLocks) -> None:
        async with locks.hold("key"):
            await asyncio.Event().wait()

    async with AsyncLocks.from_url("memory://coroutine") as locks:
        coroutine = unfinished(locks)
        coroutine.send(None)
        assert await locks.inspect("key")
        collect(coroutine.close)
        async with locks.hold("key", wait=PATIENCE):
            pass


def test_locks_that_are_collected_while_others_on_their_engine_open(tmp_path: Path) -> None:
    """At any line of it, a generator may end that closes the last ones: the new ones do not hang, and lock."""
    url = f"file://{tmp_path / 'locks'}"

    def opened(at: int | None) -> Interrupter:
        last, new = Locks.from_url(url), list[Locks]()
        interrupter = Interrupter(at, partial(collect, last.close))
        work = partial(interrupter.run, lambda: new.append(Locks.from_url(url)))
        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        thread.join(PATIENCE)
        assert not thread.is_alive(), f"it waits for itself in {interrupter.where}"
        last.close()
        with new[0] as locks:
            locks.acquire("key").release()
        eventually(lambda: locks._engine not in _registry.by_url.values())
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
    locks._suspend()
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


def test_no_python_of_ours_runs_when_the_collector_begins_or_ends() -> None:
    """Python would drop an exception that a signal handler raised in it, such as ``KeyboardInterrupt``."""
    gc.collect()
    called: list[str] = []
    sys.setprofile(lambda frame, _event, _of: called.append(frame.f_code.co_filename))
    try:
        gc.collect()
    finally:
        sys.setprofile(None)
    assert not [each for each in called if each.startswith(PACKAGE)]


def test_the_collector_may_run_between_any_two_instructions_of_weblock() -> None:
    """Locks are opened, used and closed while the collector runs at each instruction of the package."""

    def trace(frame: FrameType, event: str, arg: object) -> Any:
        if not frame.f_code.co_filename.startswith(PACKAGE):
            return None
        frame.f_trace_opcodes = True
        gc.collect(0)
        return trace

    sys.settrace(trace)
    try:
        locks = Locks.from_url("memory://collected")
        with locks.hold("key"):
            pass
        locks.acquire("key").release()
        locks.close()
    finally:
        sys.settrace(None)
