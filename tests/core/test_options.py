"""Options, URLs and keys that cannot work: each is refused with its value and a remedy."""

from __future__ import annotations

import uuid
from datetime import timedelta
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import redis

from weblock import AsyncLocks, Attempts, ConfigurationError, Key, Locks, LockTimeout
from weblock._core.table import SHARED
from weblock._options import Options
from weblock.stores.memory import MemoryEngine

NAN, INFINITY = float("nan"), float("inf")


@pytest.fixture
def url() -> str:
    """The URL of an engine that nobody has used before."""
    return f"memory://{uuid.uuid4().hex}"


@pytest.fixture(params=[Locks, AsyncLocks])
def api(request: pytest.FixtureRequest) -> Any:
    return request.param


BAD_DURATIONS = [
    NAN,
    INFINITY,
    -INFINITY,
    -1,
    -0.001,
    True,
    "10",
    b"1",
    [1],
    Decimal(10),
    Fraction(1, 2),
    1j,
    10**400,
    timedelta(days=-1),
    timedelta(days=10_000),
]
BAD = [
    *[("ttl", value) for value in [*BAD_DURATIONS, None, 0, 0.05]],
    *[("wait", value) for value in BAD_DURATIONS],
    *[("max_hold", value) for value in [*BAD_DURATIONS, 0, 0.05]],
    *[("max_waiters", value) for value in [-1, 1.5, True, "10", None, NAN]],
    *[("limit", value) for value in [0, -1, True, 1.0, "3", None, 10**9]],
    *[("shared", value) for value in [0, 1, None, "yes"]],
    *[("renew", value) for value in [0, 1, None, "yes"]],
    *[("label", value) for value in [7, b"label"]],
]


@pytest.mark.parametrize(("name", "value"), BAD)
def test_a_bad_option_is_refused(api: Any, url: str, name: str, value: object) -> None:
    """An option of the wrong kind, sign or size is refused at once, by name and with its value."""
    with pytest.raises(ConfigurationError, match=rf"^{name}=") as refused:
        api.from_url(url, **{name: value})
    assert any(word in str(refused.value) for word in ("must be", "give seconds"))
    assert len(str(refused.value)) < 300


@pytest.mark.parametrize(("name", "value"), BAD)
def test_a_bad_option_of_one_call_is_refused(url: str, name: str, value: object) -> None:
    """The same holds where an option is given to one call, and the key stays free."""
    with Locks.from_url(url) as locks:
        for call in (locks.acquire, lambda key, **o: locks.hold(key, **o).__enter__()):
            with pytest.raises(ConfigurationError, match=rf"^{name}="):
                call("key", **{name: value})
        locks.acquire("key", wait=0).release()


@pytest.mark.parametrize("share", [-0.01, 0.3, 1, NAN, True, "1%", None])
def test_a_drift_that_is_no_share(api: Any, url: str, share: object) -> None:
    """A drift allowance is a share of the time, and leaves most of a lease."""
    with pytest.raises(ConfigurationError, match=r"^drift=.*from 0 to 0\.25"):
        api.from_url(url, drift=share)


def test_the_drift_allowance_is_not_relied_on(url: str) -> None:
    """A holder gives its lease up as much earlier as clocks may differ, also when it is extended."""
    with Locks.from_url(url, ttl=100, drift=0.2) as locks, locks.hold("key") as lease:
        assert lease.remaining() <= 80
        lease.extend(60)
        kept = locks.inspect("key")
        assert kept
        assert lease.remaining() <= 0.8 * kept.remaining


def test_a_drift_is_for_all_leases(url: str) -> None:
    """It tells of the machines, not of one key."""
    with Locks.from_url(url) as locks, pytest.raises(TypeError, match="drift= is for all leases"):
        locks.acquire("key", drift=0.1)


@pytest.mark.parametrize("engine", ["redis", "memcached"])
@pytest.mark.parametrize("yes", ["true", "True", "1"])
def test_engines_read_an_option_alike(engine: str, yes: str) -> None:
    """What one engine takes for yes, another does too."""
    with Locks.from_url(f"{engine}://host?allow_eviction={yes}") as locks:
        assert locks._engine.settings.allow_eviction is True  # type: ignore[attr-defined]


def test_a_wait_below_nothing(url: str) -> None:
    """The limits are told in units that one can read, and so is how to wait without end."""
    told = "wait=-1 must be 0 seconds to 366 days: 0 never waits, and None waits indefinitely"
    with pytest.raises(ConfigurationError, match=told):
        Locks.from_url(url, wait=-1)


@pytest.mark.parametrize("name", ["wait", "max_hold"])
def test_the_remedy_for_infinity(url: str, name: str) -> None:
    """Who writes infinity is told how to say it."""
    with pytest.raises(ConfigurationError, match="None"):
        Locks.from_url(url, **{name: INFINITY})


@pytest.mark.parametrize(
    "options",
    [
        {"ttl": 0.1},
        {"ttl": timedelta(minutes=5), "wait": timedelta(0), "max_hold": timedelta(hours=1)},
        {"ttl": 10, "wait": None, "max_hold": None, "max_waiters": 0, "renew": False},
        {"label": "x" * 10_000, "namespace": "a.b_c-D9", "require_scope": "process", "drift": 0},
        {"ttl": 366 * 86400},
    ],
)
def test_good_options_work(api: Any, url: str, options: dict[str, Any]) -> None:
    """Seconds and timedeltas, none and zero, each where it makes sense."""
    assert api.from_url(url, **options).scope == "process"


def test_a_timedelta_is_seconds(url: str) -> None:
    """A timedelta means its whole length, days and all."""
    with Locks.from_url(url, ttl=timedelta(days=1, seconds=1)) as locks, locks.hold("key") as lease:
        assert 86_401 * 0.98 < lease.remaining() <= 86_401


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("timeout", r"'timeout': did you mean wait= \(seconds to wait .*\), or ttl= \(seconds "),
        ("blocking_timeout", "did you mean wait="),
        ("expire", "did you mean ttl="),
        ("auto_renewal", "did you mean renew="),
        ("max_waiter", "'max_waiter': did you mean 'max_waiters'[?] Available: drift, label"),
        ("colour", "'colour'; available: drift, label, limit"),
        ("prefix", r"belongs into the URL, as in redis://host\?prefix="),
    ],
)
def test_an_unknown_option(api: Any, url: str, name: str, told: str) -> None:
    """A misspelled option is no option, and the message says which one is meant, or which there are."""
    with pytest.raises(TypeError, match=told):
        api.from_url(url, **{name: 5})
    with Locks.from_url(url) as locks, pytest.raises(TypeError, match=f"no option '{name}'"):
        locks.acquire("key", **{name: 5})


@pytest.mark.parametrize("name", ["namespace", "require_scope", "drift"])
def test_an_option_for_all_leases_is_none_of_a_call(url: str, name: str) -> None:
    """The message says where it belongs."""
    with (
        Locks.from_url(url) as locks,
        pytest.raises(TypeError, match=f"{name}= is for all .*from_url"),
    ):
        locks.acquire("key", **{name: "x"})


async def test_try_acquire_takes_no_wait(url: str) -> None:
    """It never waits; that it does not may be said."""
    async with AsyncLocks.from_url(url) as asynchronous:
        with Locks.from_url(url) as locks:
            for wait in (2, None, timedelta(1), Attempts(2)):
                told = "try_acquire never waits, and was given wait=.* call acquire"
                with pytest.raises(TypeError, match=told):
                    locks.try_acquire("key", wait=wait)
                with pytest.raises(TypeError, match=told):
                    await asynchronous.try_acquire("key", wait=wait)
            lease = locks.try_acquire("key", wait=0)
            assert lease
            lease.release()
            assert await asynchronous.try_acquire("key", wait=timedelta(0))


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("redis://user:S3cretCanary@host", r"takes an open engine, not a URL: write \w+\.from_url"),
        (["redis://a"], "not a URL"),
        (None, r"was given a builtins\.NoneType: write \w+\.from_url\(url\), or \w+\.from_client"),
        (redis.Redis(), r"was given a redis\.client\.Redis: .* for a redis-py client"),
    ],
)
def test_what_is_no_engine(api: Any, given: Any, told: str) -> None:
    """A URL or a client in place of an engine is told where it belongs."""
    with pytest.raises(TypeError, match=told) as refused:
        api(given)
    assert CANARY not in str(refused.value)


def test_locks_without_an_engine(api: Any) -> None:
    """Who does not know that they need one is told how to get them."""
    with pytest.raises(TypeError, match=rf"^{api.__name__}\(.*write {api.__name__}\.from_url"):
        api()


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (7, "builtins.int is not a URL: an engine URL is a string"),
        ({}, "builtins.dict is not a URL"),
        (Path("/run/locks"), "for a directory, write file:///run/locks"),
        (redis.Redis(), "give a ready client to from_client"),
    ],
)
def test_what_is_no_url(api: Any, given: Any, told: str) -> None:
    """A path or a client in place of a URL is told what to write."""
    with pytest.raises(ConfigurationError, match=told):
        api.from_url(given)
    if not isinstance(given, redis.Redis):
        with pytest.raises(ConfigurationError, match="give a redis-py client, or use from_url"):
            api.from_client(given)


@pytest.mark.parametrize("namespace", ["", "a:b", "a\nb", "ä", None, 7, "n" * 65])
def test_a_bad_namespace(api: Any, url: str, namespace: object) -> None:
    """A namespace that could meet another is refused."""
    with pytest.raises(ConfigurationError, match="namespace"):
        api.from_url(url, namespace=namespace)


def test_more_scope_than_the_engine_has(api: Any, url: str) -> None:
    """An engine of less reach than is required is an error at start, not an overlap later."""
    with pytest.raises(
        ConfigurationError, match=r"scope='process'.*require_scope='cluster'.*redis"
    ):
        api.from_url(url, require_scope="cluster")
    with pytest.raises(ConfigurationError, match="require_scope='galaxy' is not one of"):
        api.from_url(url, require_scope="galaxy")


CANARY = "S3cretCanary"


@pytest.mark.parametrize(
    ("bad", "problem"),
    [
        ("", "no scheme"),
        ("redis", "no scheme"),
        (f"redis:/user:{CANARY}@host", "no scheme"),
        (f"user:{CANARY}@host", "no scheme"),
        (f"user:{CANARY}@host/://", "no scheme"),
        (f":{CANARY}@://", "no scheme"),
        (f"host=localhost password={CANARY}", r"no scheme: 'host'\.\.\."),
        (f"localhost:6379,password={CANARY}", "no scheme: 'localhost:6379'"),
        (f"redis:/host?password={CANARY}", "no scheme: 'redis:/host'"),
        (f"redis://:{CANARY}@host/0?client_name=me@home", "write %40 for an '@' in an option"),
        (f"redis://host?sentinel_password={CANARY}@2", "write %40"),
        (f"redis://:a?{CANARY}@host", "write .* %3F for a '[?]' in a password"),
        (f"postgresql://user:a?{CANARY}@host/db", "%3F"),
        (f"postgresql://user:{CANARY}@host/db?sslmode=require&sslmode=disable", "twice"),
        (f"zookeeper://user:a?{CANARY}@host", "%3F"),
        (f"zookeeper://user:{CANARY}", "names no server with 'user'"),
        (f"memcached://host?prefix={CANARY}@2", "%40"),
        (f"nosuch://user:{CANARY}@host", "no engine for the URL scheme 'nosuch://'.*memory://"),
        (f"nosuch://user:{CANARY}[@host", "scheme 'nosuch://'; available:"),
        (f"redsi://user:{CANARY}\u2100@host", "did you mean 'redis://'[?]"),
        (
            "redis://host?allow_evictions=1",
            "Redis option 'allow_evictions': did you mean 'allow_ev",
        ),
        ("redis://host?timeout=1&timeout=2", "option 'timeout' twice"),
        ("zookeeper://host?sesion_timeout=1", "did you mean 'session_timeout'"),
        ("memcached://host?allow_eviction=perhaps", "must be true or false"),
        ("memory://?recovery=3", "no memory:// option 'recovery'; available: none"),
        ("noop://?wait=3", "no noop:// option 'wait'"),
        (f"file://user:{CANARY}@host/path", "three slashes"),
        (f"file://user:{CANARY}[@host/path", "three slashes"),
        (f"file://user:{CANARY}\u2100@host/path", "three slashes"),
        ("file://relative/path", "three slashes"),
        ("file:///path?mode=1", "no file:// option 'mode'; available: allow_container"),
        ("file:///path?allow_container=maybe", "must be true or false"),
        ("file:///path#part", "three slashes"),
        ("file:///path%00", "three slashes"),
        ("file:///", "three slashes"),
        (b"memory://", "no scheme"),
        ([], "odd number of servers, not 0"),
    ],
)
def test_a_bad_url(api: Any, bad: Any, problem: str) -> None:
    """A URL that names no engine is refused clearly, and no password in it is shown."""
    with pytest.raises(ConfigurationError, match=problem) as refused:
        api.from_url(bad)
    assert CANARY[:4] not in str(refused.value)
    assert refused.value.__cause__ is None or CANARY not in str(refused.value.__cause__)


def test_the_scheme_is_not_case_sensitive() -> None:
    """As in any URL, the scheme may be written in any case."""
    with Locks.from_url("MEMORY://upper") as locks:
        assert locks.scope == "process"


@pytest.mark.parametrize("shown", [repr, str, lambda locks: locks.engine])
def test_no_password_is_shown(shown: Any) -> None:
    """An engine's name, and what shows it, has no user and no password."""
    with Locks.from_url(f"memory://user:{CANARY}@host") as locks:
        assert CANARY not in shown(locks)


def test_no_key(url: str) -> None:
    """To lock nothing is a mistake."""
    with Locks.from_url(url) as locks, pytest.raises(TypeError, match="at least one key"):
        locks.acquire()


@pytest.mark.parametrize("by", [NAN, INFINITY, -1, "1", None, True])
def test_a_bad_extension(url: str, by: object) -> None:
    """An extension of the wrong kind, sign or size is refused, and the lease stays as it was."""
    with Locks.from_url(url) as locks, locks.hold("key") as lease:
        with pytest.raises(ConfigurationError, match=r"^by="):
            lease.extend(by)
        lease.check()


def test_a_message_about_a_wait(url: str) -> None:
    """The options of the error are those of the call, in seconds."""
    with Locks.from_url(url) as locks:
        lease = locks.acquire("key")
        with pytest.raises(LockTimeout, match=r"wait=0") as refused:
            locks.acquire("key", wait=timedelta(0))
        assert refused.value.wait == 0
        lease.release()


def test_a_decorator_checks_its_options_at_once(api: Any, url: str) -> None:
    """A bad option or template of a decorator is an error where it decorates."""
    locks = api.from_url(url)
    with pytest.raises(ConfigurationError, match="ambiguous"):
        locks.serialized("{a}{b}")
    with pytest.raises(ConfigurationError, match=r"^ttl="):
        locks.serialized("key", ttl=-1)


async def test_a_decorator_of_the_wrong_api(url: str) -> None:
    """Each API refuses the other's functions, and says which one to use."""

    async def coroutine() -> None: ...

    def function() -> None: ...

    with pytest.raises(TypeError, match="decorate it with AsyncLocks"):
        Locks.from_url(url).serialized("key")(coroutine)
    with pytest.raises(TypeError, match="decorate it with Locks"):
        AsyncLocks.from_url(url).serialized("key")(function)


def test_a_limit_and_shared_exclude_each_other(api: Any, url: str) -> None:
    """In one call; a call overrides what its locks say by default, either way."""
    with pytest.raises(ConfigurationError, match="limit=3 and shared=True exclude each other"):
        api.from_url(url, limit=3, shared=True)
    options = Options(shared=True)
    assert options.own[0].limit == SHARED
    assert options.of_call({"limit": 3})[0].limit == 3
    assert options.of_call({"shared": False})[0].limit == 1
    assert Options(limit=3).of_call({"shared": True})[0].limit == SHARED
    assert Options(limit=3).of_call({"shared": False})[0].limit == 3


@pytest.mark.parametrize(
    ("limits", "refused"),
    [("exclusive", [{"limit": 2}, {"shared": True}]), ("shared", [{"limit": 2}]), ("any", [])],
)
def test_an_engine_that_cannot_share_a_key_says_so(limits: str, refused: list[Any]) -> None:
    """An option that the engine cannot do is refused at the call, or when the locks are made."""
    engine = MemoryEngine("memory://limits")
    engine.limits = limits
    with Locks(engine) as locks:
        for options in ({"limit": 2}, {"shared": True}, {"limit": 1}):
            if options in refused:
                with pytest.raises(ConfigurationError, match=r"cannot .* as (limit=2|shared=True)"):
                    locks.acquire("key", **options)
                with pytest.raises(ConfigurationError, match="cannot grant a key to several"):
                    Locks(engine, **options)
            else:
                locks.acquire("key", **options).release()


def test_two_limits_of_one_template_are_logged_once(url: str, caplog: Any) -> None:
    """Whatever its values: one of them is a mistake, and as long as both hold, the smaller counts."""
    with Locks.from_url(url, namespace=uuid.uuid4().hex) as locks:
        for limit, item in ((3, 1), (3, 2), (5, 1), (4, 3)):
            locks.acquire(Key("item:{item}", item=item), limit=limit).release()
            locks.acquire(Key("item:{item}", item=item), shared=True).release()
            locks.acquire(Key("item:{item}", item=item)).release()
    (logged,) = [each for each in caplog.messages if "limit=" in each]
    assert "'item:{item}' is acquired with limit=3 and with limit=5" in logged
