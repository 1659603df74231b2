"""What the scripts must do where a key has several leases, beyond what the pure functions say."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from weblock._core.table import SHARED
from weblock.stores.redis import scripts
from weblock.stores.redis.calls import Layout, look_of, micros
from weblock.stores.redis.scripts import Script

from .redis_model import RedisModel

LAYOUT = Layout("sharing", 1)
SECOND: Final = 1_000_000
DAY: Final = 24 * 3600 * SECOND
HANDOFF: Final = 1_500_000

OF_AN_EXCLUSIVE_LEASE: Final = {"fence", "owner", "process", "label", "since", "until", "confirmed"}
"""The fields of a key before there were limits: a version that knows none reads and writes these."""


class Rig:
    """One server, a clock, and one key."""

    def __init__(self, scripted: Callable[[Script], Script], recovery: float = 0.0) -> None:
        self.now = 1_790_000_000 * SECOND
        self.rung: list[tuple[str, ...]] = []
        self.recovery = recovery
        self._scripted = scripted
        self.model = RedisModel(lambda: self.now, self._ring)
        self.run_of_client = self.model.incarnation

    def acquire(self, owner: str, limit: int, *, ttl: float = 10.0, room: int = 9) -> Any:
        """What it answers. The process and the label are named after the owner."""
        who = (owner, f"p.{owner}", f"label {owner}\n{limit} 7", micros(ttl))
        limits = [str(limit)] if limit != 1 else []
        return self.run(scripts.ACQUIRE, *who, str(room), "0", *limits)

    def refresh(self, *owners: str, ttl: float = 10.0) -> list[Any]:
        words = [word for owner in owners for word in (owner, micros(ttl))]
        answers: list[Any] = self.run(scripts.REFRESH, *words)
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
        """What stands in the key."""
        return self.model.values[LAYOUT.of_key("key")[1][0]]

    def run(self, script: Script, *words: str) -> Any:
        _bucket, keys = LAYOUT.of_key("key")
        names = (*keys, LAYOUT.voided(0, words[0] if words else ""))
        args = (self.run_of_client, micros(self.recovery), "", *words)
        return self.model.evaluate(self._scripted(script), names, args)

    def _ring(self, channel: str, payload: str) -> None:
        self.rung.append((channel, *payload.split()))


def _written_as_before(rig: Rig) -> None:
    """An exclusive lease is written as ever, also after leases with a limit, and beside their waiters."""
    rig.acquire("w", 1)
    assert set(rig.fields()) == OF_AN_EXCLUSIVE_LEASE
    rig.release("w")
    rig.acquire("a", 2)
    rig.acquire("b", 2)
    rig.acquire("w", 1)
    rig.acquire("c", SHARED)
    assert rig.release("a") == b"released"
    assert rig.release("b") == b"released"
    fields = rig.fields()
    assert {each: fields[each] for each in ("owner", "process", "label", "confirmed")} == {
        "owner": "w",
        "process": "p.w",
        "label": "label w\n1 7",
        "confirmed": "0",
    }
    assert (int(fields["since"]), int(fields["until"])) == (rig.now, rig.now + HANDOFF)
    assert rig.refresh("w")[0][0] == b"held"
    assert rig.holders() == ["w"]
    assert rig.release("w") == b"released"
    assert rig.holders() == ["c"]
    assert rig.release("c") == b"released"
    assert rig.acquire("w", 1)[0] == b"held"
    assert set(rig.fields()) - OF_AN_EXCLUSIVE_LEASE <= {"places"}


def _closed_to_versions_without_limits(rig: Rig) -> None:
    """To them, it is one lease that is none of theirs, and lasts until all leases have ended."""
    rig.acquire("a", 3, ttl=10)
    begun = rig.now
    rig.now += SECOND
    rig.acquire("b", 3, ttl=30)
    seen = rig.fields()
    assert (seen["owner"], seen["process"], seen["confirmed"]) == ("*", "", "1")
    assert seen["label"] == "label a\n3 7"
    assert int(seen["since"]) == begun
    assert int(seen["until"]) == rig.now + 30 * SECOND
    assert int(seen["fence"]) == rig.now
    rig.refresh("a", ttl=50)
    assert int(rig.fields()["until"]) == rig.now + 50 * SECOND
    rig.release("a")
    assert int(rig.fields()["until"]) == rig.now + 30 * SECOND
    assert rig.fields()["label"] == "label b\n3 7"
    rig.transfer("b", "c", ttl=5)
    assert int(rig.fields()["until"]) == rig.now + 5 * SECOND
    assert rig.fields()["owner"] == "*"


def _let_in_by_such_a_version(rig: Rig) -> None:
    """What that has granted counts as exclusive, and what stood there before is over."""
    rig.acquire("a", SHARED)
    rig.acquire("b", SHARED)
    until = f"{rig.now + 10 * SECOND}"
    rig.fields().update(owner="old", process="p", label="l", until=until, confirmed="1")
    assert rig.refresh("a", "b", "old") == [
        [b"gone", rig.now],
        [b"gone", rig.now],
        [b"held", rig.now, int(rig.fields()["fence"]), int(until), 1],
    ]
    assert rig.acquire("c", SHARED, room=0)[0] == b"busy"
    rig.fields()["owner"] = ""  # It releases.
    assert rig.acquire("c", SHARED)[0] == b"held"
    assert rig.holders() == ["c"]


def _rung(rig: Rig) -> None:
    """All that fit now are rung at once, in order, each with its own fence; nobody behind a writer is."""
    rig.acquire("w", 1)
    for owner, limit in (("a", SHARED), ("b", 3), ("c", SHARED), ("d", 1), ("e", SHARED)):
        assert rig.acquire(owner, limit)[0] == b"waiting"
    rig.now += SECOND
    rig.release("w")
    until = f"{rig.now + HANDOFF}"
    expected = [(f"p.{each}", each, f"{rig.now + n}", until) for n, each in enumerate("abc")]
    assert rig.rung == expected
    answers = rig.refresh("a", "e", "c", "b")
    label = f"label a\n{SHARED} 7".encode()
    assert answers == [
        [b"held", rig.now, rig.now, rig.now + 10 * SECOND, 1],
        [b"waiting", rig.now, 1, rig.now + HANDOFF, b"", label, 2],
        [b"held", rig.now, rig.now + 2, rig.now + 10 * SECOND, 1],
        [b"held", rig.now, rig.now + 1, rig.now + 10 * SECOND, 1],
    ]
    rig.rung.clear()
    for owner in ("a", "c", "b"):
        assert not rig.rung
        rig.release(owner)
    assert [each[1] for each in rig.rung] == ["d"]


def _silent_processes(rig: Rig) -> None:
    """One that does not confirm one of several leases loses its places; the others keep theirs."""
    rig.acquire("w", 1)
    rig.acquire("a", SHARED)
    rig.acquire("b", SHARED)
    rig.acquire("x", 1)
    rig.release("w")
    rig.refresh("b", "x")
    place = rig.fields()["place:x"]
    rig.fields()["place:x"] = place.replace(" p.x ", " p.a ")
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
    assert rig.refresh("a", ttl=60)[0][0] == b"held"
    rig.recovery = 0.0
    assert rig.acquire("d", SHARED)[0] == b"held"  # It does not care, and passes over who does.
    assert rig.release("d") == b"released"
    rig.recovery = 20.0
    while rig.now + 3 * SECOND < ends:
        rig.now += 3 * SECOND
        assert [each[0] for each in rig.refresh("b", "w")] == [b"waiting"] * 2
    rig.now = ends - 1
    assert rig.acquire("c", SHARED, room=0)[0] == b"busy"
    rig.now = ends
    assert rig.refresh("b")[0][0] == b"held"


def _lost_in_a_quarantine(rig: Rig) -> None:
    """Leases that end or are given back in one are over, one by one."""
    rig.acquire("a", SHARED, ttl=1)
    rig.acquire("b", SHARED, ttl=60)
    rig.acquire("c", SHARED, ttl=60)
    rig.model.promote()
    rig.run_of_client = rig.model.incarnation
    rig.now += SECOND
    assert [each[0] for each in rig.refresh("a", "b")] == [b"gone", b"held"]
    assert rig.holders() == ["b", "c"]
    assert rig.release("b") == b"released"
    assert rig.release("c") == b"released"
    assert rig.holders() == []


def _another_clock(rig: Rig) -> None:
    """A lease granted by a clock that is behind lasts so much longer; one that was renewed here does not."""
    rig.acquire("a", SHARED)
    rig.acquire("b", SHARED)
    epoch = rig.model.values[LAYOUT.of_key("key")[1][2]]
    assert isinstance(epoch, dict)
    ahead, until = 5 * SECOND, rig.now + 10 * SECOND
    packed = rig.fields()["grants"]
    assert packed.count(f" {until} 1  ") == 2
    rig.fields()["grants"] = packed.replace(f" {until} 1  ", f" {until} 1 elsewhere ")
    epoch["ahead"] = f"{ahead}"  # type: ignore[assignment]
    rig.now += 2 * SECOND
    assert rig.acquire("w", 1, room=0)[2] == until + ahead
    assert rig.refresh("b", ttl=10)[0][3] == rig.now + 10 * SECOND
    assert " elsewhere " in rig.fields()["grants"]
    assert rig.acquire("w", 1, room=0)[2] == rig.now + 10 * SECOND
    rig.now += 10 * SECOND
    assert rig.refresh("b")[0][0] == b"gone"
    rig.now = until + ahead - 1
    assert rig.acquire("w", 1, room=0)[0] == b"busy"
    assert rig.refresh("a", ttl=1)[0][:4:3] == [b"held", rig.now + SECOND]
    rig.now += SECOND
    assert rig.acquire("w", 1, room=0)[0] == b"held"


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
    assert kept[queue] == rig.now + DAY
    rig.release("a")
    assert rig.model._expires[lock] == rig.now + DAY + 10 * SECOND


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


def _renewed_in_place(rig: Rig) -> None:
    """Renewals that do not read all leases say and write the same, and leave the others as they were."""
    begun = rig.now
    rig.acquire("a", 5, ttl=8)
    rig.acquire("b", 5, ttl=30)
    rig.acquire("c", 5)
    lock, _queue, _epoch = LAYOUT.of_key("key")[1]
    rig.now += SECOND // 2
    before = rig.fields()["grants"]
    assert rig.renew("b") == [[b"held", rig.now, begun + 1, begun + 30 * SECOND, 1]]
    assert rig.fields()["grants"] == before
    assert rig.renew("c", "a") == [
        [b"held", rig.now, begun + 2, rig.now + 10 * SECOND, 1],
        [b"held", rig.now, begun, rig.now + 10 * SECOND, 1],
    ]
    assert rig.holders() == ["a", "b", "c"]
    assert int(rig.fields()["until"]) == begun + 30 * SECOND
    assert int(rig.fields()["soonest"]) == begun + 8 * SECOND  # So none of them has read them all.
    assert rig.renew("b", "none")[1] == [b"gone", rig.now]
    assert int(rig.fields()["soonest"]) == rig.now + 10 * SECOND
    rig.release("b")
    rig.run(scripts.ASK_RELEASE)
    rig.acquire("d-d", 5)
    rig.now += SECOND // 4
    assert [answer[5:] for answer in rig.renew("a", "c", "d-d")] == [[1], [1], []]
    assert int(rig.fields()["soonest"]) < rig.now + 10 * SECOND
    assert int(rig.fields()["until"]) == rig.now + 10 * SECOND
    assert rig.model._expires[lock] == rig.now + DAY + 10 * SECOND
    rig.acquire("w", 1)
    rig.model.full = True
    assert rig.renew("a")[0][0] == b"held"
    assert int(rig.fields()["soonest"]) < rig.now + 10 * SECOND
    assert rig.renew("a", ttl=11)[0][3] == rig.now + 11 * SECOND
    assert rig.renew("w")[0][0] == b"waiting"


def _not_renewed_in_place(rig: Rig) -> None:
    """A renewal reads all leases when one has ended, or when the first waiter has lapsed."""
    rig.acquire("a", 5, ttl=0.5)
    rig.acquire("b", 5, ttl=9)
    rig.now += SECOND // 2
    assert rig.renew("a", ttl=5) == [[b"gone", rig.now]]
    assert rig.holders() == ["b"]
    rig.acquire("w", 1)
    rig.acquire("r", 3)
    assert rig.renew("b")[0][0] == b"held"
    _until, rest = rig.fields()["place:w"].split(" ", 1)
    rig.fields()["place:w"] = f"{rig.now} {rest}"
    assert rig.renew("b")[0][0] == b"held"
    assert rig.holders() == ["b", "r"]


def _not_foreseen(rig: Rig) -> None:
    """A renewal that changes nothing does not say how long leases may be that need no look at the epoch."""
    rig.acquire("a", 2, ttl=100)
    epoch = rig.model.values[LAYOUT.of_key("key")[1][2]]
    assert isinstance(epoch, dict)
    assert int(epoch["quiet_length"]) == HANDOFF
    rig.renew("a", ttl=50)
    assert int(epoch["quiet_length"]) == HANDOFF
    rig.release("a")
    rig.acquire("a", 2, ttl=30)
    rig.renew("a", ttl=40)
    assert int(epoch["quiet_length"]) == 40 * SECOND


CASES: Final = {
    **dict.fromkeys((_written_as_before, _closed_to_versions_without_limits), 0.0),
    **dict.fromkeys((_let_in_by_such_a_version, _rung, _silent_processes), 0.0),
    **dict.fromkeys((_in_a_quarantine, _lost_in_a_quarantine), 20.0),
    **dict.fromkeys((_another_clock, _kept, _full_memory), 0.0),
    **dict.fromkeys((_renewed_in_place, _not_renewed_in_place, _not_foreseen), 0.0),
}
"""Each, and for how long its server recovers, in seconds."""
