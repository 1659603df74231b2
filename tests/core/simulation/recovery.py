"""What the scripts must do about each way of losing leases, one after the other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from weblock.stores.redis import scripts
from weblock.stores.redis.calls import Layout, micros
from weblock.stores.redis.scripts import Script

from .redis_model import RedisModel

LAYOUT = Layout("recovery", 1)
SECOND: Final = 1_000_000
RECOVERY: Final = 10.0
SWITCH: Final = 2.0
"""Seconds more that a server waits which has taken another's place."""


class Rig:
    """One server, a clock, and one key that everybody wants."""

    def __init__(self, scripted: Callable[[Script], Script]) -> None:
        self.now = 1_790_000_000 * SECOND
        self.model = RedisModel(lambda: self.now, lambda *_ring: None)
        self._scripted = scripted
        self._owners = 0

    def acquire(self, ttl: float = 1.0, *, room: int = 0, ticket: int = 0, **caller: Any) -> Any:
        self._owners += 1
        words = (self.owner, "p", "", micros(ttl), str(room), str(ticket))
        return self.run(scripts.ACQUIRE, *words, **caller)

    def refresh(self, *beats: tuple[str, float]) -> Any:
        words = [word for owner, ttl in beats for word in (owner, micros(ttl))]
        return self.run(scripts.REFRESH, *words)

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
        peers: str = "",
        known_as: str = "",
    ) -> Any:
        """``known_as`` is what a connection that was made earlier takes the server for."""
        _bucket, keys = LAYOUT.of_key(key)
        names = (*keys, LAYOUT.voided(0, words[0] if words else ""))
        args = (known_as or self.model.incarnation, micros(recovery), peers, *words)
        return self.model.evaluate(self._scripted(script), names, args)

    def granted(self, **how: Any) -> bool:
        """Whether somebody gets the key, who gives it back at once."""
        reply = self.acquire(**how)
        if reply[0] == b"held":
            how.pop("ttl", None)
            assert self.release(**how) == b"released"
        return bool(reply[0] == b"held")

    def recovers_for(self, seconds: float) -> None:
        """Nothing is granted for just so long; who asks is told until when, and may wait."""
        status, _now, until, _waiters, because, *holders = self.acquire()
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
    rig.recovers_for(RECOVERY - 1)
    rig.now += 5 * SECOND
    assert rig.granted()


def _clock_set_back_meanwhile(rig: Rig) -> None:
    """Fences go on where they were, also if the clock is set back while the server is down."""
    assert rig.granted()
    latest = rig.now
    rig.model.restart(forget=False)
    rig.now -= 3600 * SECOND
    fence = int(rig.acquire(key="another", recovery=0.0)[2])
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
    for _ in range(100):
        rig.model.rename()
        assert rig.granted()
        rig.now += 3600 * SECOND
    epoch = rig.model.values[LAYOUT.epoch(0)]
    assert isinstance(epoch, dict)
    assert len(epoch["run"]) < 600


def _off(rig: Rig) -> None:
    """One who does not want to wait need not; others wait as if it had not been there."""
    rig.model.flush()
    assert rig.granted(recovery=0.0)
    rig.recovers_for(RECOVERY)
    rig.model.flush()
    assert rig.granted(recovery=0.0)
    assert rig.acquire(recovery=6.0)[2] == rig.now + 6 * SECOND
    rig.recovers_for(RECOVERY)  # Of several, the longest counts for all.
    assert rig.granted(recovery=6.0)


def _off_and_waiting(rig: Rig) -> None:
    """Who does not care gets the key from another such, past those who do."""
    rig.model.flush()
    rig.acquire(recovery=0.0)
    holder = rig.owner
    rig.acquire(room=9)
    careful = rig.owner
    rig.acquire(room=9, recovery=0.0)
    careless = rig.owner
    assert rig.release(holder, recovery=0.0) == b"released"
    assert rig.run(scripts.REFRESH, careless, micros(1), recovery=0.0)[0][0] == b"held"
    assert rig.release(careless, recovery=0.0) == b"released"
    assert rig.refresh((careful, 1.0))[0][0] == b"waiting"
    for _ in range(round(RECOVERY)):
        rig.now += SECOND
        ((status, *_),) = rig.refresh((careful, 1.0))
    assert status == b"held"


def _longer_leases(rig: Rig) -> None:
    """How long leases are of late counts, also if that is longer than expected."""
    assert rig.granted(ttl=30.0)
    rig.model.promote()
    rig.recovers_for(30.0 + SWITCH)
    rig.acquire(ttl=20.0)
    rig.refresh((rig.owner, 40.0))
    rig.release()
    rig.model.promote()
    rig.recovers_for(40.0 + SWITCH)
    rig.now += 60 * SECOND
    for _ in range(2):  # None of those can be held any more.
        assert rig.granted(ttl=5.0)
        rig.model.promote()
        rig.recovers_for(RECOVERY + SWITCH)
        rig.now += 60 * SECOND


def _very_long_leases(rig: Rig) -> None:
    """One of a day counts while it is held, and not when it was given back, taken, or has ended."""
    day = 86_400.0
    assert rig.granted(ttl=day)
    assert rig.granted(ttl=5.0)
    rig.model.promote()
    rig.recovers_for(RECOVERY + SWITCH)

    rig.acquire(ttl=day)
    rig.run(scripts.FORCE_RELEASE)
    rig.model.promote()
    rig.recovers_for(RECOVERY + SWITCH)

    rig.acquire(ttl=day)
    rig.run(scripts.TRANSFER, rig.owner, "heir", "p", "l", micros(5.0))
    assert rig.release("heir") == b"released"
    rig.model.promote()
    rig.recovers_for(RECOVERY + SWITCH)

    rig.acquire(ttl=100.0)
    rig.now += 101 * SECOND
    rig.model.promote()
    rig.recovers_for(RECOVERY + SWITCH)

    rig.acquire(ttl=5.0)
    rig.refresh((rig.owner, day))
    rig.model.promote()
    assert rig.acquire(key="another")[2] == rig.now + round((day + SWITCH) * SECOND)


def _many_long_leases(rig: Rig) -> None:
    """However many there are, the longest counts, and what is remembered of them is little."""
    owners = []
    for number in range(40):
        rig.acquire(ttl=1000.0 - number, key=f"key {number}")
        owners.append(rig.owner)
    epoch = rig.model.values[LAYOUT.epoch(0)]
    assert isinstance(epoch, dict)
    assert len(epoch["long"]) < 1000
    rig.release(owners[-1], key="key 39")
    rig.model.promote()
    assert rig.acquire()[2] == rig.now + round((1000 + SWITCH) * SECOND)


def _longest_ends_late(rig: Rig) -> None:
    """Who releases in a quarantine leaves the key to those who wait, when it is over."""
    rig.acquire(ttl=10.0)
    holder = rig.owner
    rig.model.restart(forget=False)
    until = rig.acquire(room=1)[3]
    waiter = rig.owner
    rig.now += 5 * SECOND
    assert rig.refresh((holder, 10.0), (waiter, 1.0))[0][0] == b"held"
    rig.now += SECOND
    assert rig.release(holder) == b"released"
    while rig.now < until:
        assert rig.refresh((waiter, 1.0))[0][0] == b"waiting"
        rig.now = min(rig.now + SECOND, until)
    assert rig.refresh((waiter, 1.0))[0][0] == b"held"


def _asked_first(rig: Rig) -> None:
    """Of those who ask first, the longest ttl counts, and not those of who comes later."""
    rig.model.flush()
    until = rig.acquire(ttl=20.0)[2]
    assert rig.acquire(ttl=200.0)[2] == until
    rig.now += SECOND + 1
    assert rig.acquire(ttl=200.0)[2] == until
    rig.model.flush()
    rig.refresh(("a", 1.0), ("b", 40.0), ("c", 1.0))
    assert rig.acquire()[2] == rig.now + 40 * SECOND


def _asked_for(rig: Rig) -> None:
    """The ttl of who asks first counts as well, up to a few minutes."""
    for ttl, lasting in ((20.0, 20.0), (200.0, 200.0), (86_400.0, 300.0)):
        rig.model.flush()
        assert rig.acquire(ttl=ttl)[2] == rig.now + round(lasting * SECOND)
        rig.recovers_for(lasting)
    rig.model.flush()
    rig.recovers_for(RECOVERY)
    rig.now += 2 * SECOND
    assert rig.granted(ttl=86_400.0), "it has recovered, for leases of any length"
    rig.model.flush()
    assert rig.granted(ttl=20.0, recovery=0.0)
    rig.recovers_for(RECOVERY)


def _peer(run: str, clock: float, *, unsure: float = 0.0) -> str:
    early, late = round((clock - unsure) * SECOND), round((clock + unsure) * SECOND)
    return f"{run.partition(':')[0]}:{early}:{late}"


def _handed_over(rig: Rig) -> None:
    """A master that lives has handed its keys over: nothing was lost."""
    assert rig.granted()
    former = rig.model.incarnation
    rig.model.promote()
    clocks = f"other:5:7,{_peer(former, 70.0)},{_peer(rig.model.incarnation, 70.0)}"
    assert rig.granted(peers=clocks)
    assert rig.granted(), "it is known from now on"
    former = rig.model.incarnation
    rig.model.promote()
    assert not rig.granted(peers=_peer(former, 70.0)), "what its own clock shows is not known"


def _clocks_that_differ(rig: Rig) -> None:
    """Leases by a clock that was behind are held for longer, by as much; and they can be renewed."""
    rig.acquire(ttl=20.0)
    holder = rig.owner
    former = rig.model.incarnation
    rig.model.promote()
    rig.now += 30 * SECOND  # So much is the new one's clock ahead.
    new = rig.model.incarnation
    clocks = f"{_peer(former, 100.0, unsure=0.25)},{_peer(new, 130.0, unsure=0.25)}"
    rig.now += 19 * SECOND
    assert not rig.granted(peers=clocks)
    rig.now += SECOND
    assert not rig.granted()
    assert rig.granted(key="another"), "keys that nobody has are not held"
    rig.now += SECOND // 2
    assert rig.granted()

    rig.acquire(ttl=20.0)
    holder, former = rig.owner, new
    rig.model.promote()
    rig.now += 31 * SECOND
    new = rig.model.incarnation
    clocks = f"{_peer(former, 100.0)},{_peer(new, 131.0)}"
    assert not rig.granted(peers=clocks)
    assert rig.refresh((holder, 20.0))[0][0] == b"held"
    rig.now += 19 * SECOND
    assert rig.release(holder) == b"released"
    assert rig.granted()
    rig.now += 40 * SECOND
    rig.acquire(ttl=2.0)
    rig.now += 2 * SECOND
    assert rig.granted(), "when all those have ended, its own clock counts alone"


def _clocks_that_differ_again(rig: Rig) -> None:
    """Keys that move twice are held for both differences, unless those of the first have ended."""
    for pause, held in ((5, 15 + 7), (20, 0)):
        rig.acquire(ttl=20.0)
        for ahead in (4, 3):
            former = rig.model.incarnation
            rig.model.promote()
            rig.now += ahead * SECOND
            clocks = f"{_peer(former, 100.0)},{_peer(rig.model.incarnation, 100.0 + ahead)}"
            rig.granted(key="another", peers=clocks)
            rig.now += pause * SECOND if ahead == 4 else 0
        rig.now += max(0, held - 7) * SECOND - (1 if held else 0)
        assert rig.granted(ttl=5.0) == (not held)
        rig.now += 1
        assert rig.granted(ttl=5.0)
        rig.now += 100 * SECOND


def _renewed_elsewhere(rig: Rig) -> None:
    """A lease that a master renewed after it had handed over the epoch lasts longer by its clock.

    So it was written by that master, as ``alone.lua`` does it; what this one writes is its own.
    """
    rig.acquire(ttl=20.0)
    holder, former = rig.owner, rig.model.incarnation
    rig.model.promote()
    rig.now += 30 * SECOND
    new = rig.model.incarnation
    rig.granted(key="another", peers=f"{_peer(former, 100.0)},{_peer(new, 130.0)}")
    lock: Any = rig.model.values[LAYOUT.of_key("key")[1][0]]
    rig.now += 60 * SECOND
    ends = rig.now - 30 * SECOND + 5 * SECOND  # Renewed just now, there, for 5 s.
    for stamped, by, held in ((former, ends, True), (former, ends + 1, False), (new, ends, False)):
        lock |= {"owner": holder, "until": str(ends), "stamp": f"{stamped.partition(':')[0]} {by}"}
        snapshot = rig.model.snapshot()
        rig.now += 5 * SECOND - 1
        assert rig.granted() == (not held)
        rig.now += 1
        assert rig.granted()
        rig.now -= 5 * SECOND
        rig.model.roll_back(snapshot)
        lock = rig.model.values[LAYOUT.of_key("key")[1][0]]
    lock |= {"owner": holder, "until": str(ends), "stamp": f"{former.partition(':')[0]} {ends}"}
    rig.model.restart(forget=False)
    assert rig.acquire(recovery=0.0)[0] == b"held", "what began anew knows of no other clock"


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


def _nobody_told(rig: Rig) -> None:
    """Where nobody can say how the clocks differ, what has moved here counts as lost just now."""
    assert rig.granted(ttl=5.0)
    rig.model.move()
    rig.recovers_for(RECOVERY)


def _standing_back(rig: Rig) -> None:
    """Nobody is let in while the server recovers, also not by one who stands back."""
    until = rig.acquire(ttl=60.0, ticket=50)[3]
    late = rig.owner
    rig.acquire(room=9, ticket=40)
    early = rig.owner
    rig.model.restart(forget=False)
    words = ("p", "", micros(60), "50", str(until))
    rig.run(scripts.STAND_BACK, late, *words)
    for owner in (late, early):
        assert rig.refresh((owner, 1.0))[0][0] != b"held" or owner == late
    rig.now += round(RECOVERY * SECOND) - 1
    assert rig.refresh((early, 1.0))[0][0] != b"held"


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


def _released_in_time(rig: Rig) -> None:
    """A lease that has ended is not released, from the very microsecond of its end."""
    rig.acquire(ttl=1.0)
    rig.now += SECOND - 1
    assert rig.release() == b"released"
    rig.acquire(ttl=1.0)
    rig.now += SECOND
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
    recovered = rig.acquire()[2]
    rig.now = recovered
    for key in ("first", "second"):
        assert int(rig.acquire(key=key, ticket=recovered - 5 * SECOND)[2]) >= recovered


CASES: Final = (
    _fences_after_a_quarantine,
    *(_released_in_time, _lapsed_places),
    *(_losing_leases, _truncated_uptimes, _clocks_set_back, _clock_set_back_meanwhile),
    *(_coming_back, _other_names),
    *(_off, _off_and_waiting, _longer_leases, _very_long_leases, _many_long_leases, _asked_for),
    *(_handed_over, _clocks_that_differ, _nobody_told, _standing_back, _free_keys, _fences_ahead),
    *(_longest_ends_late, _asked_first, _clocks_that_differ_again, _full_memory),
    _renewed_elsewhere,
)
