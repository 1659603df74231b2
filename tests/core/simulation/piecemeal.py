"""What the scripts must do where a slot is half-moved: the epoch on one server, the lock on another."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from weblock._core.table import SHARED
from weblock.stores.redis import scripts
from weblock.stores.redis.calls import Call, Layout, look_of, micros
from weblock.stores.redis.scripts import Script

from .redis_model import RedisModel

LAYOUT = Layout("piecemeal", 1)
SECOND: Final = 1_000_000
DAY: Final = 24 * 3600.0
AHEAD: Final = 30 * SECOND
"""Microseconds by which the target's clock is ahead of the source's."""


class Rig:
    """Two servers with a slot between them, and one key."""

    def __init__(self, scripted: Callable[[Script], Script], recovery: float = 0.0) -> None:
        self.now = 1_790_000_000 * SECOND
        self.ahead = AHEAD
        self.rung: list[str] = []
        self.source = RedisModel(lambda: self.now, self._ring)
        self.target = RedisModel(lambda: self.now + self.ahead, self._ring)
        self.source.run, self.target.run = 1, 2
        self._recovery = micros(recovery)
        self.scripted = scripted
        _bucket, self.keys = LAYOUT.of_key("key")

    def told(self, *asked: str) -> list[Any]:
        """What the epoch says, at the source; ``asked`` are owners and what they ask for."""
        args = ("1", self._recovery, "", *asked)
        told: list[Any] = self.source.evaluate(self.scripted(scripts.BEGIN), self.keys[2:], args)
        return told

    def epoch(self) -> Any:
        return self.source.values[self.keys[2]]

    def whole(self, script: Script, *words: str) -> Any:
        """Runs a script at the source, where all keys are."""
        names = (*self.keys, LAYOUT.voided(0, words[0]))
        args = ("1", self._recovery, "", *words)
        return self.source.evaluate(self.scripted(script), names, args)

    def alone(self, script: Script, *words: str, facts: tuple[str, ...] = ()) -> Any:
        """Runs it at the target, where just the lock is."""
        facts = facts or ("0", "0", "0", "0", "")
        call = Call(script, 0, self.keys, words).alone(str(self.now), facts)
        args = ("2", self._recovery, "", *call.args)
        return self.target.evaluate(self.scripted(scripts.ALONE), call.keys, args)

    def acquire(self, owner: str, *facts: str, room: str = "9") -> Any:
        words = (owner, "p", "l", micros(10), room, "0")
        return self.alone(scripts.ACQUIRE, *words, facts=facts)

    def move_lock(self) -> None:
        self.target.values[self.keys[0]] = self.source.values.pop(self.keys[0])

    def expires_in(self) -> float:
        """Seconds until the lock's key expires at the target."""
        left: float = self.target._expires[self.keys[0]] - self.now - self.ahead
        return left / SECOND

    def _ring(self, _channel: str, payload: str) -> None:
        self.rung.append(payload.split(" ", maxsplit=1)[0])


def _asking_the_epoch(rig: Rig) -> None:
    """It says how long the quarantine lasts, and foresees leases of all who ask."""
    rig.source.flush()
    told = rig.told("a", micros(2), "b", micros(30), "c", micros(5), "d", micros(20))
    quarantine = rig.now + 30 * SECOND
    left = micros(30).encode()
    assert told[:6] == [b"recovering", rig.now, quarantine, left, left, told[5]]
    assert told[6:] == [b"0", b"it may have been emptied"]
    assert rig.epoch()["longest"] == micros(30)
    rig.told("a", micros(2), "b", micros(3), "e", micros(40))
    assert rig.epoch()["longest"] == micros(40)
    rig.told("a", micros(70), "b", micros(80), "c", micros(90))
    assert {word.split(" ")[0] for word in rig.epoch()["long"].split(";")} == {"a", "b", "c", ""}
    rig.source.values[rig.keys[2]].update(fence="12", ahead="7", level=f"{rig.now + 1}")  # type: ignore[union-attr,call-overload,arg-type]
    assert rig.told()[5:7] == [b"12", b"7"]
    rig.now += 1
    assert rig.told()[5:7] == [b"12", b"0"]


def _in_a_quarantine(rig: Rig) -> None:
    """Nothing is granted, nor handed to one who cares, until it ends."""
    left, here = micros(4), rig.now + rig.ahead
    facts = (left, left, "0", "0", "because")
    waiting = [b"waiting", here, 0, here + 4 * SECOND, b"because", b"", 0]
    assert rig.acquire("a", *facts) == waiting
    busy = [b"busy", here, here + 4 * SECOND, 1, b"because", b"", 0]
    assert rig.acquire("b", *facts, room="0") == busy
    assert rig.acquire("b", *facts, room="1") == busy
    # One who does not care about it passes over those who do.
    assert rig.acquire("b", "-1", left, "0", "0", "because")[0] == b"held"
    assert not rig.rung
    assert rig.alone(scripts.RELEASE, "b", "0", facts=("-1", left, "0", "0", ""))[0] == b"released"
    assert not rig.rung
    rig.now += 1
    assert (
        rig.alone(scripts.REFRESH, "a", micros(10), facts=("0", "0", "0", "0", ""))[0][0] == b"held"
    )
    assert rig.rung == ["a"]


def _by_another_clock(rig: Rig) -> None:
    """A lease that was granted by the source's clock is moved to the target's, once."""
    _moved_to_another_clock(rig)


def _by_a_clock_behind(rig: Rig) -> None:
    """So it is where the target's clock is behind."""
    rig.ahead = -AHEAD
    _moved_to_another_clock(rig)


def _moved_to_another_clock(rig: Rig) -> None:
    held = rig.whole(scripts.ACQUIRE, "a", "p", "l", micros(10), "9", "0")
    rig.move_lock()
    rig.now += 3 * SECOND
    for _ in range(2):
        answer = rig.acquire("b", room="0")
        assert answer[0] == b"busy"
        assert answer[2] == held[3] + rig.ahead
        rig.now += 3 * SECOND
    assert rig.alone(scripts.REFRESH, "a", micros(10))[0][3] == rig.now + rig.ahead + 10 * SECOND
    rig.now += 10 * SECOND - 1
    assert rig.acquire("b", room="0")[0] == b"busy"
    rig.now += 1
    assert rig.acquire("b", room="0")[0] == b"held"


def _several_by_another_clock(rig: Rig) -> None:
    """Of several leases, each is moved to the target's clock once, also if just one of them is renewed."""
    words = ("p", "l", micros(10), "9", "0", f"{SHARED}")
    held = rig.whole(scripts.ACQUIRE, "a", *words)
    rig.whole(scripts.ACQUIRE, "b", *words)
    rig.move_lock()
    for _ in range(2):
        rig.now += SECOND
        assert rig.acquire("w", room="0")[2] == held[3] + rig.ahead
        here = rig.now + rig.ahead
        assert rig.alone(scripts.REFRESH, "b", micros(10))[0][3] == here + 10 * SECOND
    assert rig.alone(scripts.ACQUIRE, "c", *words)[0] == b"held"
    assert rig.expires_in() == DAY + 10
    rig.now = held[3] - 1
    assert rig.acquire("w", room="0")[2] == held[3] + rig.ahead
    assert rig.alone(scripts.TRANSFER, "a", "d", "p", "l", micros(1))[0] == b"held"
    assert rig.alone(scripts.FORCE_RELEASE)[0] == b"released"
    assert rig.acquire("w", room="0")[0] == b"held"


def _let_in_together(rig: Rig) -> None:
    """All that fit are rung, in order; whoever gives up the writer's place lets in those behind it."""
    words = ("p", "l", micros(10), "9", "0")
    rig.acquire("w")
    for owner, limit in (("a", "3"), ("b", f"{SHARED}"), ("x", "1"), ("c", "3")):
        rig.alone(scripts.ACQUIRE, owner, *words, limit)
    assert rig.alone(scripts.RELEASE, "w", "0")[0] == b"released"
    assert rig.rung == ["a", "b"]
    assert rig.alone(scripts.ACQUIRE, "d", *words, "3")[0] == b"waiting"
    assert rig.alone(scripts.RELEASE, "x", "0")[0] == b"gone"
    assert rig.rung == ["a", "b", "c"]
    answers = rig.alone(scripts.REFRESH, "a", micros(10), "b", micros(10), "c", micros(10))
    assert [each[0] for each in answers] == [b"held"] * 3
    fences = [each[2] for each in answers]
    assert fences == sorted(set(fences))


def _silent_processes(rig: Rig) -> None:
    """A process that does not confirm a lease loses its other places, and nobody else does."""
    for owner, process in (("w", "p"), ("a", "q"), ("b", "q"), ("c", "r")):
        rig.alone(scripts.ACQUIRE, owner, process, "l", micros(10), "9", "0")
    rig.alone(scripts.RELEASE, "w", "0")
    rig.now += 3 * SECOND // 2
    assert rig.alone(scripts.REFRESH, "c", micros(10))[0][0] == b"held"
    assert rig.alone(scripts.REFRESH, "b", micros(10))[0][0] == b"gone"


def _beside_others_in_a_quarantine(rig: Rig) -> None:
    """Nobody is let in beside others, and whoever would fit is told why."""
    left = micros(4)
    facts = (left, left, "0", "0", "because")
    words = ("p", "l", micros(10), "0", "0")
    rig.alone(scripts.ACQUIRE, "a", *words, f"{SHARED}")
    assert rig.alone(scripts.ACQUIRE, "b", *words, f"{SHARED}", facts=facts)[4] == b"because"
    assert rig.alone(scripts.ACQUIRE, "w", *words, facts=facts)[4] == b""


def _ahead(rig: Rig) -> None:
    """Where the epoch says that leases may be of a clock behind ours, they count for so much longer."""
    facts = ("0", "0", "0", micros(5), "")
    rig.acquire("a", *facts)
    rig.now += 15 * SECOND - 1
    assert rig.acquire("b", *facts, room="0")[0] == b"busy"
    rig.now += 1
    assert rig.acquire("b", *facts, room="0")[0] == b"held"


def _fences(rig: Rig) -> None:
    """They are above those that the epoch remembers, and the lock."""
    floor = rig.now + 60 * SECOND
    assert int(rig.acquire("a", "0", "0", str(floor), "0", "")[2]) == floor + 1
    rig.alone(scripts.RELEASE, "a", "0")
    assert int(rig.acquire("b")[2]) == floor + 2


def _looking(rig: Rig) -> None:
    """A look tells until when a lease lasts by the clock of the server that is asked."""
    held = rig.whole(scripts.ACQUIRE, "a", "p", "l", micros(10), "9", "0")
    rig.move_lock()
    rig.acquire("b")
    look = look_of(rig.alone(scripts.LOOK))
    assert round(look.state.grants[0].until * SECOND) == held[3] + rig.ahead
    assert [place.claim.owner for place in look.state.queue] == ["b"]


def _left_behind(rig: Rig) -> None:
    """One that waited before the slot began to move, and gives up, has no place any more."""
    for owner in ("a", "b", "c"):
        rig.whole(scripts.ACQUIRE, owner, "p", "l", micros(10), "9", "0")
    rig.move_lock()
    assert rig.alone(scripts.REFRESH, "b", micros(10))[0][0] == b"waiting"
    assert rig.alone(scripts.RELEASE, "c", "0")[0] == b"gone"
    assert rig.alone(scripts.REFRESH, "c", micros(10))[0][0] == b"gone"


def _granted_after_all(rig: Rig) -> None:
    """One that waited before the slot began to move, and is granted the key, waits no longer."""
    rig.ahead = 0
    for owner in ("a", "b"):
        rig.whole(scripts.ACQUIRE, owner, "p", "l", micros(10), "9", "0")
    rig.move_lock()
    assert rig.alone(scripts.RELEASE, "a", "0")[0] == b"released"
    assert rig.acquire("b")[0] == b"held"
    rig.target.values[rig.keys[1]] = rig.source.values.pop(rig.keys[1])
    args = ("2", "0", "", "b", "0")
    names = (*rig.keys, LAYOUT.voided(0, "b"))
    assert rig.target.evaluate(rig.scripted(scripts.RELEASE), names, args)[0] == b"released"
    assert rig.rung == []


def _full_memory(rig: Rig) -> None:
    """On a server without memory leases are renewed and given back, and none is granted."""
    rig.acquire("a")
    rig.acquire("b")
    rig.target.full = True
    try:
        rig.acquire("c")
    except AssertionError:
        pass
    else:
        raise AssertionError("a lock is acquired, which needs memory")
    assert rig.alone(scripts.REFRESH, "a", micros(20))[0][0] == b"held"
    assert rig.alone(scripts.TRANSFER, "a", "heir", "p", "l", micros(20))[0] == b"held"
    assert rig.alone(scripts.RELEASE, "heir", micros(5))[0] == b"released"
    assert rig.alone(scripts.REFRESH, "b", micros(20))[0][0] == b"held"
    assert rig.alone(scripts.FORCE_RELEASE)[0] == b"released"
    rig.target.full = False
    rig.alone(scripts.FORCE_RELEASE)
    words = ("p", "l", micros(10), "9", "0")
    rig.alone(scripts.ACQUIRE, "d", *words, "2")
    rig.target.full = True
    try:
        rig.alone(scripts.ACQUIRE, "e", *words, "2")
    except AssertionError:
        pass
    else:
        raise AssertionError("a lock is acquired, which needs memory")
    assert rig.alone(scripts.REFRESH, "d", micros(20))[0][0] == b"held"
    assert rig.alone(scripts.RELEASE, "d", "0")[0] == b"released"


def _at_the_source(rig: Rig) -> None:
    """Where a lease was granted, it ends when it was said to."""
    held = rig.whole(scripts.ACQUIRE, "a", "p", "l", micros(10), "9", "0")
    words = ("b", "p", "l", micros(10), "0", "0")
    call = Call(scripts.ACQUIRE, 0, rig.keys, words).alone("0", ("0", "0", "0", "0", ""))
    args = ("1", "0", "", *call.args)
    answer: Any = rig.source.evaluate(rig.scripted(scripts.ALONE), call.keys, args)
    assert answer[2] == held[3]


def _given_up(rig: Rig) -> None:
    """An owner that gave up is refused until then, and not after."""
    rig.alone(scripts.RELEASE, "a", micros(2))
    rig.alone(scripts.RELEASE, "b", micros(3))
    rig.now += 2 * SECOND - 1
    assert rig.acquire("a")[0] == b"gone"
    rig.now += 1
    assert rig.acquire("b")[0] == b"gone"
    assert rig.acquire("a")[0] == b"held"


def _kept(rig: Rig) -> None:
    """What a lock says is kept for a day after its end, and not for ever."""
    left = micros(100)
    facts = (left, left, "0", "0", "")
    rig.acquire("a", *facts)
    assert rig.expires_in() >= DAY
    rig.now += 10 * SECOND
    rig.alone(scripts.REFRESH, "a", micros(10), facts=facts)
    assert rig.expires_in() >= DAY
    rig.alone(scripts.RELEASE, "a", micros(7 * DAY))
    assert rig.expires_in() >= 8 * DAY
    rig.alone(scripts.ACQUIRE, "b", "p", "l", micros(9 * DAY), "9", "0")
    assert rig.expires_in() >= 10 * DAY
    rig.now += 1000 * SECOND
    rig.alone(scripts.REFRESH, "b", micros(9 * DAY))
    assert rig.expires_in() >= 10 * DAY


def _refusing(rig: Rig) -> None:
    """Only one who would wait clears away those who have stopped waiting."""
    rig.acquire("a")
    rig.acquire("b")
    rig.now += 4 * SECOND
    assert rig.acquire("c", room="0")[3] == 1
    assert rig.acquire("c", room="1")[:3:2] == [b"waiting", 0]


CASES: Final = {
    **dict.fromkeys((_asking_the_epoch, _in_a_quarantine), 10.0),
    **dict.fromkeys((_several_by_another_clock, _let_in_together, _silent_processes), 0.0),
    _beside_others_in_a_quarantine: 10.0,
    **dict.fromkeys((_by_another_clock, _by_a_clock_behind, _ahead, _fences, _at_the_source), 0.0),
    **dict.fromkeys((_given_up, _kept, _refusing, _looking, _left_behind, _full_memory), 0.0),
    _granted_after_all: 0.0,
}
"""Each, and for how long its servers recover, in seconds."""
