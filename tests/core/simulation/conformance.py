"""One key as the Lua keeps it and as the pure functions do, taking the same random steps.

Both see the same operations at the same microseconds, and must give the same answers and keep the same states.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from weblock._core import table
from weblock._core.table import SHARED, Answer, Busy, Claim, KeyState, Moment, Step, Waiting
from weblock.stores.redis import scripts
from weblock.stores.redis.calls import Layout, _state, reply_of
from weblock.stores.redis.scripts import Script

from .redis_model import RedisModel

OWNERS = [f"owner{number}" for number in range(7)]
PROCESSES = ["p", "q", "r"]
LONG = 10_000.0
"""Seconds, longer than any sequence: a mark of one that has given up does not end in it."""

LAYOUT = Layout("conformance", 1)

HERE = ("run:id", "0", "single")
"""A server's run, no recovery, and the kind of deployment."""

Evaluate = Callable[[Script, tuple[str, ...], tuple[str, ...]], Any]


class Lua:
    """One key, as the scripts keep it."""

    def __init__(self, evaluate: Evaluate, key: str) -> None:
        self._evaluate = evaluate
        self._key = key

    def acquire(self, claim: Claim, room: int) -> Answer:
        return self._answer(
            scripts.ACQUIRE,
            *(claim.owner, claim.process, claim.label, _micros(claim.ttl), str(room), "0"),
            *([str(claim.limit)] if claim.limit != 1 else []),
        )

    def refresh(self, beats: list[tuple[str, float]]) -> list[Answer]:
        words = [word for owner, ttl in beats for word in (owner, _micros(ttl))]
        now, *found = self._run(scripts.LOOK)
        live = [grant for grant in _state(*found).grants if round(grant.until * 1e6) > now]
        holders = {grant.claim.owner for grant in live}
        script = scripts.RENEW if holders.issuperset(owner for owner, _ in beats) else scripts.BEAT
        return [reply_of(raw).answer for raw in self._run(script, *words)]

    def release(self, owner: str, void: float) -> Answer:
        return self._answer(scripts.RELEASE, owner, _micros(void))

    def transfer(self, owner: str, claim: Claim) -> Answer:
        words = (claim.owner, claim.process, claim.label, _micros(claim.ttl))
        return self._answer(scripts.TRANSFER, owner, *words)

    def force_release(self) -> Answer:
        return self._answer(scripts.FORCE_RELEASE)

    def ask_release(self) -> Answer:
        return self._answer(scripts.ASK_RELEASE)

    def state(self) -> KeyState:
        _now, *found = self._run(scripts.LOOK)
        return _state(*found)

    def _answer(self, script: Script, *words: str) -> Answer:
        return reply_of(self._run(script, *words)).answer

    def _run(self, script: Script, *words: str) -> Any:
        _bucket, keys = LAYOUT.of_key(self._key)
        return self._evaluate(script, keys, (*HERE, *words))


class LongWay(Lua):
    """The same without the usual cases that return early."""

    def _run(self, script: Script, *words: str) -> Any:
        text = script.text.replace("if known and WHERE", "if false and WHERE")
        return super()._run(script._replace(text=text), *words)


class Pure:
    """One key, as the pure functions keep it."""

    def __init__(self, now: Callable[[], int]) -> None:
        self._now = now
        self.kept = KeyState()

    def acquire(self, claim: Claim, room: int) -> Answer:
        return self._take(table.acquire(self.kept, self._moment(), claim, room=room))

    def refresh(self, beats: list[tuple[str, float]]) -> list[Answer]:
        return [
            self._take(table.refresh(self.kept, self._moment(), owner, ttl)) for owner, ttl in beats
        ]

    def release(self, owner: str, void: float) -> Answer:
        return self._take(table.release(self.kept, self._moment(), owner, void=void))

    def transfer(self, owner: str, claim: Claim) -> Answer:
        return self._take(table.transfer(self.kept, self._moment(), owner, claim))

    def force_release(self) -> Answer:
        return self._take(table.force_release(self.kept, self._moment()))

    def ask_release(self) -> Answer:
        return self._take(table.ask_release(self.kept, self._moment()))

    def state(self) -> KeyState:
        return self.kept

    def _moment(self) -> Moment:
        return Moment(self._now() / 1e6, self._now())

    def _take(self, step: Step) -> Answer:
        self.kept = step.state
        return step.answer


_OFTEN = ["acquire"] * 5 + ["refresh"] * 4 + ["release"] * 3 + ["transfer"] * 3


LIMITS = ([1], [1, 2, 3, SHARED], [1], [1, SHARED, SHARED])
"""The limits that are claimed in one sequence."""


def one_step(dice: Random, limits: list[int]) -> Callable[[Lua | Pure], Any]:
    """A random operation, to be done by each of them."""
    owner = dice.choice(OWNERS)
    claim = Claim(
        owner,
        PROCESSES[OWNERS.index(owner) % len(PROCESSES)],
        dice.choice([0.1, 0.5, 1.0, 1.5, 4.0, 10.0]),
        f"label of {owner}",
        dice.choice(limits) if len(limits) > 1 else limits[0],
    )
    match dice.choice([*_OFTEN, "void", "force", "ask"]):
        case "acquire":
            room = dice.choice([0, 1, 3, 100])
            return lambda one: one.acquire(claim, room)
        case "refresh":
            beats = [(each, claim.ttl) for each in dice.sample(OWNERS, dice.randint(1, 4))]
            return lambda one: one.refresh(beats)
        case "release":
            return lambda one: one.release(owner, 0.0)
        case "transfer":
            giver = dice.choice(OWNERS)
            return lambda one: one.transfer(giver, claim)
        case "void":
            return lambda one: one.release(owner, LONG)
        case what:
            return lambda one: one.ask_release() if what == "ask" else one.force_release()


def shape(state: KeyState) -> Any:
    """What both keep of a state, in whole microseconds."""
    grants = [
        (
            *(grant.claim._replace(ttl=0.0), grant.fence, round(grant.since * 1e6)),
            *(round(grant.until * 1e6), grant.confirmed),
        )
        for grant in state.grants
    ]
    queue = [(place.claim, round(place.until * 1e6)) for place in state.queue]
    # Of a key that nobody has, the scripts forget the fence: the epoch has it.
    return grants and state.fence, grants, queue


def alike(answer: Any) -> Any:
    """An answer in whole microseconds, without what only some engines tell.

    Of several leases, the scripts tell when the first may end, and the label of any.
    """
    if isinstance(answer, list):
        return [alike(each) for each in answer]
    if isinstance(answer, Waiting | Busy) and answer.others:
        answer = answer._replace(until=0.0, holder="")
    facts = answer._asdict()
    if "until" in facts:
        facts["until"] = round(facts["until"] * 1e6)
    return type(answer).__name__, facts


class Clock:
    """Microseconds that pass when the test says so."""

    def __init__(self) -> None:
        self.now = 1_790_000_000_000_000

    def pass_by(self, dice: Random) -> None:
        self.now += dice.choice([0, 1, 1_000, 100_000, 700_000, 1_500_000, 1_500_001, 4_000_000])


def compare(seed: int, clock: Clock, pure: Pure, others: list[Lua], steps: int = 60) -> None:
    dice, limits = Random(seed), LIMITS[seed % len(LIMITS)]
    for number in range(steps):
        step = one_step(dice, limits)
        answer = alike(step(pure))
        for other in others:
            assert alike(step(other)) == answer, f"seed {seed}, step {number}"
            assert shape(other.state()) == shape(pure.state()), f"seed {seed}, step {number}"
        if limits == [1] or dice.random() < 0.2:  # Several leases at once should be frequent.
            clock.pass_by(dice)


def in_the_model(
    clock: Clock, scripted: Callable[[Script], Script] = lambda s: s, kind: type[Lua] = Lua
) -> Lua:
    """The Lua in the simulator's model of a server."""
    model = RedisModel(lambda: clock.now, lambda *_notify: None)
    return kind(lambda script, keys, args: model.evaluate(scripted(script), keys, args), "key")


def compare_full_queues(seed: int, clock: Clock, pure: Pure, lua: Lua) -> int:
    """Has both refuse claims of long queues in which some have lapsed; how many were refused."""
    dice, refused = Random(seed), 0
    owners = [f"owner{number}" for number in range(60)]
    for number in range(400):
        claim = Claim(dice.choice(owners), "p", 1000.0, "")
        room = dice.choice([0, 20, 40])
        beats = [(each, 1000.0) for each in dice.sample(owners, 5)]
        heartbeat = dice.random() < 0.5

        def step(one: Lua | Pure) -> Any:
            return one.refresh(beats) if heartbeat else one.acquire(claim, room)  # noqa: B023

        answer = alike(step(pure))
        assert alike(step(lua)) == answer, f"seed {seed}, step {number}"
        assert shape(lua.state()) == shape(pure.state()), f"seed {seed}, step {number}"
        refused += answer[0] == "Busy" and room > 0
        clock.now += dice.randrange(100_000)
    return refused


def _micros(seconds: float) -> str:
    return f"{seconds * 1e6:.0f}"
