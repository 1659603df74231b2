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

    def acquire(
        self, ttl: float = 1.0, *, room: int = 0, recovery: float = RECOVERY, peers: str = ""
    ) -> Any:
        self._owners += 1
        owner = f"owner{self._owners}"
        words = (owner, "p", "", micros(ttl), str(room), "0")
        return self.run(scripts.ACQUIRE, *words, recovery=recovery, peers=peers)

    def refresh(self, *beats: tuple[str, float]) -> Any:
        words = [word for owner, ttl in beats for word in (owner, micros(ttl))]
        return self.run(scripts.REFRESH, *words)

    def run(self, script: Script, *words: str, recovery: float = RECOVERY, peers: str = "") -> Any:
        _bucket, keys = LAYOUT.of_key("key")
        names = (*keys, LAYOUT.voided("key", words[0]))
        args = (str(self.model.run), micros(recovery), peers, *words)
        return self.model.evaluate(self._scripted(script), names, args)

    def granted(self, **how: Any) -> bool:
        """Whether somebody gets the key, who gives it back at once."""
        reply = self.acquire(**how)
        if reply[0] == b"held":
            self.run(scripts.RELEASE, f"owner{self._owners}", "0")
        return bool(reply[0] == b"held")

    def recovers_for(self, seconds: float) -> None:
        """Nothing is granted for just so long; who asks is told until when, and may wait."""
        status, _now, until, _waiters = self.acquire()
        assert status == b"busy"
        assert until == self.now + seconds * SECOND
        assert self.acquire(room=1) == [b"waiting", self.now, 0, until]
        waiter = f"owner{self._owners}"
        while self.now < until:
            assert not self.granted()
            self.now = min(self.now + SECOND, until - 1 if self.now < until - 1 else until)
            ((status, *_),) = self.refresh((waiter, 1.0))
            assert status == (b"waiting" if self.now < until else b"held")
        self.run(scripts.RELEASE, waiter, "0")


def recovers(scripted: Callable[[Script], Script]) -> None:
    """Raises ``AssertionError`` if the scripts do not recover as they should."""
    rig = Rig(scripted)
    assert rig.granted(), "a server that has been up for long is granted on at once"

    rig.model.flush()
    rig.recovers_for(RECOVERY)
    rig.model.promote()
    rig.recovers_for(RECOVERY + SWITCH)
    rig.now += 60 * SECOND
    assert rig.granted(), "what was replaced once has recovered for good"

    rig.model.restart(forget=True)
    rig.now += 4 * SECOND
    rig.recovers_for(RECOVERY - 4)
    rig.model.restart(forget=False)
    rig.now += 4 * SECOND
    rig.recovers_for(RECOVERY - 4)
    rig.model.restart(forget=False)
    rig.now += 20 * SECOND
    assert rig.granted(), "a restart is over when the server has been up for long"

    former = str(rig.model.run)
    rig.model.promote()
    assert rig.granted(peers=f"other,{former}"), "a master that lives has handed its keys over"
    rig.model.promote()
    assert rig.granted(recovery=0.0), "recovery is off"

    _longer_leases(Rig(scripted))


def _longer_leases(rig: Rig) -> None:
    """The longest ttl that was granted or renewed counts, also if it is longer than expected."""
    assert rig.granted(ttl=30.0)
    rig.model.promote()
    rig.recovers_for(30.0 + SWITCH)
    rig.acquire(ttl=20.0)
    rig.refresh(("stranger", 1.0), ("another", 40.0), ("third", 2.0))
    rig.model.promote()
    rig.recovers_for(40.0 + SWITCH)
