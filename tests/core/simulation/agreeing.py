"""What the scripts must do so that several servers agree: tickets, fences, and giving back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from weblock._core.table import KeyState
from weblock.stores.redis import scripts
from weblock.stores.redis.calls import Layout, look_of, micros
from weblock.stores.redis.scripts import Script

from .redis_model import RedisModel

LAYOUT = Layout("agreeing", 1)
SECOND: Final = 1_000_000
HANDOFF: Final = 1.5
PLACE: Final = 4.0
RECOVERY: Final = 10.0


class Rig:
    """One server of several, a clock, and one key."""

    def __init__(self, scripted: Callable[[Script], Script], recovery: float = 0.0) -> None:
        self.now = 1_790_000_000 * SECOND
        self.notified: list[tuple[str, str]] = []
        self.model = RedisModel(
            lambda: self.now, lambda *notification: self.notified.append(notification)
        )
        self._recovery = recovery
        self._scripted = scripted

    def acquire(
        self, owner: str, ticket: int, ttl: float = 10.0, *, room: int = 9, process: str = "p"
    ) -> Any:
        return self.run(scripts.ACQUIRE, owner, process, "l", micros(ttl), str(room), str(ticket))

    def wait_behind(self, owner: str, ticket: int, until: int, ttl: float = 10.0) -> Any:
        return self.run(scripts.WAIT_BEHIND, owner, "p", "l", micros(ttl), str(ticket), str(until))

    def raise_fence(self, owner: str, fence: int) -> Any:
        return self.run(scripts.RAISE_FENCE, owner, str(fence))

    def release(self, owner: str) -> None:
        self.run(scripts.RELEASE, owner, "0")

    def refresh(self, owner: str, ttl: float = 10.0) -> Any:
        return self.run(scripts.BEAT, owner, micros(ttl))[0]

    def renew(self, owner: str, ttl: float = 10.0) -> Any:
        return self.run(scripts.RENEW, owner, micros(ttl))[0]

    def fence_of(self, owner: str, ticket: int) -> int:
        """The fence that an owner gets, who gives the key back at once."""
        reply = self.acquire(owner, ticket)
        assert reply[0] == b"held"
        self.release(owner)
        return int(reply[2])

    def seen(self) -> Any:
        return look_of(self.run(scripts.LOOK)).state

    def waiters(self) -> list[str]:
        return [place.claim.owner for place in self.seen().queue]

    def run(self, script: Script, *words: str) -> Any:
        _bucket, keys = LAYOUT.of_key("key")
        args = (self.model.incarnation, micros(self._recovery), "single", *words)
        return self.model.evaluate(self._scripted(script), keys, args)


def _fences(rig: Rig) -> None:
    """They are tickets, where nobody had a larger one, and no clock is far ahead of the server's."""
    rig.acquire("warm", rig.now)  # The first ever is as large as the server's time.
    rig.release("warm")
    rig.now += SECOND
    ticket = rig.now - 5
    assert rig.fence_of("a", ticket) == ticket
    assert rig.fence_of("b", ticket - 3) == ticket + 1
    assert rig.fence_of("c", ticket) == ticket + 2
    assert rig.fence_of("d", rig.now + SECOND) == rig.now + SECOND
    rig.now += 5 * SECOND
    assert rig.fence_of("e", rig.now + SECOND + 1) == rig.now + SECOND
    rig.now += 5 * SECOND
    assert rig.fence_of("f", rig.now + 3600 * SECOND) == rig.now + SECOND


def _fences_after_a_loss(rig: Rig) -> None:
    """They are above all that the server may have given before."""
    rig.fence_of("a", rig.now)
    old = rig.now - 60 * SECOND
    rig.model.restart(forget=True)
    assert rig.acquire("b", old)[0] == b"waiting"
    recovered = rig.now + round(RECOVERY * SECOND)
    rig.now = recovered + 7
    reply = rig.refresh("b") if rig.waiters() else rig.acquire("b", old)
    reply = reply if reply[0] == b"held" else rig.acquire("b", old)
    assert reply[0] == b"held"
    assert int(reply[2]) == recovered
    rig.release("b")
    assert rig.fence_of("c", rig.now) == rig.now


def _queue(rig: Rig) -> None:
    """It is in the order of tickets, and of those who have the same, in one that all servers have."""
    rig.acquire("h", 1)
    for owner, ticket in (("c", 30), ("a", 20), ("b", 20), ("d", 10)):
        rig.acquire(owner, ticket)
    assert rig.waiters() == ["d", "a", "b", "c"]
    rig.release("h")
    assert rig.notified[-1][1].startswith("d ")


def _silent_processes(rig: Rig) -> None:
    """A process that does not confirm loses its places; one that does keeps those of its others."""
    for ticket, process in enumerate("hppqpq", start=1):
        rig.acquire(f"{process}{ticket}", ticket, process=process)
    rig.release("h1")
    assert rig.refresh("p2", 1.6)[4] == 1
    rig.now += 2 * SECOND
    assert rig.refresh("q4")[0] == b"waiting"  # So the key goes to p3, which has not confirmed.
    assert [rig.refresh(owner)[0] for owner in ("p5", "q6")] == [b"waiting"] * 2
    rig.now += 2 * SECOND
    assert rig.refresh("q4")[0] == b"held"
    assert rig.waiters() == ["q6"]


def _giving_back(rig: Rig) -> None:
    """Who came first gets it, for as long as a hand-over lasts; who gave it back comes after."""
    until = rig.acquire("late", 50)[3]
    rig.acquire("later", 60)
    rig.acquire("early", 40)
    rig.now += 7
    answer = rig.wait_behind("late", 50, until)
    assert answer[:3] == [b"waiting", rig.now, 0]
    state = rig.seen()
    assert state.grant.claim.owner == "early"
    assert not state.grant.confirmed
    assert round(state.grant.until * SECOND) == rig.now + round(HANDOFF * SECOND)
    assert rig.notified[-1][1].startswith("early ")
    assert rig.waiters() == ["late", "later"]
    place = state.queue[0]
    assert (place.claim.process, place.claim.label, place.claim.ttl) == ("p", "l", 10.0)
    assert round(place.until * SECOND) == rig.now + round(PLACE * SECOND)
    assert rig.wait_behind("late", 50, until)[0] == b"waiting"  # Again, which changes nothing.
    assert rig.waiters() == ["late", "later"]
    assert rig.wait_behind("stranger", 1, until)[0] == b"gone"


def _what_gives_nothing_back(rig: Rig) -> None:
    """One that is alone, or the first, or the first of those who still wait, keeps what it has."""
    until = rig.acquire("a", 50)[3]
    for owner, ticket in ((None, 0), ("later", 51), ("z", 50)):
        if owner:
            rig.acquire(owner, ticket)
        assert rig.wait_behind("a", 50, until)[0] == b"held"
        assert "a" not in rig.waiters()
    rig.acquire("early", 40)
    rig.now += round(PLACE * SECOND)
    assert rig.refresh("a")[0] == b"held"
    until = rig.refresh("a")[3]
    assert rig.wait_behind("a", 50, until)[0] == b"held"  # They have gone, by now.
    assert rig.waiters() == []


def _what_is_late(rig: Rig) -> None:
    """Who has asked again since counts on the answer: nothing is given back."""
    until = rig.acquire("late", 50)[3]
    rig.acquire("early", 40)
    rig.now += 1
    assert rig.acquire("late", 50)[0] == b"held"
    assert rig.wait_behind("late", 50, until)[0] == b"held"
    assert rig.waiters() == ["early"]
    rig.now += 60 * SECOND
    assert rig.wait_behind("late", 50, until)[0] == b"gone"  # It has ended: nobody else came.


def _raising(rig: Rig) -> None:
    """A fence is raised for its owner, never lowered, and those that come later are above it."""
    fence = int(rig.acquire("a", 50)[2])
    assert rig.raise_fence("b", fence + 9) == [b"gone", rig.now]
    assert rig.raise_fence("a", fence + 9)[2] == fence + 9
    assert rig.raise_fence("a", fence + 5)[2] == fence + 9
    assert rig.seen().grant.fence == fence + 9
    rig.release("a")
    assert rig.fence_of("b", 50) == fence + 10
    rig.acquire("c", 50)
    rig.now += 10 * SECOND
    assert rig.raise_fence("c", fence + 99) == [b"gone", rig.now]
    assert rig.seen().fence == fence + 11


def _recovering(rig: Rig) -> None:
    """One that has its lease from before a restart renews it, but does not count it as a new vote."""
    rig.acquire("holder", rig.now)
    rig.now += SECOND
    rig.model.restart(forget=False)
    assert rig.renew("holder")[0] == b"held"
    assert rig.acquire("holder", rig.now)[0] == b"waiting"
    assert rig.acquire("other", rig.now, room=0)[0] == b"busy"
    rig.now += round(RECOVERY * SECOND)
    assert rig.acquire("holder", rig.now)[0] == b"held"


def _given_up(rig: Rig) -> None:
    """A lease that does not count as a vote can be given back."""
    rig.acquire("holder", rig.now)
    rig.model.restart(forget=False)
    rig.now += 5 * SECOND
    assert rig.renew("holder")[0] == b"held"
    assert rig.acquire("holder", rig.now)[0] == b"waiting"
    rig.release("holder")
    rig.now += 6 * SECOND
    assert rig.acquire("other", rig.now, room=0)[0] == b"held"
    assert rig.waiters() == []


def _recovered(rig: Rig) -> None:
    """From then on it votes again."""
    rig.acquire("holder", rig.now)
    rig.model.restart(forget=False)
    assert rig.acquire("holder", 0)[0] == b"waiting"
    rig.now += round(RECOVERY * SECOND) - 1
    assert rig.renew("holder")[0] == b"held"
    rig.now += 1
    assert rig.acquire("holder", rig.now, room=0)[0] == b"held"


def _begun_ahead(rig: Rig) -> None:
    """A server that is begun recovers from then on, and not from when it is asked first."""
    rig.fence_of("a", rig.now)
    rig.model.flush()
    rig.run(scripts.BEGIN)
    recovered = rig.now + round(RECOVERY * SECOND)
    rig.now += 4 * SECOND
    rig.run(scripts.BEGIN)
    assert rig.acquire("a", rig.now, room=0)[3] == recovered
    rig.now = recovered
    assert rig.acquire("a", rig.now)[0] == b"held"


def _looking(rig: Rig) -> None:
    """A look tells everything, and changes nothing."""
    assert rig.seen() == KeyState()
    fence = int(rig.acquire("a", 50)[2])
    rig.acquire("b", 60)
    for _ in range(2):
        state = rig.seen()
        grant = state.grant
        assert (state.fence, grant.fence, grant.claim.owner) == (fence, fence, "a")
        assert (grant.claim.process, grant.claim.label, grant.confirmed) == ("p", "l", True)
        assert round(grant.since * SECOND) == 1_790_000_000 * SECOND
        assert round(grant.until * SECOND) == 1_790_000_010 * SECOND
        assert [place.claim.owner for place in state.queue] == ["b"]
        rig.now += SECOND
    rig.now += 60 * SECOND
    assert rig.seen()._replace(fence=0) == KeyState()
    assert rig.run(scripts.LOOK)[2][0][0] == b"a"  # As it stands there: nobody has passed it on.


CASES: Final = {
    **dict.fromkeys((_fences, _queue, _giving_back, _what_gives_nothing_back), 0.0),
    _silent_processes: 0.0,
    **dict.fromkeys((_what_is_late, _raising, _looking), 0.0),
    **dict.fromkeys(
        (_begun_ahead, _given_up, _fences_after_a_loss, _recovering, _recovered), RECOVERY
    ),
}
"""Each, and for how long its server recovers, in seconds."""
