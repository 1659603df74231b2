"""An exception that a signal handler raises, at any line, leaves nothing held, hung or leaked."""

from __future__ import annotations

import gc
import os
import random
import threading
import time
from functools import partial
from pathlib import Path

import pytest

from tests.support.collecting import collect
from tests.support.interrupts import Interrupter
from tests.support.waiting import PATIENCE, eventually
from weblock import Locks
from weblock.stores.url import open_engine as open_another

FDS = Path("/dev/fd")

SECONDS = 1.0 if "WEBLOCK_QUICK" in os.environ else 2.0
"""How long the lines of one engine are tried; all of them are with WEBLOCK_LONG=1."""

FEWEST = 6
"""How many are tried at least, however slow the machine is."""

LONG = 10 * PATIENCE
"""A ttl that nothing outlasts: what is not released is in the way."""

COLLECTED = 100
"""At how many lines a lease is collected, at most; at all of them with WEBLOCK_LONG=1."""


def _section(locks: Locks) -> None:
    with locks.hold("key", ttl=LONG, wait=PATIENCE / 2):
        pass


def _small(url: str | list[str]) -> str | list[str]:
    """Where connections are counted, so few of them that one that is lost is missed at once."""
    return f"{url}&max_connections=2" if str(url).startswith("redis:") else url


def _in_thread(work, *args) -> bool:
    """Whether something comes to its end in another thread."""
    thread = threading.Thread(target=work, args=args, daemon=True)
    thread.start()
    thread.join(PATIENCE)
    return not thread.is_alive()


@pytest.mark.promise("locks")
@pytest.mark.timeout(10 * PATIENCE)
@pytest.mark.filterwarnings("ignore::ResourceWarning")  # What was interrupted was not released,
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # nor even begun.
@pytest.mark.filterwarnings("ignore:.*was never (awaited|entered):RuntimeWarning")
def test_an_interrupt_at_any_line_leaves_nothing(url) -> None:
    """The key is free again at once, other threads go on, and closing returns."""
    seed = random.randrange(2**32)
    locks, others = Locks.from_url(_small(url)), Locks(open_another(_small(url)))
    engine = locks._engine
    whole = Interrupter(None)
    _section(locks)
    whole.run(lambda: _section(locks))
    others.list()
    numbers, files = list(range(1, whole.lines + 1)), len(list(FDS.iterdir()))
    if not os.environ.get("WEBLOCK_LONG"):
        random.Random(seed).shuffle(numbers)
    until, failures, tried = time.monotonic() + SECONDS, [], 0
    for number in numbers:
        over = tried >= FEWEST and time.monotonic() > until
        if over and not os.environ.get("WEBLOCK_LONG"):
            break
        interrupter = Interrupter(number)
        if not interrupter.run(lambda: _section(locks)):
            continue
        tried += 1
        gc.collect(0)
        # Those of another process must get in, too: an engine of its own is what one has.
        away = others if locks.scope != "process" else locks
        if not (_in_thread(_section, locks) and _in_thread(_section, away)):
            failures.append(interrupter.where)
            break  # What it left is in the way of all that follow.
    assert not failures, f"{tried} of {len(numbers)} lines tried; seed {seed}"
    assert tried >= FEWEST
    gc.collect()
    eventually(lambda: not locks.list())
    eventually(lambda: locks._locker.keeper.idle and not locks._locker.keeper.watches)
    assert not engine.switchboard.mailboxes
    # Each server's pool may keep a connection for each thread that asked at the same time.
    servers = len(url) if isinstance(url, list | tuple) else 1
    eventually(lambda: len(list(FDS.iterdir())) <= files + max(10, 4 * servers))
    assert _in_thread(locks.close)
    assert _in_thread(others.close)


@pytest.mark.promise("locks")
@pytest.mark.timeout(10 * PATIENCE)
def test_a_lease_that_is_collected_at_any_line_is_released(url) -> None:
    """The collector may end a generator that holds a lease inside of an acquisition or a release.

    That is in a thread which is at work in the same engine, so the lease is released by another one.
    """
    seed = random.randrange(2**32)
    locks = Locks.from_url(_small(url))
    whole = Interrupter(None, bool)
    _section(locks)
    whole.run(lambda: _section(locks))
    numbers = random.Random(seed).sample(range(1, whole.lines + 1), whole.lines)
    until, tried = time.monotonic() + SECONDS / 2, 0
    for number in numbers if os.environ.get("WEBLOCK_LONG") else numbers[:COLLECTED]:
        if tried >= FEWEST and time.monotonic() > until and not os.environ.get("WEBLOCK_LONG"):
            break
        collected = locks.acquire("collected", ttl=LONG, wait=PATIENCE / 2)
        interrupter = Interrupter(number, partial(collect, collected.release))
        ended = _in_thread(interrupter.run, partial(_section, locks))
        assert ended, f"it waits for itself in {interrupter.where}"
        if not interrupter.where:  # It took fewer lines this time.
            collected.release()
        tried += 1
    assert tried >= FEWEST
    eventually(lambda: not locks.list())
    assert _in_thread(locks.close)


@pytest.mark.filterwarnings("ignore:.*was never (awaited|entered):RuntimeWarning")
def test_an_interrupt_of_a_caller_that_is_refused_leaves_no_mailbox() -> None:
    """At whatever line it comes, the notifications of an acquisition that failed have no receiver left."""
    locks = Locks.from_url("memory://refused")
    number, was_interrupted = 0, True
    while was_interrupted:
        number += 1
        with locks.hold(f"key:{number}"):
            refused = partial(locks.try_acquire, f"key:{number}")
            was_interrupted = Interrupter(number).run(refused)
    assert number > 100
    eventually(lambda: not locks._locker.keeper.watches)
    assert not locks._engine.switchboard.mailboxes
    locks.close()
