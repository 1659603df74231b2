"""The Lua scripts on a real server, the simulator's model of one, and the pure functions: all say the same."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import redis

from tests.core.simulation.conformance import (
    LAYOUT,
    Clock,
    Evaluate,
    Lua,
    Pure,
    compare,
    in_the_model,
)
from tests.servers import Server, a_redis, a_valkey, an_older_redis
from weblock.stores.redis.scripts import Script


@pytest.fixture(scope="module", params=[a_valkey, a_redis, an_older_redis])
def client(request: pytest.FixtureRequest) -> Iterator[redis.Redis]:
    with Server(request.param()) as server, redis.Redis(port=server.port) as client:
        yield client


def test_a_real_server_does_the_same(client: redis.Redis) -> None:
    """Real servers and the model agree with the pure functions, where all have the same clock."""
    for seed in range(12):
        clock = Clock()
        client.delete(LAYOUT.of_bucket(0)[2])  # Its clock begins anew, and so do fences.
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
