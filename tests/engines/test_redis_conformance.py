"""The Lua scripts, the pure functions that say what they mean, and a model that runs the Lua.

All three see the same operations at the same microseconds, and must give the same answers and keep
the same states: on a real server, and in the simulator's model of one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import pytest
import redis

from tests.core.simulation.redis_model import RedisModel
from tests.servers import Server, a_redis, a_valkey
from weblock._core import table
from weblock._core.table import Answer, Claim, KeyState, Moment, Step, Waiting
from weblock.stores.redis import scripts
from weblock.stores.redis.calls import Layout, _state, reply_of
from weblock.stores.redis.scripts import Script

OWNERS = [f"owner{number}" for number in range(7)]
PROCESSES = ["p", "q", "r"]
LONG = 10_000.0
"""Seconds, longer than any sequence: a mark of one that has given up does not end in it."""

LAYOUT = Layout("conformance", 1)

Evaluate = Callable[[Script, tuple[str, ...], tuple[str, ...]], Any]


class Lua:
    """One key, as the scripts keep it."""

    def __init__(self, evaluate: Evaluate, key: str) -> None:
        self._evaluate = evaluate
        self._key = key

    def acquire(self, claim: Claim, room: int) -> Answer:
        return self._answer(
            scripts.ACQUIRE,
            claim.owner,
            *(claim.owner, claim.process, claim.label, _micros(claim.ttl), str(room), "0"),
        )

    def refresh(self, beats: list[tuple[str, float]]) -> list[Answer]:
        words = [word for owner, ttl in beats for word in (owner, _micros(ttl))]
        return [reply_of(raw).answer for raw in self._run(scripts.REFRESH, "", *words)]

    def release(self, owner: str, void: float) -> Answer:
        return self._answer(scripts.RELEASE, owner, owner, _micros(void))

    def force_release(self) -> Answer:
        return self._answer(scripts.FORCE_RELEASE, "")

    def state(self) -> KeyState:
        _now, lease, places = self._run(scripts.LOOK, "")
        return _state(lease, places)

    def _answer(self, script: Script, owner: str, *words: str) -> Answer:
        return reply_of(self._run(script, owner, *words)).answer

    def _run(self, script: Script, owner: str, *words: str) -> Any:
        _bucket, keys = LAYOUT.of_key(self._key)
        names = (*keys, LAYOUT.voided(self._key, owner))
        return self._evaluate(script, names, ("run", "0", "", *words))


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

    def force_release(self) -> Answer:
        return self._take(table.force_release(self.kept, self._moment()))

    def state(self) -> KeyState:
        return self.kept

    def _moment(self) -> Moment:
        return Moment(self._now() / 1e6, self._now())

    def _take(self, step: Step) -> Answer:
        self.kept = step.state
        return step.answer


def one_step(dice: Random) -> Callable[[Lua | Pure], Any]:
    """A random operation, to be done by each of them."""
    owner = dice.choice(OWNERS)
    claim = Claim(
        owner,
        PROCESSES[OWNERS.index(owner) % len(PROCESSES)],
        dice.choice([0.1, 0.5, 1.0, 1.5, 4.0, 10.0]),
        f"label of {owner}",
    )
    match dice.choice(["acquire"] * 5 + ["refresh"] * 4 + ["release"] * 3 + ["void", "force"]):
        case "acquire":
            room = dice.choice([0, 1, 3, 100])
            return lambda one: one.acquire(claim, room)
        case "refresh":
            beats = [(each, claim.ttl) for each in dice.sample(OWNERS, dice.randint(1, 4))]
            return lambda one: one.refresh(beats)
        case "release":
            return lambda one: one.release(owner, 0.0)
        case "void":
            return lambda one: one.release(owner, LONG)
        case _:
            return lambda one: one.force_release()


def shape(state: KeyState) -> Any:
    """What both keep of a state, in whole microseconds."""
    grant = state.grant and (
        *(state.grant.claim.owner, state.grant.claim.process, state.grant.claim.label),
        *(state.grant.fence, round(state.grant.since * 1e6), round(state.grant.until * 1e6)),
        state.grant.confirmed,
    )
    queue = [(place.claim, round(place.until * 1e6)) for place in state.queue]
    return state.fence, grant, queue


def alike(answer: Any) -> Any:
    """An answer in whole microseconds, without what only some engines tell."""
    if isinstance(answer, list):
        return [alike(each) for each in answer]
    if isinstance(answer, Waiting):
        answer = answer._replace(ahead=())
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
    """Has all of them take the same steps."""
    dice = Random(seed)
    for number in range(steps):
        step = one_step(dice)
        answer = alike(step(pure))
        for other in others:
            assert alike(step(other)) == answer, f"seed {seed}, step {number}"
            assert shape(other.state()) == shape(pure.state()), f"seed {seed}, step {number}"
        clock.pass_by(dice)


def in_the_model(clock: Clock, scripted: Callable[[Script], Script] = lambda s: s) -> Lua:
    """The Lua in the simulator's model of a server."""
    model = RedisModel(lambda: clock.now, lambda *_ring: None)
    return Lua(lambda script, keys, args: model.evaluate(scripted(script), keys, args), "key")


def test_the_lua_is_what_the_pure_functions_say() -> None:
    """On thousands of random steps, the scripts in the model answer and keep the same."""
    for seed in range(150):
        clock = Clock()
        compare(seed, clock, Pure(lambda clock=clock: clock.now), [in_the_model(clock)])


@pytest.fixture(scope="module", params=[a_valkey, a_redis, lambda: "redis-6.2"])
def client(request: pytest.FixtureRequest) -> Iterator[redis.Redis]:
    """A client of a real server."""
    with Server(request.param()) as server, redis.Redis(port=server.port) as client:
        yield client


def test_a_real_server_does_the_same(client: redis.Redis) -> None:
    """Real servers and the model agree with the pure functions, where all have the same clock."""
    for seed in range(12):
        clock = Clock()
        real = Lua(_on(client, clock), f"key {seed}")
        compare(seed, clock, Pure(lambda clock=clock: clock.now), [in_the_model(clock), real])


def _on(client: redis.Redis, clock: Clock) -> Evaluate:
    """Scripts on a real server, with a clock of ours in the place of its own."""

    def evaluate(script: Script, keys: tuple[str, ...], args: tuple[str, ...]) -> Any:
        assert script.text.count("redis.call('TIME')") == 1
        text = script.text.replace("redis.call('TIME')", "redis.call('HMGET', 'clock', 's', 'us')")
        seconds, micros = divmod(clock.now, 1_000_000)
        client.hset("clock", mapping={"s": seconds, "us": micros})
        return client.eval(text, len(keys), *keys, *args)

    return evaluate


def _micros(seconds: float) -> str:
    return f"{seconds * 1e6:.0f}"
