"""Background threads do not end before they should, and what they call harms no lease."""

from __future__ import annotations

import ctypes
import gc
import logging
import sys
import threading

import pytest

from tests.support.renewals import renewed
from tests.support.waiting import PATIENCE, eventually
from weblock import EngineUnavailable
from weblock._platform import threads

TTL = 60.0
"""Seconds, longer than any machine lets a thread wait."""


def weblock_threads() -> list[threading.Thread]:
    """The background threads of all engines in this process."""
    names = ("weblock-keeper", "weblock-receiver", "weblock-listener", "weblock-poller")
    return [each for each in threading.enumerate() if each.name in names and each.ident]


@pytest.mark.promise("locks")
@pytest.mark.filterwarnings("ignore::ResourceWarning")  # Killed between two lines, a thread may not
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # close its socket.
# One that is killed a second time, while it handles the first, ends, and another is started.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_threads_that_are_killed_are_started_again(locks, one, other, waiting, caplog) -> None:
    """An exception in any background thread, ``SystemExit`` too, costs neither a lease nor a waiter."""
    for _ in range(2):
        lease = one.do(locks.acquire, "held", ttl=TTL)
        first = one.do(locks.acquire, "key", ttl=TTL)
        waiter = other.begin(locks.acquire, "key", ttl=TTL, wait=30)
        eventually(lambda: waiting("key") == 1)
        for thread in weblock_threads():
            ctypes.pythonapi.PyThreadState_SetAsyncExc(
                ctypes.c_ulong(thread.ident), ctypes.py_object(SystemExit)
            )
        renewed(locks, lease)
        one.do(first.release)
        second = waiter.result(PATIENCE)
        renewed(locks, second)
        other.do(second.release)
        one.do(lease.release)
    assert any("failed and is restarted" in record.message for record in caplog.records)
    # What the killed threads had open ends here, and not in a later test, which would be blamed for it.
    caplog.clear()
    gc.collect()


def test_a_thread_that_goes_on_failing_does_not_flood_the_log(monkeypatch, caplog) -> None:
    """The first failure of a background thread is logged, and of those that follow ever fewer."""
    monkeypatch.setattr(threads, "AGAIN_AFTER", 0.0)
    failures = iter(range(100))

    def work() -> None:
        if next(failures, None) is not None:
            raise TypeError("raw")

    thread = threads.BackgroundThread("failing", work)
    assert thread.start()
    thread.join(PATIENCE)
    told = [record for record in caplog.records if "'raw'" in repr(record.exc_info)]
    assert [record.args for record in told] == [("failing", 2**power) for power in range(7)]


@pytest.mark.promise("locks")
def test_a_callback_that_ends_its_thread_costs_no_lease(locks, one) -> None:
    """``sys.exit()`` in an ``on_lost`` callback leaves the other leases renewed."""
    lease = one.do(locks.acquire, "held", ttl=TTL)
    lost = one.do(locks.acquire, "lost", ttl=0.2, renew=False)
    called = threading.Event()

    def leave() -> None:
        called.set()
        sys.exit(1)

    # asyncio would end its loop, as it should: there the callback is the application's own.
    lost._when("on_lost", leave) if hasattr(lost, "__aexit__") else lost.on_lost(leave)
    assert called.wait(PATIENCE)
    renewed(locks, lease)
    one.do(lease.release)


@pytest.mark.parametrize("count", [3])
def test_a_callback_that_takes_long_costs_no_lease(api, url, count) -> None:
    """A callback that does not return keeps no other lease from being renewed."""
    if api.name == "asyncio":
        pytest.skip("a callback of asyncio runs in its loop")
    locks, one = api.open(url), api.actor()
    leases = [one.do(locks.acquire, f"held:{number}", ttl=TTL) for number in range(count)]
    lost = one.do(locks.acquire, "lost", ttl=0.2, renew=False)
    inside, go_on = threading.Event(), threading.Event()

    def hold_up() -> None:
        inside.set()
        go_on.wait(PATIENCE)

    lost.on_lost(hold_up)
    assert inside.wait(PATIENCE)
    for lease in leases:
        renewed(locks, lease)
        one.do(lease.release)
    go_on.set()
    api.shut(locks)


class Broken(logging.Handler):
    """A handler that fails, without being asked whether it may."""

    def handle(self, record: logging.LogRecord) -> bool:
        raise RuntimeError("this handler is broken")


def test_a_logging_handler_that_raises_costs_no_lease(locks, one) -> None:
    """The keeper's warnings may fail; the leases are renewed, and the others are told."""
    handler = Broken()
    logging.getLogger("weblock").addHandler(handler)
    try:
        lease = one.do(locks.acquire, "held", ttl=TTL)
        lost = one.do(locks.acquire, "lost", ttl=0.2, renew=False)
        eventually(lambda: not lost.held)
        renewed(locks, lease)
        one.do(lease.release)
    finally:
        logging.getLogger("weblock").removeHandler(handler)


def test_a_lease_that_no_thread_would_renew_is_not_granted(api, url, monkeypatch, caplog) -> None:
    """Where the machine is out of threads for a moment, who needs one then is refused, and no other."""
    start, given = threading.Thread.start, 0

    def refuse(thread: threading.Thread) -> None:
        if thread.name == "weblock-keeper" and not given:
            raise RuntimeError("can't start new thread")
        start(thread)

    locks, one = api.open(url), api.actor()
    monkeypatch.setattr(threading.Thread, "start", refuse)
    for _ in range(2):
        with pytest.raises(EngineUnavailable, match="no thread can be started"):
            one.do(locks.acquire, "key", ttl=TTL)
    assert any("could not be started" in record.message for record in caplog.records)
    brief = one.do(locks.acquire, "key", ttl=TTL, renew=False)
    token = one.do(brief.hand_over)
    with pytest.raises(EngineUnavailable, match="no thread can be started"):
        one.do(locks.take_over, token)
    given = 1
    lease = one.do(locks.take_over, token)
    renewed(locks, lease)
    one.do(lease.release)
    renewed(locks, lease := one.do(locks.acquire, "key", ttl=TTL))
    one.do(lease.release)
    api.shut(locks)
