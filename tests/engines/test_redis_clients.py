"""Ready redis-py clients: each of their settings is taken over, weblock's own business, or refused.

The clients are made as applications make them. Each client that is taken over locks on a real server,
over TLS where its settings say so.
"""

from __future__ import annotations

import asyncio
import inspect
import ssl
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import redis
import redis.asyncio
import redis.asyncio.sentinel
import redis.sentinel
import trustme

from tests.servers import Server
from tests.servers.sentinel import SERVICE
from tests.servers.tls import TlsFront
from tests.support.urls import ANSWERED
from weblock import AsyncLocks, ConfigurationError, EngineUnavailable, Locks

PASSWORD, OF_SENTINEL = "p@ss/w:rd", "s-entinel"

APIS = pytest.mark.parametrize("api", [redis, redis.asyncio], ids=["redis", "redis.asyncio"])
OPTIONS: dict[str, Any] = {**ANSWERED, "recovery": "off"}

Make = Callable[[Any, "Site"], Any]
"""Makes a client of ``redis`` or of ``redis.asyncio``."""


class Site:
    """Servers with passwords, and in front of them ports on which only TLS is understood."""

    def __init__(self, stack: ExitStack, folder: Path) -> None:
        ca, stranger = trustme.CA(), trustme.CA()
        self.ca, self.stranger = str(folder / "ca.pem"), str(folder / "stranger.pem")
        self.cert, self.key = str(folder / "client.pem"), str(folder / "client.key")
        self.ca_data = ca.cert_pem.bytes().decode()
        ca.cert_pem.write_to_path(self.ca)
        stranger.cert_pem.write_to_path(self.stranger)
        client = ca.issue_cert("client")
        client.cert_chain_pems[0].write_to_path(self.cert)
        client.private_key_pem.write_to_path(self.key)

        def start(**config: Any) -> Server:
            return stack.enter_context(Server(**config))

        def front(server: Server, *hosts: str, asks: bool = False) -> int:
            return stack.enter_context(TlsFront(server, ca, *hosts, asks=asks)).port

        self.socket = str(folder / "redis.sock")
        single = start(password=PASSWORD, unixsocket=self.socket)
        single.command("ACL", "SETUSER", "joe", "on", ">joe's", "~*", "&*", "+@all")
        self.port, self.tls = single.port, front(single, "localhost")
        self.asks = front(single, "localhost", asks=True)

        # A Sentinel cannot reach a master behind TLS, but it names it.
        named = single.port, front(single, "127.0.0.1")
        plain, of_tls = (
            start(password=OF_SENTINEL, sentinel=[f"monitor {SERVICE} 127.0.0.1 {port} 2"])
            for port in named
        )
        self.sentinel, self.sentinel_of_tls = plain.port, of_tls.port
        self.tls_sentinel_of_tls = front(of_tls, "localhost")

        plain, of_tls = (start(password=PASSWORD, cluster_enabled="yes") for _ in range(2))
        self.cluster, self.tls_cluster = plain.port, front(of_tls, "localhost", "127.0.0.1")
        of_tls.command("CONFIG", "SET", "cluster-announce-ip", "127.0.0.1")
        of_tls.command("CONFIG", "SET", "cluster-announce-port", self.tls_cluster)
        for each in (plain, of_tls):
            each.command("CLUSTER", "ADDSLOTS", *range(16384))

    def single(self, api: Any, **options: Any) -> Any:
        """A client of the single server, as its default user."""
        return api.Redis(**{"port": self.port, "password": PASSWORD, **options})

    def over_tls(self, api: Any, **options: Any) -> Any:
        return self.single(api, **{"port": self.tls, "ssl": True, **options})

    def pooled(self, api: Any, pool: str = "ConnectionPool", **options: Any) -> Any:
        """The same of a pool that the application has made."""
        made = getattr(api, pool)(**{"port": self.port, "password": PASSWORD, **options})
        return api.Redis(connection_pool=made)

    def master(self, api: Any, port: int = 0, theirs: Any = None, **options: Any) -> Any:
        """A client of the master that a Sentinel names."""
        theirs = {"password": OF_SENTINEL, **(theirs or {})}
        at = [("localhost", port or self.sentinel)]
        of = api.sentinel.Sentinel(at, sentinel_kwargs=theirs, password=PASSWORD, **options)
        return of.master_for(SERVICE)

    def clustered(self, api: Any, **options: Any) -> Any:
        made = {"host": "localhost", "port": self.cluster, "password": PASSWORD, **options}
        return api.RedisCluster(**made)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with ExitStack() as stack:
        yield Site(stack, tmp_path_factory.mktemp("site"))


def flags(*names: str) -> dict[str, Any]:
    """Those options of ``SSLConnection`` that this release of redis-py has, in both APIs."""
    values: dict[str, Any] = {
        "ssl_min_version": ssl.TLSVersion.TLSv1_2,
        "ssl_ciphers": "ECDHE+AESGCM",
        "ssl_include_verify_flags": [ssl.VerifyFlags.VERIFY_X509_STRICT],
        "ssl_exclude_verify_flags": [ssl.VerifyFlags.VERIFY_X509_STRICT],
    }
    there = inspect.signature(redis.asyncio.SSLConnection).parameters
    return {name: values[name] for name in names if name in there}


TAKEN: dict[str, Make] = {
    "password": lambda api, site: site.single(api),
    "username": lambda api, site: site.single(api, username="joe", password="joe's"),
    "credential_provider": lambda api, site: site.single(
        api,
        password=None,
        credential_provider=redis.UsernamePasswordCredentialProvider("joe", "joe's"),
    ),
    "db, client_name": lambda api, site: site.single(api, db=3, client_name="shop"),
    "unix_socket_path": lambda api, site: site.single(api, unix_socket_path=site.socket),
    "redis://": lambda api, site: api.Redis.from_url(f"redis://joe:joe's@localhost:{site.port}"),
    "unix://": lambda api, site: api.Redis.from_url(f"unix://joe:joe's@{site.socket}?db=2"),
    "the client's own business": lambda api, site: site.single(
        api,
        decode_responses=True,
        encoding="latin-1",
        health_check_interval=5,
        max_connections=3,
        protocol=3,
        socket_connect_timeout=7,
        socket_keepalive=True,
        socket_timeout=7,
    ),
    "ConnectionPool": lambda api, site: site.pooled(api),
    "BlockingConnectionPool": lambda api, site: site.pooled(api, "BlockingConnectionPool"),
    "ssl, ssl_ca_certs": lambda api, site: site.over_tls(api, ssl_ca_certs=site.ca),
    "ssl_ca_data": lambda api, site: site.over_tls(api, ssl_ca_data=site.ca_data),
    "ssl_certfile, ssl_keyfile": lambda api, site: site.over_tls(
        api, port=site.asks, ssl_ca_certs=site.ca, ssl_certfile=site.cert, ssl_keyfile=site.key
    ),
    "ssl_cert_reqs=None": lambda api, site: site.over_tls(
        api, ssl_cert_reqs=None, ssl_check_hostname=False
    ),
    "ssl_cert_reqs='none'": lambda api, site: site.over_tls(
        api, ssl_cert_reqs="none", ssl_check_hostname=False
    ),
    "ssl_check_hostname=False": lambda api, site: site.over_tls(
        api, host="127.0.0.1", ssl_ca_certs=site.ca, ssl_check_hostname=False
    ),
    "ssl_min_version, ...": lambda api, site: site.over_tls(
        api,
        ssl_ca_certs=site.ca,
        **flags("ssl_min_version", "ssl_ciphers", "ssl_exclude_verify_flags"),
    ),
    "rediss://": lambda api, site: api.Redis.from_url(
        f"rediss://joe:joe's@localhost:{site.tls}/1?ssl_ca_certs={site.ca}"
    ),
    "connection_class=SSLConnection": lambda api, site: site.pooled(
        api, port=site.tls, connection_class=api.SSLConnection, ssl_ca_certs=site.ca
    ),
    "Sentinel": lambda api, site: site.master(api),
    "Sentinel, ssl of the master": lambda api, site: site.master(
        api, site.sentinel_of_tls, ssl=True, ssl_ca_certs=site.ca
    ),
    "Sentinel, ssl of both": lambda api, site: site.master(
        api,
        site.tls_sentinel_of_tls,
        {"ssl": True, "ssl_cert_reqs": None, "ssl_check_hostname": False},
        ssl=True,
        ssl_ca_certs=site.ca,
    ),
    "RedisCluster": lambda api, site: site.clustered(api),
    "RedisCluster, ssl": lambda api, site: site.clustered(
        api, port=site.tls_cluster, ssl=True, ssl_ca_certs=site.ca
    ),
    "RedisCluster, rediss://": lambda api, site: api.RedisCluster.from_url(
        f"rediss://:p%40ss%2Fw%3Ard@localhost:{site.tls_cluster}?ssl_ca_certs={site.ca}"
    ),
    "startup_nodes": lambda api, site: site.clustered(
        api,
        host=None,
        startup_nodes=[
            (api.cluster.ClusterNode)("localhost", site.cluster),
        ],
    ),
}
"""By the settings of the client: one whose settings are taken over."""

NOT_TRUSTED: dict[str, Make] = {
    "ssl": lambda api, site: site.over_tls(api),
    "another's ssl_ca_certs": lambda api, site: site.over_tls(api, ssl_ca_certs=site.stranger),
    "another's name": lambda api, site: site.over_tls(
        api, host="127.0.0.1", ssl_ca_certs=site.ca, ssl_check_hostname=True
    ),
    "Sentinel, ssl": lambda api, site: site.master(api, site.sentinel_of_tls, ssl=True),
    "Sentinel, ssl of the Sentinels": lambda api, site: site.master(
        api, site.tls_sentinel_of_tls, {"ssl": True, "ssl_ca_certs": site.stranger}
    ),
}
"""Clients whose settings are taken over, and with which the server is not trusted."""


class NoToken(redis.CredentialProvider):
    """One that cannot reach what it has its tokens from."""

    def get_credentials(self) -> tuple[str]:
        raise LookupError("no token")


def subclass(base: type) -> Any:
    """A class of the application's own, as fakeredis and tunnels have one."""
    return type("Special", (base,), {})


def of_a_subclass(api: Any, site: Site) -> Any:
    """A client of Sentinels that are asked in another way."""
    of = subclass(api.sentinel.Sentinel)([("localhost", site.sentinel)])
    return of.master_for(SERVICE)


REFUSED: dict[str, tuple[Make, str]] = {
    "connection_class": (
        lambda api, site: site.pooled(api, connection_class=subclass(api.Connection)),
        r"connection_class .*Special.*memory://",
    ),
    "connection_pool": (
        lambda api, _: api.Redis(connection_pool=subclass(api.ConnectionPool)()),
        r"connection_pool of the class .*Special",
    ),
    "redis_connect_func": (
        lambda api, site: site.single(api, redis_connect_func=print),
        "redis_connect_func=",
    ),
    "socket_type": (lambda api, site: site.pooled(api, socket_type=1), "socket_type="),
    "an unknown setting": (lambda api, site: site.pooled(api, tunnel="x"), "tunnel="),
    "ssl_... without TLS": (
        lambda api, site: site.pooled(api, ssl_ca_certs=site.ca),
        "ssl_ca_certs",
    ),
    "username beside a provider": (
        lambda api, site: site.pooled(
            api, credential_provider=redis.UsernamePasswordCredentialProvider("a", "b")
        ),
        "credential_provider",
    ),
    "slave_for": (
        lambda api, _: api.sentinel.Sentinel([("h", 1)]).slave_for(SERVICE),
        r"master_for\(\)",
    ),
    "min_other_sentinels": (
        lambda api, site: site.master(api, min_other_sentinels=1),
        "min_other_sentinels",
    ),
    "a class of Sentinel's": (of_a_subclass, "Sentinel's own class"),
    "address_remap": (
        lambda api, site: site.clustered(api, address_remap=lambda place: place),
        "address_remap",
    ),
}
"""Clients that are refused when the locks are created, and what the error says."""

if "force_master_ip" in inspect.signature(redis.sentinel.Sentinel).parameters:
    REFUSED["force_master_ip"] = (
        lambda api, site: site.master(api, force_master_ip="127.0.0.2"),
        "force_master_ip",
    )


@APIS
@pytest.mark.parametrize("name", TAKEN)
async def test_a_client_s_settings_are_taken_over(api: Any, site: Site, name: str) -> None:
    """Both APIs lock where the client would write, as its user and over its kind of connection."""
    client = await asyncio.to_thread(TAKEN[name], api, site)
    with Locks.from_client(client, engine_options=OPTIONS) as locks, locks.hold("a"):
        async with AsyncLocks.from_client(client, engine_options=OPTIONS) as others:
            assert await others.try_acquire("a") is None
    await closed(client)


@APIS
@pytest.mark.parametrize("name", NOT_TRUSTED)
async def test_a_server_that_the_client_would_not_trust_is_not_used(
    api: Any, site: Site, name: str
) -> None:
    """No certificate of the client's is lost, so that a stranger's server gets no password."""
    client = NOT_TRUSTED[name](api, site)
    with (
        Locks.from_client(client, engine_options=OPTIONS, wait=0) as locks,
        pytest.raises(EngineUnavailable, match=r"CERTIFICATE_VERIFY_FAILED|no Sentinel"),
    ):
        locks.acquire("a")
    async with AsyncLocks.from_client(client, engine_options=OPTIONS, wait=0) as others:
        with pytest.raises(EngineUnavailable, match=r"CERTIFICATE_VERIFY_FAILED|no Sentinel"):
            await others.acquire("a")
    await closed(client)


@APIS
@pytest.mark.parametrize("name", REFUSED)
async def test_a_setting_that_would_be_lost_is_refused(api: Any, site: Site, name: str) -> None:
    """What weblock's own connections cannot have is named when the locks are created."""
    make, told = REFUSED[name]
    client = await asyncio.to_thread(make, api, site)
    for locks_class in (Locks, AsyncLocks):
        with pytest.raises(ConfigurationError, match=told):
            locks_class.from_client(client)
    await closed(client)


@APIS
async def test_a_client_that_cannot_connect_is_no_engine(api: Any, site: Site) -> None:
    """Whatever a credential provider raises is an ``EngineUnavailable`` that says it."""
    client = site.single(api, password=None, credential_provider=NoToken())
    with (
        Locks.from_client(client, engine_options=OPTIONS, wait=0) as locks,
        pytest.raises(EngineUnavailable, match="LookupError: no token"),
    ):
        locks.acquire("a")
    async with AsyncLocks.from_client(client, engine_options=OPTIONS, wait=0) as others:
        with pytest.raises(EngineUnavailable, match="LookupError: no token"):
            await others.acquire("a")
    await closed(client)


def test_ocsp_is_refused() -> None:
    """Only redis-py's blocking connections can ask whether a certificate was revoked."""
    with pytest.raises(ConfigurationError, match="ssl_validate_ocsp="):
        Locks.from_client(redis.Redis(ssl=True, ssl_validate_ocsp=True))


def test_how_to_connect_is_the_client_s_business() -> None:
    """A password among the options of locking is refused, because the client has one or none."""
    with pytest.raises(ConfigurationError, match="no Redis option 'password'"):
        Locks.from_client(redis.Redis(), engine_options={"password": "x"})


async def closed(client: Any) -> None:
    if inspect.isawaitable(closing := getattr(client, "aclose", client.close)()):
        await closing
