"""The servers that other tests stand on, where those tests would not notice what is wrong with them."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from tests.servers import (
    Proxy,
    Server,
    a_redis,
    a_valkey,
    binaries,
    binary,
)


@pytest.fixture
def own() -> Iterator[Server]:
    with Server() as server:
        yield server


@pytest.mark.parametrize("name", sorted(binaries()))
def test_a_server_is_what_its_name_says(name: str) -> None:
    """Each server starts, answers, and has the version after which it is called."""
    with Server(name) as server:
        facts = server.client().info("server")
        kind, version = name.split("-")
        assert str(facts[f"{kind}_version"]).startswith(f"{version}.")
        assert facts["process_id"] == server.pid


def test_both_kinds_are_there() -> None:
    """The tests have a Redis and a Valkey to run on, and the Valkey is what they get unasked."""
    assert a_redis() in binaries()
    assert binary() == binaries()[os.environ.get("WEBLOCK_TEST_SERVER", a_valkey())]


@pytest.mark.parametrize("lost", ["reply", "request"])
def test_what_a_proxy_loses(own: Server, lost: str) -> None:
    """The server has acted on a request whose reply is lost, and never hears of a request that is lost."""
    with Proxy(own) as proxy, redis.Redis(port=proxy.port, retry=Retry(NoBackoff(), 0)) as client:
        client.ping()
        fault = getattr(proxy, f"drop_{lost}")(2, to=b"incr")
        assert client.incr("a") == 1
        assert client.ping()
        assert not fault.happened
        with pytest.raises(redis.ConnectionError):
            client.incr("a")
        fault.wait()
        assert own.command("GET", "a") == ("2" if lost == "reply" else "1")
        assert client.incr("a") == (3 if lost == "reply" else 2)
