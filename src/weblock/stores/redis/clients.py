"""Settings from a redis-py client that the application has already."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import redis
import redis.asyncio
from redis.asyncio.sentinel import SentinelConnectionPool as AsyncioSentinelConnectionPool
from redis.sentinel import SentinelConnectionPool

from ...errors import ConfigurationError
from .settings import DEFAULT_PORT, OF_CONNECTION, Address, Deployment, Settings, checked


def settings_of(client: object, options: Mapping[str, Any]) -> Settings:
    """Return where ``client`` connects to and as which user, with options of ours.

    Raises ``ConfigurationError`` for an unknown kind of client.
    """
    if isinstance(client, redis.RedisCluster | redis.asyncio.RedisCluster):
        nodes = client.nodes_manager.startup_nodes.values()
        places = tuple(Address(node.host, int(node.port)) for node in nodes)
        kwargs = (
            client.connection_kwargs
            if isinstance(client, redis.asyncio.RedisCluster)
            else client.nodes_manager.connection_kwargs
        )
        return _settings(Deployment.CLUSTER, places, kwargs, options)
    if isinstance(client, redis.Redis | redis.asyncio.Redis):
        pool = client.connection_pool
        kwargs = pool.connection_kwargs
        if isinstance(pool, SentinelConnectionPool | AsyncioSentinelConnectionPool):
            return _of_sentinel(pool, options)
        if path := kwargs.get("path"):
            return _settings(Deployment.SINGLE, (Address(path),), kwargs, options, scheme="unix")
        place = Address(kwargs.get("host", "localhost"), int(kwargs.get("port", DEFAULT_PORT)))
        tls = issubclass(pool.connection_class, redis.SSLConnection | redis.asyncio.SSLConnection)
        return _settings(Deployment.SINGLE, (place,), kwargs, options, tls=tls)
    raise ConfigurationError(
        f"a {type(client).__name__} has no settings that weblock can use: give a redis.Redis, a"
        " redis.asyncio.Redis, a cluster's client, or a URL"
    )


def _of_sentinel(pool: Any, options: Mapping[str, Any]) -> Settings:
    sentinels = [each.connection_pool.connection_kwargs for each in pool.sentinel_manager.sentinels]
    places = tuple(Address(each["host"], int(each["port"])) for each in sentinels)
    known = {
        name: sentinels[0][name] for name in ("username", "password") if sentinels[0].get(name)
    }
    settings = _settings(Deployment.SENTINEL, places, pool.connection_kwargs, options)
    return settings.with_sentinel(pool.service_name, known)


def _settings(
    deployment: Deployment,
    addresses: tuple[Address, ...],
    kwargs: Mapping[str, Any],
    options: Mapping[str, Any],
    *,
    scheme: str = "",
    tls: bool = False,
) -> Settings:
    tls = tls or bool(kwargs.get("ssl"))
    suffix = "" if deployment is Deployment.SINGLE else f"+{deployment.value}"
    given = {name: kwargs[name] for name in OF_CONNECTION if kwargs.get(name) is not None}
    return Settings(
        deployment,
        addresses,
        scheme=scheme or ("rediss" if tls else "redis") + suffix,
        db=int(kwargs.get("db") or 0),
        connection=given,
        **checked(options),
    )
