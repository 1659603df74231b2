"""Who holds a key, who waits for it, and taking a lease away by force."""

from __future__ import annotations

import logging
import os

import pytest

from tests.support.events import Heard
from tests.support.forks import needs_fork
from tests.support.renewals import hurry
from tests.support.waiting import PATIENCE, eventually
from weblock import ConfigurationError, InvalidKey, LeaseLost
from weblock._runtime.runtimes import drive
from weblock.events import Waiting

LONG = 60.0


def labels(info) -> list[str]:
    return list(info.waiters) if info else []


@pytest.fixture
def queue(probe, api, locks):
    """Starts one waiter after the other, and returns what each of them will get."""

    def start(key: str, *names: str, **options):
        waits = []
        for name in names:
            actor = api.actor()
            waits.append(actor.begin(locks.acquire, key, label=name, wait=None, **options))
            eventually(lambda name=name: name in labels(probe.inspect(key)))
        return waits

    return start


@pytest.mark.promise("locks")
class TestInspecting:
    def test_a_free_key_has_nothing_to_tell(self, locks, one) -> None:
        """Nobody holds it and nobody waits, be it before or after it was held."""
        assert one.do(locks.inspect, "key") is None
        one.do(one.do(locks.acquire, "key").release)
        assert one.do(locks.inspect, "key") is None
        assert one.do(locks.list) == []

    def test_a_holder_is_shown(self, locks, one, other) -> None:
        """Whoever looks sees the holder's label and fence, how long it has held, and what is left."""
        lease = one.do(locks.acquire, "key", ttl=LONG, label="the holder")
        info = other.do(locks.inspect, "key")
        assert (info.key, info.holder, info.fence) == ("key", "the holder", lease.fence)
        assert 0 <= info.held_for < LONG
        assert 0 < info.remaining <= LONG
        assert info.waiters == ()
        one.do(lease.release)

    @pytest.mark.promise("queue")
    def test_any_text_will_do_for_a_label(self, locks, one, other, probe) -> None:
        """A label is shown as it was given, of holders and waiters, but for what no text contains."""
        for label in ("", "two  words\nand a line", "ключ {x} 🔑", "lone \ud800"):
            lease = one.do(locks.acquire, "key", ttl=LONG, label=label)
            wait = other.begin(locks.acquire, "key", wait=LONG, label=label)
            eventually(lambda: labels(probe.inspect("key")))
            info = probe.inspect("key")
            shown = label.replace("\ud800", "?")
            assert (info.holder, info.waiters) == (shown, (shown,))
            one.do(lease.release)
            other.do(wait.result(PATIENCE).release)

    @pytest.mark.promise("queue")
    def test_the_queue_is_shown_in_its_order(self, locks, one, other, queue) -> None:
        """Waiters are named first come, first; once one holds the key, it is no waiter."""
        lease = one.do(locks.acquire, "key", ttl=LONG, label="holder")
        waits = queue("key", "first", "second", "third", ttl=LONG)
        assert other.do(locks.inspect, "key").waiters == ("first", "second", "third")
        one.do(lease.release)
        waits[0].result(PATIENCE)
        info = other.do(locks.inspect, "key")
        assert (info.holder, info.waiters) == ("first", ("second", "third"))

    def test_who_gave_up_is_not_shown(self, locks, one, other) -> None:
        """A waiter whose wait is over has left the queue."""
        heard = Heard()
        locks.observe(heard.observer)
        lease = one.do(locks.acquire, "key", ttl=LONG)
        with pytest.raises(TimeoutError):
            other.do(locks.acquire, "key", wait=0.05)
        assert heard.of(Waiting), "it was in the queue"
        assert labels(other.do(locks.inspect, "key")) == []
        one.do(lease.release)

    def test_a_look_changes_nothing(self, locks, one, other, queue) -> None:
        """Looking neither renews a lease nor takes a place, nor moves a fence."""
        lease = one.do(locks.acquire, "key", ttl=LONG, renew=False)
        before = other.do(locks.inspect, "key")
        after = other.do(locks.inspect, "key")
        assert after.remaining <= before.remaining
        assert (after.fence, after.waiters) == (before.fence, ())
        one.do(lease.release)

    def test_a_lease_that_has_ended_is_not_shown(self, locks, one, other) -> None:
        """Nobody holds a key whose lease was not renewed, though nobody has touched it since."""
        lease = one.do(locks.acquire, "key", ttl=0.2, renew=False)
        eventually(lambda: not lease.held)
        eventually(lambda: other.do(locks.inspect, "key") is None)
        assert other.do(locks.list) == []

    def test_what_is_only_remembered_is_not_shown(self, locks, one, probe) -> None:
        """A key of which an engine only remembers that somebody gave up is not in use."""
        for number in range(9):
            drive(probe._locker.store.release(f"default:{number}", "nobody", void=LONG))
        assert one.do(locks.inspect, "1") is None
        assert one.do(locks.list) == []
        lease = one.do(locks.acquire, "used")
        assert [info.key for info in one.do(locks.list, limit=1)] == ["used"]
        one.do(lease.release)

    def test_no_owner_is_shown(self, locks, one, other, queue) -> None:
        """Owners are secrets: who has one could release the lease."""
        lease = one.do(locks.acquire, "key", ttl=LONG)
        queue("key", "waiter", ttl=LONG)
        assert lease.owner not in repr(other.do(locks.inspect, "key"))
        assert lease.owner not in repr(other.do(locks.list))

    def test_the_label_tells_the_process(self, locks, one) -> None:
        """Unless it is said otherwise, a holder is shown by host and process id."""
        lease = one.do(locks.acquire, "key")
        assert one.do(locks.inspect, "key").holder == f"{os.uname().nodename}:{os.getpid()}"
        one.do(lease.release)


@pytest.mark.promise("locks")
class TestListing:
    def test_keys_by_prefix(self, locks, one) -> None:
        """Keys in use that begin with the prefix are listed, by name; none other, and no free one."""
        held = ["item:10", "item:2", "items", "order:1", "ключ"]
        for key in reversed(held):
            one.do(locks.acquire, key, ttl=LONG)
        one.do(one.do(locks.acquire, "item:free").release)
        assert [info.key for info in one.do(locks.list)] == held
        assert [info.key for info in one.do(locks.list, "item:")] == ["item:10", "item:2"]
        assert [info.key for info in one.do(locks.list, "кл")] == ["ключ"]
        assert one.do(locks.list, "tem") == []

    def test_a_prefix_is_no_pattern(self, locks, one) -> None:
        """Characters that are special elsewhere stand for themselves."""
        prefixes = ("a*", "a?", "a[bc]", "a\\", "a{b}")
        for key in ("abc", "ac", "a", *(f"{prefix}!" for prefix in prefixes)):
            one.do(locks.acquire, key, ttl=LONG)
        for prefix in prefixes:
            assert [info.key for info in one.do(locks.list, prefix)] == [f"{prefix}!"]

    def test_no_more_than_the_limit(self, locks, one) -> None:
        """However many there are, no more are listed than asked for."""
        for number in range(20):
            one.do(locks.acquire, f"key:{number}", ttl=LONG)
        listed = one.do(locks.list, limit=7)
        assert len({info.key for info in listed}) == 7
        assert one.do(locks.list, limit=0) == []
        assert len(one.do(locks.list, limit=20)) == 20


@pytest.mark.promise("locks")
class TestForceRelease:
    def test_the_key_becomes_free(self, locks, one, other) -> None:
        """Without waiters, a lease that is taken away leaves a free key, and a larger fence to come."""
        lease = one.do(locks.acquire, "key", ttl=LONG)
        assert other.do(locks.force_release, "key") is True
        assert other.do(locks.inspect, "key") is None
        theirs = other.do(locks.acquire, "key", wait=0)
        assert theirs.fence > lease.fence
        other.do(theirs.release)

    @pytest.mark.promise("queue")
    def test_the_first_waiter_gets_the_key(self, locks, one, other, queue) -> None:
        """The first in the queue is woken at once, and only it; the holder's release says: taken."""
        lease = one.do(locks.acquire, "key", ttl=LONG)
        first, second = queue("key", "first", "second", ttl=LONG)
        assert other.do(locks.force_release, "key") is True
        theirs = first.result(PATIENCE)
        assert theirs.fence > lease.fence
        with pytest.raises(LeaseLost) as lost:
            one.do(lease.release)
        assert lost.value.reason == "taken"
        info = other.do(locks.inspect, "key")
        assert (info.holder, info.fence, info.waiters) == ("first", theirs.fence, ("second",))
        assert not second.done()
        theirs.check()

    def test_the_former_holder_is_told_at_its_renewal(self, locks, one, other) -> None:
        """A holder that lost its lease by force finds out by itself, before its ttl is over."""
        lease = one.do(locks.acquire, "key", ttl=LONG)
        assert other.do(locks.force_release, "key") is True
        hurry(locks, lease)
        eventually(lambda: not lease.held)
        with pytest.raises(LeaseLost) as lost:
            lease.check()
        assert lost.value.reason == "taken"

    def test_the_former_holder_is_told_when_it_extends(self, locks, one, other) -> None:
        """A lease that was taken away is not brought back by extending it."""
        lease = one.do(locks.acquire, "key", ttl=LONG, renew=False)
        other.do(locks.force_release, "key")
        with pytest.raises(LeaseLost) as lost:
            one.do(lease.extend, 10)
        assert lost.value.reason == "taken"
        assert other.do(locks.inspect, "key") is None

    def test_a_free_key(self, locks, one, caplog) -> None:
        """Where nobody holds, there is nothing to take away, and nothing to log."""
        assert one.do(locks.force_release, "key") is False
        one.do(one.do(locks.acquire, "key", wait=0).release)
        assert one.do(locks.force_release, "key") is False
        assert not [each for each in caplog.records if each.name == "weblock.audit"]

    @pytest.mark.of_core
    def test_it_is_logged(self, locks, one, other, caplog) -> None:
        """One warning of the audit names the key, on one line and not without end, and who had it."""
        key = "k" * 500
        one.do(locks.acquire, key, ttl=LONG, label="some\nbody")
        with caplog.at_level(logging.WARNING, "weblock"):
            other.do(locks.force_release, key, by="an\noperator")
        (record,) = [each for each in caplog.records if each.name == "weblock.audit"]
        assert (record.levelname, record.key, record.by) == ("WARNING", key, r"an\noperator")
        message = record.getMessage()
        assert "kkk" in message
        assert r"some\nbody" in message
        assert r"an\noperator" in message
        assert len(message) < 500


@pytest.mark.promise("locks")
def test_other_namespaces_are_left_alone(api, url, one, locks) -> None:
    """Keys of another namespace are neither seen nor touched, whatever it is called."""
    for namespace in ("default2", "defaul", "shop"):
        theirs = api.open(url, namespace=namespace)
        lease = one.do(theirs.acquire, "key", ttl=LONG)
        assert one.do(locks.inspect, "key") is None
        assert one.do(locks.list) == []
        assert one.do(locks.force_release, "key") is False
        assert [info.key for info in one.do(theirs.list)] == ["key"]
        one.do(lease.release)
        api.shut(theirs)


@pytest.mark.of_core
def test_what_cannot_be_a_key_is_refused(api, url, one) -> None:
    """Keys and prefixes are checked as where they are locked, limits as numbers, and closed is closed."""
    locks = api.open(url)
    for bad in ("", "a\n", "x" * 513, 7, None):
        for call in (locks.inspect, locks.force_release):
            with pytest.raises(InvalidKey):
                one.do(call, bad)
        if bad != "":
            with pytest.raises(InvalidKey):
                one.do(locks.list, bad)
    for bad in (-1, True, 1.5, None):
        with pytest.raises(ConfigurationError, match=r"^limit="):
            one.do(locks.list, limit=bad)
    api.shut(locks)
    for call in (locks.inspect, locks.force_release, locks.list):
        with pytest.raises(ConfigurationError, match="closed"):
            one.do(call, "key")


@needs_fork
@pytest.mark.promise("locks", "processes")
@pytest.mark.costly
def test_processes_see_one_another(locks, one, puppet) -> None:
    """A holder in another process is shown by its process id, a forked one by its own."""
    parent = puppet(ttl=LONG)
    parent.do("acquire", "parent's")
    child = parent.do("fork")["pid"]
    assert "error" not in parent.do("child", "acquire", "child's")
    infos = one.do(locks.list)
    assert [info.key for info in infos] == ["child's", "parent's"]
    host = os.uname().nodename
    assert [info.holder for info in infos] == [f"{host}:{child}", f"{host}:{parent.pid}"]
    assert one.do(locks.force_release, "parent's") is True
    found = parent.do("release")
    assert (found["error"], found["reason"]) == ("LeaseLost", "taken")


@pytest.mark.promise("death_noticed_at_once")
@pytest.mark.costly
def test_the_dead_are_not_shown(locks, one, puppet) -> None:
    """Where an engine can tell, neither a killed holder nor a killed waiter is shown."""
    holder, waiter = puppet(ttl=LONG), puppet(ttl=LONG)
    holder.do("acquire", "key")
    waiter.begin("acquire", "key", wait=None)
    eventually(lambda: labels(one.do(locks.inspect, "key")))
    waiter.kill()
    eventually(lambda: not labels(one.do(locks.inspect, "key")))
    holder.kill()
    eventually(lambda: one.do(locks.inspect, "key") is None)
    assert one.do(locks.list) == []
