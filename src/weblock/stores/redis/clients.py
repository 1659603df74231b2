"""Settings from a redis-py client that the application has already.

weblock opens connections of its own, with the settings of the client's connections. Each of these
settings is one of four kinds:

1. Where the server is, as whom and over which kind of connection: it is taken over (``_TAKEN``
   and the class of the connections).
2. How the client waits, retries, and reads replies: weblock has its own ways (``_OF_THE_CLIENT``).
3. Anything else, if it has its default.
4. Anything else: the client is rejected. A setting that got lost could send a password to another
   server, or unencrypted.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple, NoReturn

import redis
import redis.asyncio
import redis.asyncio.sentinel
import redis.sentinel

from ...errors import ConfigurationError
from ...keys import signature_of
from ..transport.settings import checked
from .internals import forced_master_of
from .settings import (
    DEFAULT_PORT,
    OF_CONNECTION,
    OF_LOCKING,
    Address,
    Deployment,
    Settings,
)

_APIS: Final = ((redis, redis.sentinel), (redis.asyncio, redis.asyncio.sentinel))

_POOLS: Final = [p for api, _ in _APIS for p in (api.ConnectionPool, api.BlockingConnectionPool)]

_TLS: Final[Mapping[type, bool]] = {
    kind: tls
    for api, of_sentinel in _APIS
    for kind, tls in (
        (api.Connection, False),
        (api.UnixDomainSocketConnection, False),
        (api.SSLConnection, True),
        (of_sentinel.SentinelManagedConnection, False),
        (of_sentinel.SentinelManagedSSLConnection, True),
    )
}
"""Whether a class of connections uses TLS. A subclass may connect in any other way."""

_TAKEN: Final = OF_CONNECTION | {
    "ssl_ciphers",
    "ssl_exclude_verify_flags",
    "ssl_include_verify_flags",
    "ssl_min_version",
}

_OF_THE_CLIENT: Final = {
    # How a client reads replies.
    *("decode_responses", "encoder_class", "encoding", "encoding_errors", "legacy_responses"),
    *("parser_class", "protocol", "socket_read_size"),
    # How it waits and retries.
    *("health_check_interval", "retry", "retry_on_error", "retry_on_timeout", "socket_keepalive"),
    *("socket_connect_timeout", "socket_keepalive_options", "socket_timeout"),
    # How it names itself.
    *("driver_info", "lib_name", "lib_version"),
    # What redis-py's pools tell their connections.
    *("connection_pool", "event_dispatcher", "himport_registry", "maint_notifications_config"),
    *("maint_notifications_pool_handler", "oss_cluster_maint_notifications_handler"),
    *("orig_host_address", "orig_socket_connect_timeout", "orig_socket_timeout"),
}


class _Way(NamedTuple):
    """How a client reaches one server."""

    address: Address
    tls: bool
    db: int
    connection: dict[str, Any]


def settings_of(client: object, options: Mapping[str, Any]) -> Settings:
    """Return where ``client`` connects to and as which user, with options of ours.

    Raises ``ConfigurationError`` for an unknown kind of client, and for one whose connections
    weblock cannot open in the same way.
    """
    chosen = checked(options, OF_LOCKING, engine="Redis")
    if isinstance(client, redis.RedisCluster | redis.asyncio.RedisCluster):
        return _of_cluster(client, chosen)
    if not isinstance(client, redis.Redis | redis.asyncio.Redis):
        raise ConfigurationError(
            f"a {type(client).__name__} has no settings that weblock can use: give a redis.Redis, a"
            " redis.asyncio.Redis, a cluster's client, or a URL"
        )
    pool = client.connection_pool
    if isinstance(pool, tuple(of.SentinelConnectionPool for _, of in _APIS)):
        return _of_sentinel(pool, chosen)
    way = _way_of_pool(pool)
    return Settings(
        Deployment.SINGLE,
        (way.address,),
        scheme="rediss" if way.tls else "redis" if way.address.port else "unix",
        db=way.db,
        connection=way.connection,
        **chosen,
    )


def _of_cluster(client: Any, chosen: Mapping[str, Any]) -> Settings:
    nodes = client.nodes_manager
    if nodes.address_remap is not None:
        _refuse("address_remap")
    if getattr(client, "user_on_connect_func", None) is not None:
        _refuse("redis_connect_func")
    places = nodes.startup_nodes.values()
    if isinstance(client, redis.asyncio.RedisCluster):
        node = next(iter(places))
        way = _way(node.connection_class, node.connection_kwargs, hook=client.on_connect)
    else:
        one = client.get_redis_connection(client.get_default_node())
        way = _way_of_pool(one.connection_pool, hook=client.on_connect)
    return Settings(
        Deployment.CLUSTER,
        tuple(Address(node.host, int(node.port)) for node in places),
        scheme="rediss+cluster" if way.tls else "redis+cluster",
        connection=way.connection,
        **chosen,
    )


def _of_sentinel(pool: Any, chosen: Mapping[str, Any]) -> Settings:
    manager = pool.sentinel_manager
    if (type(pool), type(manager)) not in [
        (s.SentinelConnectionPool, s.Sentinel) for _, s in _APIS
    ]:
        _refuse("Sentinel's own class")
    if not pool.is_master:
        _refuse("choice of a replica", "give the client that master_for() returns")
    if forced_master_of(manager) is not None:
        _refuse("force_master_ip")
    if manager.min_other_sentinels:
        _refuse("min_other_sentinels")
    master = _way(pool.connection_class, pool.connection_kwargs)
    ways = [_way_of_pool(each.connection_pool) for each in manager.sentinels]
    if any(each._replace(address=ways[0].address) != ways[0] for each in ways):
        _refuse("different settings for different Sentinels")
    return Settings(
        Deployment.SENTINEL,
        tuple(each.address for each in ways),
        scheme="rediss+sentinel" if master.tls else "redis+sentinel",
        service=pool.service_name,
        db=master.db,
        connection=master.connection,
        sentinel=ways[0].connection,
        sentinel_tls=ways[0].tls,
        **chosen,
    )


def _way_of_pool(pool: Any, hook: object = None) -> _Way:
    if type(pool) not in _POOLS:
        _refuse(f"connection_pool of the class {_name_of(type(pool))}")
    return _way(pool.connection_class, pool.connection_kwargs, hook=hook)


def _way(connection_class: Any, kwargs: Mapping[str, Any], hook: object = None) -> _Way:
    """Return how connections of that class are made; ``hook`` is what a cluster adds to each."""
    if connection_class not in _TLS:
        _refuse(
            f"connection_class {_name_of(connection_class)}",
            "give a client with redis-py's own, or in a test without a server use memory://",
        )
    defaults = {
        name: parameter.default
        for base in connection_class.__mro__
        for name, parameter in signature_of(base).parameters.items()
    }
    connection: dict[str, Any] = {}
    for name, value in kwargs.items():
        if name in _TAKEN:
            if value is not None or name == "ssl_cert_reqs":  # Where None is a value.
                connection[name] = value
        elif name in {"host", "port", "path", "db"} | _OF_THE_CLIENT:
            continue
        elif (name, value) not in [*defaults.items(), ("redis_connect_func", hook)]:
            _refuse(f"{name}=")
    address = (
        Address(kwargs["path"])
        if kwargs.get("path")
        else Address(kwargs.get("host", "localhost"), int(kwargs.get("port", DEFAULT_PORT)))
    )
    return _Way(address, _TLS[connection_class], int(kwargs.get("db") or 0), connection)


def _refuse(setting: str, remedy: str = "give a client that does without it") -> NoReturn:
    raise ConfigurationError(
        f"weblock opens its own connections, and cannot apply this client's {setting} to them:"
        f" {remedy}"
    )


def _name_of(found: type) -> str:
    return f"{found.__module__}.{found.__qualname__}"
