"""What Redis URLs, options and ready clients are taken to say."""

from __future__ import annotations

import logging
import traceback

import pytest
import redis
import redis.asyncio
from redis.sentinel import Sentinel

from weblock import ConfigurationError, Locks
from weblock.stores.redis import RedisEngine, adopt
from weblock.stores.redis.settings import Address, Deployment, Settings, parse

CANARY = "c4naryS3cret"


@pytest.mark.parametrize(
    ("url", "deployment", "addresses", "db"),
    [
        ("redis://", Deployment.SINGLE, [("localhost", 6379)], 0),
        ("redis://h", Deployment.SINGLE, [("h", 6379)], 0),
        ("REDIS://h:7/3", Deployment.SINGLE, [("h", 7)], 3),
        ("valkey://h:7/3", Deployment.SINGLE, [("h", 7)], 3),
        ("redis://h?db=4", Deployment.SINGLE, [("h", 6379)], 4),
        ("redis://[::1]:7/1", Deployment.SINGLE, [("::1", 7)], 1),
        ("unix:///run/redis.sock?db=2", Deployment.SINGLE, [("/run/redis.sock", 0)], 2),
        ("redis+sentinel://a,b:9/m/1", Deployment.SENTINEL, [("a", 26379), ("b", 9)], 1),
        ("rediss+cluster://a:1,b:2", Deployment.CLUSTER, [("a", 1), ("b", 2)], 0),
    ],
)
def test_a_url_says_where_the_servers_are(
    url: str, deployment: Deployment, addresses: list[tuple[str, int]], db: int
) -> None:
    """Each form of URL names its servers and its database."""
    settings = parse(url)
    assert settings.deployment is deployment
    assert settings.addresses == tuple(Address(*each) for each in addresses)
    assert settings.db == db


@pytest.mark.parametrize("password", ["p%3Aa%2Fs%40s", "p:a/s@s", "p%3Aa/s%40s"])
def test_a_password_may_contain_anything(password: str) -> None:
    """What is special in URLs may be encoded in a password, and nearly all of it may be left."""
    settings = parse(f"redis://joe:{password}@h:7/1")
    assert settings.connection == {"username": "joe", "password": "p:a/s@s"}
    assert settings.addresses == (Address("h", 7),)


@pytest.mark.parametrize(
    ("options", "checks"),
    [("", True), ("?ssl_cert_reqs=none", False), ("?ssl_check_hostname=false", False)],
)
def test_tls_checks_the_host_s_name(options: str, checks: bool) -> None:
    """Whatever redis-py's release does by itself, a name is checked unless the URL says otherwise."""
    assert parse(f"rediss://h{options}").connection["ssl_check_hostname"] is checks


def test_sentinels_are_reached_with_the_same_tls() -> None:
    """One CA signs for the masters and for the Sentinels; their users differ."""
    settings = parse("rediss+sentinel://joe:pw@h/m?ssl_ca_certs=/ca.pem&sentinel_password=other")
    assert settings.sentinel["ssl_ca_certs"] == settings.connection["ssl_ca_certs"] == "/ca.pem"
    assert settings.sentinel["ssl_check_hostname"] is True
    assert settings.sentinel["password"] == "other"
    assert "username" not in settings.sentinel


@pytest.mark.parametrize(
    ("url", "told"),
    [
        (f"redis://joe:{CANARY}@h:notaport/0", "bad port"),
        (f"redis://joe:{CANARY}@h:99999/0", "bad port"),
        (f"redis://joe:{CANARY}@h/zero", "must be a whole number"),
        (f"redis://joe:{CANARY}@h/0/1", "too many slashes"),
        (f"redis://joe:{CANARY}@h?ttl=3", "no Redis option 'ttl'"),
        (f"redis://joe:{CANARY}@h?timeout=-1", "timeout='-1'"),
        (f"redis://joe:{CANARY}@h?recovery=maybe", "'safe', 'off'"),
        (f"redis://joe:{CANARY}@h?allow_eviction=perhaps", "true or false"),
        (f"redis://joe:{CANARY}@h?prefix={{x}}", "prefix="),
        (f"redis://joe:{CANARY}@h?max_connections=0", "whole number from 1"),
        (f"redis://joe:{CANARY}@a,b", "several servers"),
        (f"redis://joe:{CANARY}@[h", "no host"),
        (f"redis+sentinel://joe:{CANARY}@h:1", "which master"),
        (f"redis+cluster://joe:{CANARY}@h:1/2", "no databases"),
        (f"unix://joe:{CANARY}@run/redis.sock", "unix:///absolute/path"),
        (f"redis://joe:{CANARY}@h?ssl_ca_certs=/ca.pem", "write rediss://"),
        (f"unix://joe:{CANARY}@/run/redis.sock?ssl_cert_reqs=none", "unix:// does not use TLS"),
        (f"redis+sentinel://joe:{CANARY}@h/m?ssl_check_hostname=true", "rediss+sentinel://"),
        (f"rediss://joe:{CANARY}@h?ssl_cert_reqs=perhaps", "cannot connect to rediss://h:6379 "),
        (f"redis://joe:{CANARY}@h?credential_provider=x", "give a client that has it"),
    ],
)
def test_a_wrong_url_is_told_without_its_secrets(url: str, told: str) -> None:
    """Each mistake in a URL is named with its remedy, and no part of the password shows."""
    with pytest.raises(ConfigurationError) as raised:
        Locks.from_url(url)
    assert told in str(raised.value)
    assert CANARY[:3] not in "".join(traceback.format_exception(raised.value, chain=True))[-600:]


def test_no_secret_shows(caplog: pytest.LogCaptureFixture) -> None:
    """Neither names nor representations nor what is said of a server that is not there has it."""
    caplog.set_level(logging.DEBUG)
    url = f"redis://{CANARY}:{CANARY}@127.0.0.1:1/0?client_name=shop"
    with Locks.from_url(url, wait=0.1) as locks:
        with pytest.raises(ConnectionError) as raised:
            locks.acquire("a")
        shown = [repr(locks), locks.engine, repr(locks._engine), str(locks._engine.settings)]  # type: ignore[attr-defined]
        shown += [str(raised.value), repr(raised.value), caplog.text]
    assert not [each for each in shown if CANARY[:3] in each]


def test_a_client_of_sentinels_is_taken_over() -> None:
    """TLS and users of Sentinels and of their master are told apart."""
    of_sentinel = {"password": "s", "ssl": True, "ssl_cert_reqs": None}
    sentinel = Sentinel([("a", 1), ("b", 2)], sentinel_kwargs=of_sentinel)
    settings = adopted(sentinel.master_for("shop", password="m", db=2), prefix="own")
    assert settings.name == "redis+sentinel://a:1,b:2/shop/2"
    assert settings.connection == {"password": "m"}
    assert (settings.sentinel_tls, settings.tls, settings.prefix) == (True, False, "own")
    assert (settings.sentinel["password"], settings.sentinel["ssl_cert_reqs"]) == ("s", None)


def test_what_is_no_client_is_refused() -> None:
    """Anything else is refused by its type's name."""
    with pytest.raises(ConfigurationError, match=r"builtins\.dict: give a redis-py client"):
        Locks.from_client({})
    with pytest.raises(ConfigurationError, match="ConnectionPool"):
        Locks.from_client(redis.ConnectionPool())


def adopted(client: object, **options: object) -> Settings:
    engine = adopt(client, **options)
    assert isinstance(engine, RedisEngine)
    return engine.settings
