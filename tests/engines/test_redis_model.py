"""The simulator's model of a server, beside real ones: the same answers, keys, expiries and notifications.

Beyond what the pure functions say: quarantines, tickets, other runs, and what servers say of
themselves.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest
import redis

from tests.core.simulation.conformance import Clock
from tests.core.simulation.redis_model import RedisModel, unpacked
from tests.servers import Server, binaries
from tests.support.waiting import PATIENCE
from weblock._core.table import SHARED
from weblock.stores.redis import scripts
from weblock.stores.redis.calls import Layout
from weblock.stores.redis.scripts import Script

LAYOUT = Layout("model", 1)
OWNERS = ("a", "b", "c", "d")
SECTIONS = ("server", "replication", "commandstats")
SEQUENCES, STEPS = 12, 60
LONG = "10000000000"
"""Microseconds, longer than any sequence: real time does not pass as the test's does."""


@pytest.fixture(scope="module", params=sorted(binaries()))
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    with Server(request.param) as server:
        yield server


@pytest.fixture
def client(server: Server) -> Iterator[redis.Redis]:
    """A client of a server on which no earlier test has left anything."""
    with redis.Redis(port=server.port) as client:
        client.flushall()
        yield client


class Both:
    """The model and a real server, which see the same time and the same of themselves."""

    def __init__(self, client: redis.Redis, name: str, said: dict[str, str]) -> None:
        self.clock = Clock()
        self._said = said
        self._client = client
        self._notifications: list[tuple[str, str]] = []
        self._model = RedisModel(lambda: self.clock.now, self._notify)
        self._model._info = lambda section: said[section]  # type: ignore[method-assign]
        _bucket, self.keys = LAYOUT.of_key(name)
        self._listener = client.pubsub()
        self._listener.subscribe("p", "q")
        for _ in range(2):
            self._listener.get_message(timeout=PATIENCE)

    def run(self, script: Script, *words: str) -> None:
        before = dict(self._model._expires)
        expected = self._model.evaluate(script, self.keys, words)
        assert self._on_the_server(script, self.keys, words) == expected
        self._compare_keys(self.keys, before)

    def notifications(self) -> None:
        notifications, self._notifications = self._notifications, []
        for channel, payload in notifications:
            message = self._listener.get_message(ignore_subscribe_messages=True, timeout=PATIENCE)
            assert message
            assert (message["channel"], message["data"]) == (channel.encode(), payload.encode())
        assert self._listener.get_message(timeout=0) is None

    def close(self) -> None:
        self._listener.close()
        self._client.flushdb()

    def _on_the_server(self, script: Script, keys: tuple[str, ...], words: Any) -> Any:
        text = script.text.replace("redis.call('TIME')", "redis.call('HMGET', 'said', 's', 'us')")
        text = text.replace("redis.call('INFO', ", "redis.call('HGET', 'said', ")
        seconds, micros = divmod(self.clock.now, 1_000_000)
        self._client.hset("said", mapping={**self._said, "s": seconds, "us": micros})
        return self._client.eval(text, len(keys), *keys, *words)

    def _compare_keys(self, keys: tuple[str, ...], before: dict[str, int]) -> None:
        for key in keys:
            kept = self._model.values.get(key)
            assert _plain(self._value(key)) == _plain(kept), key
            expires = self._model._expires.get(key)
            if kept is None:
                continue
            left = self._client.pttl(key)
            assert (left == -1) == (expires is None), key
            if expires is not None and expires != before.get(key):
                assert abs((expires - self.clock.now) / 1000 - left) < 20_000, key

    def _value(self, key: str) -> Any:
        match self._client.type(key):
            case b"hash":
                return self._client.hgetall(key)
            case b"zset":
                return dict(self._client.zrange(key, 0, -1, withscores=True))
            case b"string":
                return self._client.get(key)
        return None

    def _notify(self, channel: str, payload: str) -> None:
        self._notifications.append((channel, payload))


def _plain(value: Any) -> Any:
    """What a key has, with all that is packed in it. Those who gave up are in no order."""
    match value:
        case dict():
            return {_text(name): _plain(each) for name, each in value.items()}
        case str() | bytes():
            return unpacked(_text(value))
    return value


def _text(value: str | bytes) -> str:
    return value if isinstance(value, str) else value.decode("latin-1")


def said_by(client: redis.Redis) -> dict[str, str]:
    """What the server says of itself, word for word."""
    info = "return redis.call('INFO', ARGV[1])"
    return {section: client.eval(info, 0, section).decode() for section in SECTIONS}


def drawn(dice: Random) -> tuple[Script, tuple[str, ...]]:
    owner, ttl = dice.choice(OWNERS), dice.choice(["100000", "1000000", "30000000", "90000000"])
    here = (
        dice.choice(["run1:a", "run1:a", "run1:a", "run1:b", "run2:c"]),
        dice.choice(["0", "2000000", "2000000", "20000000"]),
        dice.choice(["single", "single", "sentinel", "cluster"]),
    )
    who = (owner, "pq"[owner in "bd"], f"label of {owner}")
    ticket = dice.choice(["0", "0", f"17{dice.randrange(10**14):014d}"])
    fence = f"{1_790_000_000_000_000 + dice.randrange(10**10)}"
    heir = dice.choice(OWNERS)
    script, words = dice.choice(
        [
            (scripts.ACQUIRE, (*who, ttl, dice.choice(["0", "1", "9"]), ticket)),
            (scripts.ACQUIRE, (*who, ttl, "9", ticket)),
            (scripts.ACQUIRE, (*who, ttl, "9", "0", dice.choice(["2", "3", f"{SHARED}"]))),
            (scripts.BEAT, (owner, ttl, dice.choice(OWNERS), ttl)),
            (scripts.RENEW, (owner, ttl, dice.choice(OWNERS), ttl)),
            (scripts.ASK_RELEASE, ()),
            (scripts.RELEASE, (owner, dice.choice(["0", "0", "0", LONG]))),
            (scripts.TRANSFER, (owner, heir, "pq"[heir in "bd"], f"label of {heir}", ttl)),
            (scripts.FORCE_RELEASE, ()),
            (scripts.LOOK, ()),
            (scripts.BEGIN, ()),
            (scripts.WAIT_BEHIND, (*who, ttl, ticket, "1")),
            (scripts.RAISE_FENCE, (owner, fence)),
        ]
    )
    return script, (*here, *words)


def test_the_model_does_what_a_server_does(client: redis.Redis) -> None:
    """Random scripts answer, keep, expire and notify the same, whatever a server says of itself."""
    for seed in range(SEQUENCES):
        dice = Random(seed)
        client.flushall() if seed % 2 else client.config_resetstat()
        said = said_by(client)
        said["commandstats"] = dice.choice([said["commandstats"], ""])
        replaced = dice.choice(["-1", "-1", "1234"])
        pattern = r"second_repl_offset:-?\d+"
        said["replication"] = re.sub(pattern, f"second_repl_offset:{replaced}", said["replication"])
        uptime = f"uptime_in_seconds:{dice.choice([0, 1, 5, 1000])}"
        said["server"] = re.sub(r"uptime_in_seconds:\d+", uptime, said["server"])
        both = Both(client, f"key {seed}", said)
        for _ in range(STEPS):
            script, words = drawn(dice)
            both.run(script, *words)
            both.clock.pass_by(dice)
        both.notifications()
        both.close()


def test_the_model_says_of_itself_what_a_server_says(client: redis.Redis) -> None:
    """Every line that the model gives to INFO is one of a real server, in the same form."""
    model = RedisModel(lambda: 10**15, lambda *_notify: None)
    model.flush()
    said = said_by(client)
    for section in SECTIONS:
        real = dict(line.split(":", 1) for line in said[section].splitlines() if ":" in line)
        for line in model.call("INFO", section).splitlines():
            name, value = line.split(":", 1)
            if name in {"run_id", "master_replid"}:  # The model counts them.
                assert re.fullmatch(r"[0-9a-f]{40}", real[name])
            elif section == "commandstats":
                assert real[name].startswith("calls=")
            else:
                shape = re.sub(r"\d+", "N", value).removeprefix("-")
                assert re.sub(r"\d+", "N", real[name]).removeprefix("-") == shape


def test_a_lease_of_days_outlives_those_who_ask(client: redis.Redis) -> None:
    """On a server, a lease's key is kept until a day after its end, whoever comes and goes."""
    _bucket, keys = LAYOUT.of_key("days")
    days = 10 * 24 * 3600 * 1_000_000

    def run(script: Script, *words: str) -> Any:
        return client.eval(script.text, len(keys), *keys, "run:id", "0", "single", *words)

    held = run(scripts.ACQUIRE, "holder", "p", "", str(days), "0", "0")
    assert held[0] == b"held"
    run(scripts.ACQUIRE, "waiter", "q", "", "1000000", "9", "0")
    for script, *words in (
        (scripts.BEAT, "waiter", "1000000"),
        (scripts.RELEASE, "waiter", "0"),
        (scripts.ACQUIRE, "another", "q", "", "1000000", "0", "0"),
    ):
        run(script, *words)
        left = client.pttl(keys[0]) * 1000
        assert left > days
