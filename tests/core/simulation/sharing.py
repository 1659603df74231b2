"""What the scripts must do where a key has several leases, beyond what the pure functions say."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from weblock._core.table import SHARED
from weblock.stores.redis import scripts
from weblock.stores.redis.calls import Layout, look_of, micros
from weblock.stores.redis.scripts import Script

from .redis_model import RedisModel, packed, unpacked

LAYOUT = Layout("sharing", 1)
SECOND: Final = 1_000_000
DAY: Final = 24 * 3600 * SECOND
HANDOFF: Final = 1_500_000


class Rig:
    """One server, a clock, and one key."""

    def __init__(self, scripted: Callable[[Script], Script], recovery: float = 0.0) -> None:
        self.now = 1_790_000_000 * SECOND
        self.notified: list[tuple[str, ...]] = []
        self.recovery = recovery
        self._scripted = scripted
        self.model = RedisModel(lambda: self.now, self._notify)
        self.run_of_client = self.model.incarnation

    def acquire(self, owner: str, limit: int, *, ttl: float = 10.0, room: int = 9) -> Any:
        """What it answers. The process and the label are named after the owner."""
        who = (owner, f"p.{owner}", f"label {owner}\n{limit} 7", micros(ttl))
        limits = [str(limit)] if limit != 1 else []
        return self.run(scripts.ACQUIRE, *who, str(room), "0", *limits)

    def refresh(self, *owners: str, ttl: float = 10.0) -> list[Any]:
        words = [word for owner in owners for word in (owner, micros(ttl))]
        answers: list[Any] = self.run(scripts.BEAT, *words)
        return answers

    def renew(self, *owners: str, ttl: float = 10.0) -> list[Any]:
        words = [word for owner in owners for word in (owner, micros(ttl))]
        answers: list[Any] = self.run(scripts.RENEW, *words)
        return answers

    def release(self, owner: str) -> Any:
        return self.run(scripts.RELEASE, owner, "0")[0]

    def transfer(self, owner: str, heir: str, ttl: float = 10.0) -> Any:
        return self.run(scripts.TRANSFER, owner, heir, "p", "l", micros(ttl))

    def holders(self) -> list[str]:
        return [grant.claim.owner for grant in look_of(self.run(scripts.LOOK)).state.grants]

    def fields(self) -> Any:
        return self.model.values[LAYOUT.of_key("key")[1][0]]

    def run(self, script: Script, *words: str) -> Any:
        _bucket, keys = LAYOUT.of_key("key")
        args = (self.run_of_client, micros(self.recovery), "single", *words)
        return self.model.evaluate(self._scripted(script), keys, args)

    def _notify(self, channel: str, payload: str) -> None:
        self.notified.append((channel, *payload.split()))


def _notified(rig: Rig) -> None:
    """All that fit now are notified at once, in order, each with its own fence; nobody behind a writer is."""
    rig.acquire("w", 1)
    for owner, limit in (("a", SHARED), ("b", 3), ("c", SHARED), ("d", 1), ("e", SHARED)):
        assert rig.acquire(owner, limit)[0] == b"waiting"
    rig.now += SECOND
    rig.release("w")
    until = f"{rig.now + HANDOFF}"
    expected = [(f"p.{each}", each, f"{rig.now + n}", until) for n, each in enumerate("abc")]
    assert rig.notified == expected
    answers = rig.refresh("a", "e", "c", "b")
    label = f"label a\n{SHARED} 7".encode()
    assert answers == [
        [b"held", rig.now, rig.now, rig.now + 10 * SECOND, 1],
        [b"waiting", rig.now, 1, rig.now + HANDOFF, b"", label, 2],
        [b"held", rig.now, rig.now + 2, rig.now + 10 * SECOND, 1],
        [b"held", rig.now, rig.now + 1, rig.now + 10 * SECOND, 1],
    ]
    rig.notified.clear()
    for owner in ("a", "c", "b"):
        assert not rig.notified
        rig.release(owner)
    assert [each[1] for each in rig.notified] == ["d"]


def _silent_processes(rig: Rig) -> None:
    """One that does not confirm one of several leases loses its places; the others keep theirs."""
    rig.acquire("w", 1)
    rig.acquire("a", SHARED)
    rig.acquire("b", SHARED)
    rig.acquire("x", 1)
    rig.release("w")
    rig.refresh("b", "x")
    *place, _process, label = unpacked(rig.fields()["place:x"])
    rig.fields()["place:x"] = packed(*place, "p.a", label)
    rig.now += HANDOFF
    assert rig.refresh("x")[0][0] == b"gone"
    assert rig.holders() == ["b"]


def _in_a_quarantine(rig: Rig) -> None:
    """Nobody is let in beside those who hold, and whoever would fit is told why; nobody else is."""
    rig.acquire("a", SHARED)
    rig.model.promote()
    rig.run_of_client = rig.model.incarnation
    answer = rig.acquire("b", SHARED)
    assert answer[:3] == [b"waiting", rig.now, 0]
    assert answer[4] == b"it has taken the place of another"
    ends = answer[3]
    assert ends == rig.now + 22 * SECOND
    assert rig.acquire("c", SHARED, room=0)[4] == b"it has taken the place of another"
    assert rig.acquire("w", 1)[4] == b""
    rig.now += 2 * SECOND
    assert rig.renew("a", ttl=60)[0][0] == b"held"
    while rig.now + 3 * SECOND < ends:
        rig.now += 3 * SECOND
        assert [each[0] for each in rig.refresh("b", "w")] == [b"waiting"] * 2
    rig.now = ends - 1
    assert rig.acquire("c", SHARED, room=0)[0] == b"busy"
    rig.now = ends
    assert rig.refresh("b")[0][0] == b"held"


def _kept(rig: Rig) -> None:
    """The key is kept for a day after the last of its leases, and the waiters', and not for ever."""
    _bucket, (lock, queue, _epoch) = LAYOUT.of_key("key")
    rig.acquire("a", 2, ttl=3 * 24 * 3600)
    rig.acquire("b", 2, ttl=10)
    kept = dict(rig.model._expires)
    assert kept[lock] == rig.now + 4 * DAY
    rig.acquire("c", 2)
    kept = dict(rig.model._expires)
    assert kept[lock] == rig.now + 4 * DAY
    assert kept[queue] == rig.now + DAY + 60 * SECOND
    rig.release("a")
    assert rig.model._expires[lock] >= rig.now + DAY + 10 * SECOND


def _full_memory(rig: Rig) -> None:
    """On a server without memory leases are renewed, transferred and given back, and none is granted."""
    rig.acquire("a", 2)
    rig.acquire("b", 3)
    rig.acquire("w", 1)
    rig.model.full = True
    for owner, limit in (("c", SHARED), ("d", 1)):
        try:
            rig.acquire(owner, limit)
        except AssertionError:
            continue
        raise AssertionError("a place is given, which needs memory")
    assert [each[0] for each in rig.refresh("b", "a")] == [b"held"] * 2
    assert rig.transfer("a", "heir")[0] == b"held"
    assert rig.release("heir") == b"released"
    assert rig.run(scripts.FORCE_RELEASE)[0] == b"released"
    assert rig.holders() == ["w"]
    rig.release("w")
    rig.model.full = False
    rig.acquire("a", SHARED)
    rig.model.full = True
    try:
        rig.acquire("b", SHARED)
    except AssertionError:
        return
    raise AssertionError("a lease is granted, which needs memory")


def _not_all_are_read(rig: Rig) -> None:
    """With a hundred holders, none of them is read but the caller's own, whoever comes, renews or goes."""
    for number in range(100):
        rig.acquire(f"owner{number}", SHARED)
    calls: list[str] = []
    call = rig.model.call
    rig.model.call = lambda command, *args: calls.append(command) or call(command, *args)  # type: ignore[func-returns-value,method-assign]
    assert rig.acquire("a", SHARED)[0] == b"held"
    assert rig.renew("owner7")[0][0] == b"held"
    assert rig.release("owner50") == b"released"
    assert rig.release("owner0") == b"released"
    assert rig.release("a") == b"released"
    assert "HGETALL" not in calls


def _when_one_has_ended(rig: Rig) -> None:
    """What the others have in common still counts: how many there may be, and how long they last."""
    for owner, limit, days in (("a", 5, 0), ("b", 5, 3), ("c", 3, 3)):
        rig.acquire(owner, limit, ttl=days * 86_400.0 or 1.0)
    rig.now += SECOND
    assert rig.acquire("d", 5, ttl=1.0)[0] == b"held"
    assert rig.acquire("e", 5, room=0)[0] == b"busy"
    (lock, *_queue) = LAYOUT.of_key("key")[1]
    assert max(until for key, until in rig.model.expiring(lock)) > rig.now + 3 * DAY
    rig.release("c")
    for owner in "efg":
        assert rig.acquire(owner, 5)[0] == b"held"
    assert rig.acquire("h", 5, room=0)[0] == b"busy"


def _taken_from_all(rig: Rig) -> None:
    """Whatever limit it had, a lease that is taken away limits nobody."""
    rig.acquire("w", 1)
    for owner in "ab":
        rig.acquire(owner, 3)
    assert rig.run(scripts.FORCE_RELEASE)[0] == b"released"
    assert rig.holders() == ["a", "b"]


def _thousands(rig: Rig) -> None:
    """However many leases are written anew, or end, none is left out."""
    owners = [f"owner{number}" for number in range(1010)]
    for owner in owners:
        rig.acquire(owner, SHARED)
    rig.model.move()
    rig.run_of_client = rig.model.incarnation
    rig.acquire("first", SHARED)
    runs = [
        unpacked(lease)[6] for field, lease in rig.fields().items() if field.startswith("lease:")
    ]
    assert set(runs) == {rig.model.run_id}
    rig.now += DAY
    rig.acquire("second", SHARED)
    assert rig.holders() == ["second"]
    assert rig.fields().keys() == {"lock", "lease:second"}


CASES: Final = {
    **dict.fromkeys((_notified, _silent_processes), 0.0),
    **dict.fromkeys((_in_a_quarantine,), 20.0),
    **dict.fromkeys(
        (_kept, _full_memory, _not_all_are_read, _when_one_has_ended, _taken_from_all, _thousands),
        0.0,
    ),
}
"""Each, and for how long its server recovers, in seconds."""
