"""What the scripts must do about each way of losing leases, one after the other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from weblock.stores.redis import scripts
from weblock.stores.redis.calls import Layout, micros
from weblock.stores.redis.scripts import Script

from .redis_model import RedisModel, packed, unpacked

LAYOUT = Layout("recovery", 1)
SECOND: Final = 1_000_000
RECOVERY: Final = 10.0
SWITCH: Final = 2.0
"""Seconds more that a server waits which has taken another's place."""


class Rig:
    """One server, a clock, and one key that everybody wants."""

    def __init__(self, scripted: Callable[[Script], Script]) -> None:
        self.now = 1_790_000_000 * SECOND
        self.model = RedisModel(lambda: self.now, lambda *_notify: None)
        self._scripted = scripted
        self._owners = 0

    def acquire(self, ttl: float = 1.0, *, room: int = 0, ticket: int = 0, **caller: Any) -> Any:
        self._owners += 1
        words = (self.owner, "p", "", micros(ttl), str(room), str(ticket))
        return self.run(scripts.ACQUIRE, *words, **caller)

    def refresh(self, *beats: tuple[str, float]) -> Any:
        words = [word for owner, ttl in beats for word in (owner, micros(ttl))]
        return self.run(scripts.BEAT, *words)

    @property
    def owner(self) -> str:
        """Who came last."""
        return f"owner{self._owners}"

    def release(self, owner: str = "", *, void: float = 0.0, **caller: Any) -> Any:
        return self.run(scripts.RELEASE, owner or self.owner, micros(void), **caller)[0]

    def run(
        self,
        script: Script,
        *words: str,
        key: str = "key",
        recovery: float = RECOVERY,
        where: str = "single",
        known_as: str = "",
    ) -> Any:
        """``known_as`` is what a connection that was made earlier takes the server for."""
        _bucket, keys = LAYOUT.of_key(key)
        args = (known_as or self.model.incarnation, micros(recovery), where, *words)
        return self.model.evaluate(self._scripted(script), keys, args)

    def granted(self, **how: Any) -> bool:
        """Whether somebody gets the key, who gives it back at once."""
        reply = self.acquire(**how)
        if reply[0] == b"held":
            how.pop("ttl", None)
            assert self.release(**how) == b"released"
        return bool(reply[0] == b"held")

    def recovers_for(self, seconds: float) -> None:
        """Nothing is granted for just so long; who asks is told until when, and may wait."""
        status, _now, _waiters, until, because, *holders = self.acquire()
        assert status == b"busy"
        assert because
        assert holders == [b"", 0]
        assert until == self.now + seconds * SECOND
        assert self.acquire(room=1) == [b"waiting", self.now, 0, until, because, b"", 0]
        waiter = self.owner
        while self.now < until:
            assert not self.granted()
            self.now = min(self.now + SECOND, until - 1 if self.now < until - 1 else until)
            ((status, *_),) = self.refresh((waiter, 1.0))
            assert status == (b"waiting" if self.now < until else b"held")
        self.run(scripts.RELEASE, waiter, "0")


def _losing_leases(rig: Rig) -> None:
    """After each way of losing leases, nothing is granted for just as long as they may last."""
    assert rig.granted(), "a server that has been up for long is granted on at once"

    rig.model.flush()
    rig.recovers_for(RECOVERY)
    rig.model.promote()
    rig.recovers_for(RECOVERY + SWITCH)
    rig.now += 60 * SECOND
    assert rig.granted(), "what was replaced once has recovered for good"

    rig.model.restart(forget=True)
    rig.now += 4 * SECOND
    rig.recovers_for(RECOVERY - 3)  # It cannot tell 3 seconds from 4.
    rig.model.restart(forget=False)
    rig.now += 4 * SECOND
    rig.recovers_for(RECOVERY - 3)  # It cannot tell 3 seconds from 4.
    rig.model.restart(forget=False)
    rig.now += 20 * SECOND
    assert rig.granted(), "a restart is over when the server has been up for long"
    rig.model.move()
    rig.recovers_for(RECOVERY)


def _truncated_uptimes(rig: Rig) -> None:
    """A server says whole seconds, of which one may not have passed: it counts as not passed."""
    rig.now += round(0.88 * SECOND)
    rig.model.restart(forget=True)
    held_until = rig.now + round(RECOVERY * SECOND)
    while rig.now < held_until:
        assert not rig.granted()
        rig.model.flush_epoch()  # As if nobody had asked before.
        rig.now += round(0.06 * SECOND)
    rig.now += SECOND
    assert rig.granted()


def _clocks_set_back(rig: Rig) -> None:
    """A server that is up for less than no time, or whose clock is set back, recovers no longer."""
    rig.model.restart(forget=True)
    rig.now -= 3600 * SECOND
    rig.recovers_for(RECOVERY)
    rig.now += 2 * SECOND
    fence = int(rig.acquire()[2])
    assert rig.release() == b"released"
    rig.now -= 30 * SECOND
    assert rig.granted(), "it has recovered already"
    assert int(rig.acquire()[2]) > fence
    rig.release()
    rig.model.restart(forget=False)
    rig.now += 2 * SECOND
    assert not rig.granted()
    rig.now -= 60 * SECOND
    rig.recovers_for(RECOVERY + SWITCH)
    rig.now += 5 * SECOND
    assert rig.granted()


def _clock_set_back_meanwhile(rig: Rig) -> None:
    """Fences go on where they were, also if the clock is set back while the server is down."""
    assert rig.granted()
    latest = rig.now
    rig.model.restart(forget=False)
    rig.now -= 3600 * SECOND
    assert not rig.granted(key="another")
    rig.now += 13 * SECOND
    fence = int(rig.acquire(key="another")[2])
    assert fence > latest + SECOND, "some of that second may be lost"


def _coming_back(rig: Rig) -> None:
    """A master that was a replica for a while has lost leases, though it is the same run as before.

    Connections from before know its former id, and change nothing about it.
    """
    before = rig.model.incarnation
    assert rig.granted()
    rig.model.fail_back()
    rig.now += SECOND + 1
    assert not rig.granted(known_as=before), "it is looked at, though it has the name it had"
    rig.recovers_for(RECOVERY + SWITCH)
    rig.now += SECOND // 2
    assert rig.granted(known_as=before)
    assert rig.granted()
    rig.model.fail_back()
    rig.recovers_for(RECOVERY + SWITCH)


def _other_names(rig: Rig) -> None:
    """An id that changes while no other was the master means nothing, however many there were."""
    rig.model.flush()
    rig.recovers_for(RECOVERY)
    for _ in range(300):
        rig.model.rename()
        assert rig.granted()
        rig.now += 3600 * SECOND
    epoch = rig.model.values[LAYOUT.of_bucket(0)[2]]
    assert isinstance(epoch, dict)
    assert len(unpacked(str(epoch["server"]))[2]) < 600


def _longest_ends_late(rig: Rig) -> None:
    """Who releases in a quarantine leaves the key to those who wait, when it is over."""
    rig.acquire(ttl=10.0)
    holder = rig.owner
    rig.model.restart(forget=False)
    until = rig.acquire(room=1)[3]
    waiter = rig.owner
    rig.now += 5 * SECOND
    assert rig.run(scripts.RENEW, holder, micros(10))[0][0] == b"held"
    assert rig.refresh((waiter, 1.0))[0][0] == b"waiting"
    rig.now += SECOND
    assert rig.release(holder) == b"released"
    while rig.now < until:
        assert rig.refresh((waiter, 1.0))[0][0] == b"waiting"
        rig.now = min(rig.now + SECOND, until)
    assert rig.refresh((waiter, 1.0))[0][0] == b"held"


def _full_memory(rig: Rig) -> None:
    """On a server without memory leases are renewed and given back, and none is granted."""
    rig.acquire(ttl=30.0)
    holder = rig.owner
    rig.acquire(room=1)
    waiter = rig.owner
    rig.model.full = True
    try:
        rig.acquire(room=2)
    except AssertionError:
        pass
    else:
        raise AssertionError("a lock is acquired, which needs memory")
    rig.now += 3 * SECOND
    beats = [each[0] for each in rig.refresh((holder, 40.0), (waiter, 1.0))]
    assert beats == [b"held", b"waiting"]
    assert rig.run(scripts.TRANSFER, holder, "heir", "p", "l", micros(40.0))[0] == b"held"
    holder = "heir"
    assert rig.release(holder, void=5.0) == b"released"
    assert rig.refresh((waiter, 5.0))[0][0] == b"held"
    rig.now += SECOND + 1
    assert rig.run(scripts.FORCE_RELEASE)[0] == b"released"


def _free_keys(rig: Rig) -> None:
    """Of a key that nobody has, nothing is left; and its fences go on where they were."""
    _bucket, names = LAYOUT.of_key("key")
    latest = 0
    for back in (0, 0, 3600, 1, 0):
        rig.now -= back * SECOND
        rig.now += 1
        fence = int(rig.acquire(ttl=1.0)[2])
        assert fence > latest
        latest = fence
        rig.now += 2
        assert rig.release() == b"released"
        if not back:
            rig.now += 3700 * SECOND
            assert rig.granted()
            assert names[0] not in rig.model.values
            latest = max(latest, rig.now)
            rig.now += 1
    rig.acquire(ttl=1.0)
    rig.acquire(room=1)
    rig.now += 5 * SECOND
    assert not any(status == b"held" for status, *_ in rig.refresh(("nobody", 1.0)))
    assert not rig.model.expiring(names[0])
    rig.model.flush()
    rig.acquire(room=1)
    rig.release()
    assert not rig.model.expiring(names[0]), "nor of one that somebody waited for in vain"


def _fences_ahead(rig: Rig) -> None:
    """A fence that is ahead of the server's clock is remembered with its key, until that follows."""
    _bucket, names = LAYOUT.of_key("key")
    fence = int(rig.acquire(ticket=rig.now + SECOND)[2])
    assert fence == rig.now + SECOND
    rig.release()
    assert int(rig.acquire(key="another")[2]) == rig.now, "it is no fence of another key"
    rig.release(key="another")
    rig.now += 50 * SECOND
    assert int(rig.acquire(ticket=rig.now - 600 * SECOND)[2]) == fence + 1
    rig.now += 1
    rig.release()
    rig.now += 1
    fence = int(rig.acquire(ticket=rig.now + SECOND)[2])
    rig.release()
    rig.now += 62 * SECOND
    assert rig.model.expiring(names[0]) == []
    assert int(rig.acquire(ticket=rig.now - 600 * SECOND)[2]) > fence


def _fences_of_free_keys(rig: Rig) -> None:
    """They go on above the largest of them, in whatever order keys are released."""
    rig.acquire(key="one")
    first = rig.owner
    rig.now += 1
    fence = int(rig.acquire(key="another")[2])
    rig.release(key="another")
    rig.release(first, key="one")
    rig.now -= 10 * SECOND
    assert int(rig.acquire(key="another")[2]) > fence


def _released_in_time(rig: Rig) -> None:
    """A lease that has ended is not released, from the very microsecond of its end."""
    rig.acquire(ttl=1.0)
    rig.now += SECOND - 1
    assert rig.release() == b"released"
    rig.acquire(ttl=1.0)
    rig.now += SECOND
    assert rig.release() == b"gone"
    rig.now += 2 * SECOND
    rig.acquire(ttl=0.5)
    rig.now += SECOND // 2
    assert rig.release() == b"gone"


def _lapsed_places(rig: Rig) -> None:
    """A release passes over a waiter that has not been heard of, from the very microsecond on."""
    for late, heir in ((0, 0), (1, 1)):
        rig.acquire(ttl=30.0)
        holder = rig.owner
        waiters = []
        for pause in (4 * SECOND - 1, late):
            rig.acquire(room=9)
            waiters.append(rig.owner)
            rig.now += pause
        assert rig.release(holder) == b"released"
        held = [rig.refresh((waiter, 1.0))[0][0] == b"held" for waiter in waiters]
        assert held.index(True) == heir
        for waiter in waiters:
            rig.release(waiter)


def _fences_after_a_quarantine(rig: Rig) -> None:
    """They are above all that may have been forgotten, also for those who need not ask about it."""
    rig.model.flush()
    recovered = rig.acquire()[3]
    rig.now = recovered
    for key in ("first", "second"):
        assert int(rig.acquire(key=key, ticket=recovered - 5 * SECOND)[2]) >= recovered


def _off(rig: Rig) -> None:
    """Where no program asks for a recovery, nothing waits; of several, the longest counts for all."""
    rig.model.flush()
    assert rig.granted(recovery=0.0)
    assert rig.granted(recovery=0.0, where="sentinel")
    assert rig.acquire(recovery=6.0)[3] == rig.now + 6 * SECOND
    assert not rig.granted(recovery=0.0)
    rig.recovers_for(RECOVERY)
    assert rig.granted(recovery=6.0)
    rig.model.restart(forget=False)
    assert rig.acquire(recovery=6.0)[3] == rig.now + round(RECOVERY) * SECOND
    rig.model.flush()
    rig.acquire(ttl=10.0, recovery=0.0, where="sentinel")
    rig.model.promote()
    beat = rig.run(scripts.RENEW, rig.owner, micros(1), recovery=0.0, where="sentinel")
    assert beat[0][0] == b"held"
    rig.release(recovery=0.0, where="sentinel")


def _unequal_ttls(rig: Rig) -> None:
    """Whatever script comes first after a loss, and however short its lease, the recovery is the same."""
    words = ("a", micros(1))
    for first in (
        lambda: rig.run(scripts.RELEASE, "a", "0"),
        lambda: rig.run(scripts.RENEW, *words),
        lambda: rig.run(scripts.BEAT, *words),
        lambda: rig.run(scripts.FORCE_RELEASE),
        lambda: rig.run(scripts.ASK_RELEASE),
        lambda: rig.run(scripts.BEGIN),
        lambda: rig.run(scripts.TRANSFER, "a", "b", "p", "", micros(1)),
        lambda: rig.acquire(ttl=86_400.0),
    ):
        rig.model.flush()
        first()
        rig.recovers_for(RECOVERY)
        rig.now += 3600 * SECOND


def _not_renewed(rig: Rig) -> None:
    """A lease of a day does not lengthen the recovery, whether it is held or was given back."""
    rig.acquire(ttl=86_400.0, key="another")
    rig.model.restart(forget=True)
    rig.recovers_for(RECOVERY)


def _who_was_told(rig: Rig) -> None:
    """While it recovers, a holder renews what the server knows; no lease is news to anybody."""
    rig.acquire(ttl=10.0)
    holder = rig.owner
    rig.acquire(room=9)
    waiter = rig.owner
    rig.model.restart(forget=False)
    rig.now += SECOND
    assert rig.refresh((holder, 10.0), (waiter, 10.0))[0][0] == b"waiting", (
        "it is no heartbeat of a holder"
    )
    rig._owners -= 2
    assert rig.acquire(ttl=10.0)[0] == b"waiting", "it asks as if it had not been told"
    rig._owners += 1
    assert rig.run(scripts.TRANSFER, holder, "heir", "p", "", micros(9))[0] == b"unknown"
    assert rig.run(scripts.RENEW, holder, micros(9))[0][0] == b"held"
    assert rig.run(scripts.RENEW, waiter, micros(9))[0][0] == b"gone"
    rig.now += round(RECOVERY) * SECOND
    rig.refresh((waiter, 1.0))
    assert rig.run(scripts.RELEASE, holder, "0")[0] == b"gone"


def _until_all_have_heard(rig: Rig) -> None:
    """A new master renews nothing for two seconds, in which its predecessor may still answer."""
    rig.acquire(ttl=10.0)
    rig.model.promote()
    for where in ("sentinel", "cluster"):
        assert rig.run(scripts.RENEW, rig.owner, micros(10), where=where)[0][0] == b"unknown"
        rig.now += SECOND // 2
    rig.now += SECOND
    assert rig.run(scripts.RENEW, rig.owner, micros(10), where="sentinel")[0][0] == b"held"
    rig.model.restart(forget=False)
    assert rig.run(scripts.RENEW, rig.owner, micros(10), where="sentinel")[0][0] == b"unknown"


def _restarts_of_several(rig: Rig) -> None:
    """A restart forgets a promotion, so that two seconds are added where there are several servers."""
    rig.model.restart(forget=False)
    rig.now += 4 * SECOND
    rig.run(scripts.BEGIN, where="sentinel")
    rig.recovers_for(RECOVERY - 3 + SWITCH)
    rig.model.restart(forget=False)
    rig.now += 600 * SECOND
    rig.run(scripts.BEGIN, where="cluster")
    rig.recovers_for(RECOVERY + SWITCH)


def _written_by_another_run(rig: Rig) -> None:
    """A lease that another run wrote lasts for a recovery at least, and not much longer than it was."""
    for ttl, seen, held in ((2.0, 0, RECOVERY), (40.0, 0, 40.0), (40.0, 25 * SECOND, 15.0)):
        rig.acquire(ttl=ttl)
        rig.model.restart(forget=False)
        rig.model._started_at -= 600 * SECOND
        rig.run(scripts.BEGIN)
        rig.now += seen
        rig.run(scripts.BEGIN)
        rig.now += 1
        assert not rig.granted()
        rig.now += round(held) * SECOND - 2
        assert not rig.granted()
        rig.now += 2
        assert rig.granted()


def _renewed_by_another_run(rig: Rig) -> None:
    """So does one whose holder is the first to come, for whatever time."""
    rig.acquire(ttl=2.0)
    rig.model.move()
    (answer,) = rig.run(scripts.RENEW, rig.owner, micros(1), where="cluster")
    assert answer[0] == b"held"
    assert answer[3] >= rig.now + round(RECOVERY) * SECOND


def _clock_set_back_under_a_lease(rig: Rig) -> None:
    """The key of a holder that dies then is free after the length of its lease."""
    rig.acquire(ttl=10.0)
    rig.now -= 3600 * SECOND
    assert not rig.granted()
    rig.now += 10 * SECOND - 1
    assert not rig.granted()
    rig.now += 1
    assert rig.granted()


class Slot:
    """A slot that moves between two masters, and what requests with just the lock's key do there."""

    def __init__(self, rig: Rig, ahead: int) -> None:
        self.rig = rig
        self.here = rig.model
        self.there = RedisModel(lambda: rig.now + ahead * SECOND, lambda *_notify: None)
        self.there.run = self.there.replid = 77
        _bucket, self.keys = LAYOUT.of_key("key")

    def take(self) -> None:
        for key in self.keys:
            if key in self.here.values:
                self.there.values[key] = self.here.values.pop(key)
                self.there._expires.pop(key, None)
        self.here, self.there = self.there, self.here

    def alone(self, script: Script, *words: str, where: str = "asking") -> Any:
        args = (self.here.incarnation, micros(RECOVERY), where, *words)
        return self.here.evaluate(self.rig._scripted(script), self.keys[:1], args)

    def whole(self, script: Script, *words: str) -> Any:
        args = (self.here.incarnation, micros(RECOVERY), "cluster", *words)
        return self.here.evaluate(self.rig._scripted(script), self.keys, args)

    def acquire(self, owner: str) -> bytes:
        answer: bytes = self.whole(scripts.ACQUIRE, owner, "p", "", micros(5), "0", "0")[0]
        return answer


def _slots_that_move(rig: Rig) -> None:
    """A lease is kept on its way to and fro, whatever the clocks show; and nothing is granted there."""
    for ahead in (-30, 30):
        rig.model.flush()
        slot = Slot(rig, ahead)
        slot.whole(scripts.BEGIN)
        rig.now += 600 * SECOND
        assert slot.acquire("a") == b"held"
        assert slot.acquire("w") == b"busy"
        for _ in range(2):
            slot.take()
            assert slot.alone(scripts.RENEW, "a", micros(5))[0][0] == b"held"
            assert slot.alone(scripts.RENEW, "w", micros(5))[0][0] == b"gone"
            rig.now += 4 * SECOND
            assert slot.alone(scripts.RENEW, "a", micros(5))[0][0] == b"held"
            assert slot.acquire("w") == b"busy"
            rig.now += 4 * SECOND
            assert slot.alone(scripts.RENEW, "a", micros(5))[0][0] == b"held"
        slot.take()
        rig.now += 4 * SECOND
        assert slot.whole(scripts.RENEW, "a", micros(5))[0][0] == b"held", (
            "at once, where it arrives"
        )
        rig.now += 4 * SECOND
        assert slot.acquire("w") == b"busy"
        assert slot.alone(scripts.RELEASE, "a", "0")[0] == b"released"
        rig.now += 600 * SECOND
        assert slot.acquire("w") == b"held"
        slot.whole(scripts.RELEASE, "w", "0")


def _released_on_the_way(rig: Rig) -> None:
    """A release with the lock's key alone ends the lease and the place, and lets in nobody."""
    slot = Slot(rig, 0)
    slot.whole(scripts.BEGIN)
    rig.now += 600 * SECOND
    slot.acquire("a")
    slot.whole(scripts.ACQUIRE, "b", "p", "", micros(5), "9", "0")
    fence = slot.here.in_common(slot.keys[0])["fence"]
    slot.take()
    assert slot.alone(scripts.RELEASE, "a", "0")[0] == b"released"
    assert slot.alone(scripts.RELEASE, "b", micros(60))[0] == b"gone"
    kept: Any = slot.here.values[slot.keys[0]]
    common = slot.here.in_common(slot.keys[0])
    assert (common["fence"], [*common["voided"]]) == (fence, ["b"])
    assert not [field for field in kept if field.startswith(("lease:", "place:"))]
    assert slot.alone(scripts.RELEASE, "c", micros(60))[0] == b"gone"
    rig.now += 13 * SECOND
    slot.whole(scripts.BEGIN)
    for owner in ("b", "c"):
        assert slot.acquire(owner) == b"gone", "it gave up"
    other = Slot(rig, 0)
    other.here.flush()
    assert other.alone(scripts.RELEASE, "d", micros(60))[0] == b"gone"
    assert set(other.here.values) == {other.keys[0]}, "and nothing else was written"
    rig.now += 20 * SECOND
    assert other.acquire("d") == b"gone", "it gave up where there was no lock"


def _gave_up(rig: Rig) -> None:
    """A request of an owner that has given up is refused for as long as it was asked, and no longer."""
    assert rig.release("late", void=60.0) == b"gone"
    for seconds, answer in ((59, b"gone"), (1, b"held")):
        rig.now += seconds * SECOND
        rig.run(scripts.BEAT, "nobody", micros(1))
        assert rig.run(scripts.ACQUIRE, "late", "p", "", micros(1), "0", "0")[0] == answer
    rig.release("late", void=1.0)
    rig.model.move()  # By the clock of another server, it may have been just now.
    for _ in range(3):
        rig.now += 2 * SECOND
        assert rig.run(scripts.ACQUIRE, "late", "p", "", micros(1), "0", "0")[0] == b"gone"
    rig.now += round(RECOVERY) * SECOND
    assert rig.run(scripts.ACQUIRE, "late", "p", "", micros(1), "0", "0")[0] == b"held"


def _free_with_a_past(rig: Rig) -> None:
    """A free key is not given past a waiter who is left, nor does it forget who gave up on another run."""
    rig.acquire(ttl=5.0)
    holder = rig.owner
    assert rig.acquire(room=9)[0] == b"waiting"
    _bucket, keys = LAYOUT.of_key("key")
    words = (rig.model.incarnation, micros(RECOVERY), "single", holder, "0")
    rig.model.evaluate(rig._scripted(scripts.RELEASE), keys[:1], words)
    assert not rig.granted()
    rig.model.flush()
    rig.now += 600 * SECOND
    rig.release("late", void=60.0)
    rig.model.move()
    rig.run(scripts.BEGIN, where="cluster")
    rig.now += 55 * SECOND
    rig.run(scripts.BEGIN, where="cluster")
    assert rig.granted(where="cluster")
    rig.now += round(RECOVERY - 1) * SECOND
    reply = rig.run(scripts.ACQUIRE, "late", "p", "", micros(1), "0", "0", where="cluster")
    assert reply[0] == b"gone"


def _longer_of_two(rig: Rig) -> None:
    """A lock whose shorter lease was released is kept for as long as the other one lasts."""
    days = 300_000.0
    for owner, ttl in (("short", 10.0), ("long", days)):
        rig.run(scripts.ACQUIRE, owner, "p", "", micros(ttl), "0", "0", "2")
    assert rig.release("short", void=25.0) == b"released"
    _bucket, (lock, *_others) = LAYOUT.of_key("key")
    assert rig.model._expires[lock] >= rig.now + round(days) * SECOND


def _another_format(rig: Rig) -> None:
    """A script that finds another layout says so, and changes nothing."""
    rig.model.values[LAYOUT.of_bucket(0)[2]] = {"server": packed("0")}
    before = rig.model.snapshot()
    assert rig.acquire() == b"WEBLOCKFORMAT 0"
    assert rig.model.snapshot() == before


CASES: Final = (
    *(_released_in_time, _lapsed_places, _fences_after_a_quarantine),
    *(_losing_leases, _truncated_uptimes, _clocks_set_back, _clock_set_back_meanwhile),
    *(_coming_back, _other_names, _off, _unequal_ttls, _not_renewed, _who_was_told),
    *(_until_all_have_heard, _restarts_of_several, _written_by_another_run),
    *(
        _renewed_by_another_run,
        _clock_set_back_under_a_lease,
        _slots_that_move,
        _released_on_the_way,
        _another_format,
        _gave_up,
        _free_with_a_past,
        _longer_of_two,
    ),
    *(_longest_ends_late, _full_memory, _free_keys, _fences_ahead, _fences_of_free_keys),
)
