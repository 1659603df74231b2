"""Processes that die, stop, and fork."""

from __future__ import annotations

import sys

import pytest

from tests.support.forks import needs_fork
from tests.support.waiting import PATIENCE, eventually, now

pytestmark = [pytest.mark.promise("locks", "processes"), pytest.mark.costly]

announced_or_not = pytest.mark.parametrize("announced", [True, False], ids=["announced", "in-c"])
"""Whether the process that forks calls Python's hooks, as a server that is written in C need not."""

LONG = 3 * PATIENCE
"""A ttl that no test waits for: whoever had to would fail."""


def test_a_killed_holder(promises, locks, one, puppet, waiting) -> None:
    """A holder that is killed frees the key: within its ttl, and at once where the engine says."""
    ttl = LONG if promises.death_noticed_at_once else 1
    holder = puppet(ttl=ttl)
    fence = holder.do("acquire", "key")["fence"]
    waiter = one.begin(locks.acquire, "key", wait=None)
    # Where a machine kept the holder from renewing its lease, the waiter has got the key already.
    eventually(lambda: waiting("key") == 1 or waiter.done())
    holder.kill()
    lease = waiter.result(LONG / 3)
    assert lease.fence > fence
    one.do(lease.release)


def test_a_holder_killed_before_anybody_waits(promises, locks, one, puppet) -> None:
    """Whoever comes after the death gets the key, as those who waited would have."""
    ttl = LONG if promises.death_noticed_at_once else 1
    holder = puppet(ttl=ttl)
    holder.do("acquire", "key")
    holder.kill()
    one.do(one.do(locks.acquire, "key", wait=LONG / 3).release)


def test_a_killed_waiter_is_passed_over(locks, one, other, puppet, waiting) -> None:
    """Where the first in the queue was killed, the key goes to the next who lives."""
    lease = one.do(locks.acquire, "key", ttl=LONG)
    dead = [puppet(ttl=LONG) for _ in range(2)]
    for number, each in enumerate(dead):
        each.begin("acquire", "key", wait=None)
        eventually(lambda number=number: waiting("key") == number + 1)
    served = other.begin(locks.acquire, "key", wait=None)
    eventually(lambda: waiting("key") == 3)
    for each in dead:
        each.kill()
    one.do(lease.release)
    other.do(served.result(LONG / 3).release)


def test_a_waiter_killed_after_the_hand_over(locks, one, other, puppet, waiting) -> None:
    """A waiter that dies with a lease that it never learned of holds nobody up."""
    lease = one.do(locks.acquire, "key", ttl=LONG)
    doomed = puppet(ttl=LONG)
    doomed.begin("acquire", "key", wait=None)
    eventually(lambda: waiting("key") == 1)
    served = other.begin(locks.acquire, "key", wait=None)
    eventually(lambda: waiting("key") == 2)
    doomed.stop()
    one.do(lease.release)
    doomed.kill()
    other.do(served.result(LONG / 3).release)


def test_a_stopped_holder_finds_out_first(locks, one, puppet) -> None:
    """A holder that was stopped beyond its ttl learns of the loss before it does anything else."""
    holder = puppet(ttl=1)
    fence = holder.do("acquire", "key")["fence"]
    assert holder.do("work_until_lost") == "working"
    holder.stop()
    lease = one.do(locks.acquire, "key", wait=LONG, ttl=LONG)
    taken = now()
    holder.resume()
    found = holder.hear()
    assert (found["error"], found["reason"]) == ("LeaseLost", "expired")
    assert found["last"] < taken
    assert lease.fence > fence


def test_a_late_release_takes_nothing(locks, one, puppet) -> None:
    """A holder that lost its lease while it was stopped cannot release the one of the next."""
    holder = puppet(ttl=1)
    holder.do("acquire", "key")
    holder.stop()
    lease = one.do(locks.acquire, "key", wait=LONG, ttl=LONG)
    holder.resume()
    assert holder.do("release")["error"] == "LeaseLost"
    assert holder.do("acquire", "key", wait=0)["error"] == "LockTimeout"
    lease.check()
    one.do(lease.extend, 1)
    one.do(lease.release)


def test_a_stopped_waiter_holds_nobody_up(locks, one, other, puppet, waiting) -> None:
    """A waiter that is stopped at its turn costs others a moment, not its ttl, and waits on."""
    lease = one.do(locks.acquire, "key", ttl=LONG)
    stopped = puppet(ttl=LONG)
    stopped.begin("acquire", "key", wait=None)
    eventually(lambda: waiting("key") == 1)
    behind = other.begin(locks.acquire, "key", wait=None, ttl=LONG)
    eventually(lambda: waiting("key") == 2)
    stopped.stop()
    one.do(lease.release)
    served = behind.result(LONG / 3)
    stopped.resume()
    eventually(lambda: waiting("key") == 1)
    other.do(served.release)
    assert stopped.hear(LONG / 3)["fence"] > served.fence


@needs_fork
@announced_or_not
def test_a_fork_in_the_middle(locks, one, puppet, announced) -> None:
    """The child of a holder holds nothing, frees nothing, and locks by itself."""
    parent = puppet(ttl=LONG)
    parent.do("acquire", "key")
    parent.do("fork", announced=announced)
    for verb in ("check", "release"):
        found = parent.do("child", verb)
        assert (found["error"], found["reason"]) == ("LeaseLost", "forked")
    assert parent.do("child", "acquire", "key", wait=0)["error"] == "LockTimeout"
    assert parent.do("child", "acquire", "another key")["fence"] > 0
    assert one.do(locks.try_acquire, "another key") is None
    assert "error" not in parent.do("child", "release")
    parent.do("end_child")
    assert one.do(locks.try_acquire, "key") is None
    assert "error" not in parent.do("check")
    assert "error" not in parent.do("release")
    assert one.do(locks.try_acquire, "key")


@needs_fork
@announced_or_not
def test_a_fork_after_the_engine_was_opened(locks, one, puppet, announced) -> None:
    """A child of a preloading server has its own lease renewed, and takes along what nobody renews."""
    parent = puppet(ttl=LONG)
    parent.do("acquire", "key")
    parent.do("release")
    parent.do("fork", announced=announced)
    assert parent.do("child", "acquire", "key")["fence"] > 0
    assert parent.do("child", "renewed") == {}
    assert one.do(locks.try_acquire, "key") is None
    assert parent.do("acquire", "key", wait=0)["error"] == "LockTimeout"
    assert parent.do("child", "release").keys() == {"at"}
    assert parent.do("child", "acquire", "key", ttl=1)["fence"] > 0
    parent.do("end_child")
    one.do(one.do(locks.acquire, "key", wait=LONG / 3).release)


@needs_fork
@announced_or_not
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells which sockets a process has")
def test_a_child_keeps_no_socket_of_its_parent(puppet, announced) -> None:
    """A child closes its copies at once; where Python's hooks do not run, as soon as it locks."""
    parent = puppet(ttl=LONG)
    parent.do("acquire", "key")
    parent.do("fork", announced=announced)
    if not announced:
        assert parent.do("child", "check")["reason"] == "forked"
    opened = parent.do("sockets")["opened"]
    assert opened
    assert not set(opened).intersection(parent.do("child", "sockets")["opened"])
    assert parent.do("sockets")["opened"] == opened
    assert "error" not in parent.do("release")


@needs_fork
def test_a_child_acquires_no_mutex_of_its_parent(puppet) -> None:
    """What another thread of the parent was in the middle of keeps nobody in the child from locking."""
    parent = puppet(ttl=LONG)
    parent.do("acquire", "key")
    parent.do("fork", announced=False, held=True)
    assert parent.do("child", "check")["reason"] == "forked"
    assert parent.do("child", "acquire", "key", wait=0)["error"] == "LockTimeout"
    assert parent.do("child", "acquire", "another key")["fence"] > 0
    assert parent.do("child", "renewed") == {}
    assert "error" not in parent.do("child", "release")
    assert "error" not in parent.do("release")


@needs_fork
@announced_or_not
def test_a_child_and_its_parent_wait_for_one_another(api, puppet, announced) -> None:
    """Parent and child are woken each by its own messages."""
    parent = puppet(ttl=LONG)
    parent.do("acquire", "key")
    parent.do("fork", announced=announced)
    for _ in range(5):
        parent.do("release")
        assert "error" not in parent.do("child", "acquire", "key")
        assert parent.do("acquire", "key", wait=0.05)["error"] == "LockTimeout"
        assert "error" not in parent.do("child", "release")
        assert "error" not in parent.do("acquire", "key", wait=LONG / 3)
