"""A process that has as many files open as it may."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.servers import fresh_memcached, fresh_quorum, fresh_url
from tests.servers.postgres import fresh_postgresql
from tests.support.waiting import PATIENCE, eventually, waiters
from weblock import Locks

from .keys import key_outside, keys_in, record_of
from .processes import Child, Failed

NONE_LEFT = """
import resource
_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
used = set()
while True:  # Holes among those that are open are filled, since one could be used.
    fd = os.dup(0)
    if fd > 40:
        break
    used.add(fd)
resource.setrlimit(resource.RLIMIT_NOFILE, (fd, hard))
os.close(fd)
"""

RENEWALS = "from tests.support.renewals import renewed"

TOLD = r"process \d+ has as many files open as it may \(EMFILE\): raise its limit"


def test_without_descriptors_a_lease_is_renewed_and_released(
    folder: Path, child: Callable[..., Child]
) -> None:
    """It needs none that it did not have; who needs one is told what is wrong, and may try again."""
    other = key_outside(record_of(folder, "k"))
    process = child(before=RENEWALS).open(ttl=PATIENCE)
    process.run("lease = locks.acquire('k')")
    fence = process.run(NONE_LEFT + "lease.fence")
    with pytest.raises(Failed, match=TOLD) as refusal:
        process.run(f"locks.acquire({other!r}, wait=0)")
    assert refusal.value.name == "EngineUnavailable"
    with pytest.raises(Failed, match=TOLD) as refusal:
        process.run("locks.once('x', int)")
    assert refusal.value.name == "EngineUnavailable"
    process.run("renewed(locks, lease)")
    process.run("lease.extend(1); lease.release()")
    assert process.run("locks.acquire('k', wait=0).fence") > fence


def test_without_descriptors_a_waiter_gets_its_turn(
    folder: Path, locks: Locks, child: Callable[..., Child]
) -> None:
    """It cannot see the holder die, but is woken as ever."""
    mine, theirs = keys_in(record_of(folder, "k"), 2)
    process = child().open()
    process.run(f"first = locks.acquire({mine!r})" + NONE_LEFT)
    lease = locks.acquire(theirs)
    process.begin(f"second = locks.acquire({theirs!r}, wait=60); second.fence")
    eventually(lambda: waiters(locks, theirs) == 1)
    lease.release()
    assert process.outcome() > lease.fence


ASYNCIO = """
import threading
loop = asyncio.new_event_loop()
threading.Thread(target=loop.run_forever, daemon=True).start()
def run(work): return asyncio.run_coroutine_threadsafe(work, loop).result()
locks = AsyncLocks.from_url(url, ttl=TTL)
lease = run(locks.acquire("k"))
"""

BLOCKING = """
locks = Locks.from_url(url, ttl=TTL)
lease = locks.acquire("k")
"""


@pytest.mark.parametrize("api", [BLOCKING, ASYNCIO], ids=["sync", "asyncio"])
@pytest.mark.parametrize(
    "fresh",
    [fresh_url, fresh_postgresql, lambda: fresh_quorum(3), fresh_memcached],
    ids=["redis", "postgresql", "redlock", "memcached"],
)
def test_without_descriptors_the_keeper_uses_the_connections_of_callers(
    fresh: Callable[[], Any], api: str
) -> None:
    """A lease is renewed although no descriptor was free for the keeper before its first renewal."""
    process = Child("", before=RENEWALS)
    try:
        process.run(f"url = {fresh()!r}\nTTL = {PATIENCE}" + api)
        process.run(NONE_LEFT)
        process.run("renewed(locks, lease)")
        process.run("renewed(locks, lease)")
    finally:
        process.close()


def test_without_descriptors_no_engine_is_opened(folder: Path, child: Callable[..., Child]) -> None:
    """Neither in a new directory nor in one that is in use; the error is that of an outage."""
    process = child().open()
    process.run(NONE_LEFT)
    for place in (folder.with_name("other"), folder.with_name("above") / "locks"):
        with pytest.raises(Failed, match=TOLD) as refusal:
            process.run(f"Locks.from_url('file://{place}')")
        assert refusal.value.name == "EngineUnavailable"
