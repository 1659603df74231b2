"""``weblock doctor`` and ``bench``: what is wrong with an engine, and what it costs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import pytest

from tests.servers import (
    Memcached,
    SentinelDeployment,
    Server,
    fresh_memcached,
    fresh_quorum,
    fresh_url,
    shared,
)
from tests.servers.cluster import SLOTS
from tests.servers.postgres import fresh_postgresql, shared_postgres
from tests.servers.rights import COMMANDS, USER, grant_least_rights, unknown
from tests.servers.sentinel import SERVICE
from tests.support.waiting import PATIENCE, eventually
from weblock.cli import doctor
from weblock.stores.file import checks as of_directories
from weblock.stores.findings import Finding, Level
from weblock.stores.memcached import open_engine
from weblock.stores.postgresql import diagnosis as of_postgresql
from weblock.stores.postgresql.settings import parse as postgresql_settings
from weblock.stores.redis.servers import FIELDS, Seen, fitness, of_clocks, of_server
from weblock.stores.redis.settings import Address, parse

TOP = Path(__file__).parents[2]
REDIS_PAGE = TOP / "docs/redis.md"
SCRIPTS = TOP / "src/weblock/stores/redis/lua"

WELL = {
    "redis_version": "7.2.4",
    "role": "master",
    "cluster_enabled": "0",
    "run_id": "r",
    "uptime_in_seconds": "1",
    "master_replid": "i",
    "second_repl_offset": "-1",
    "connected_slaves": "0",
    "aof_enabled": "1",
    "maxmemory": "0",
    "maxmemory_policy": "noeviction",
    "used_memory": "1048576",
    "connected_clients": "3",
    "maxclients": "10000",
}
"""What a server says of itself that is as it should be."""


def found(facts: dict[str, str], url: str = "redis://x") -> dict[str, Finding]:
    seen = Seen(Address("x", 1), WELL | facts, 0.001, 0.0, (0, True))
    return {each.code: each for each in of_server(seen, parse(url))}


def test_a_server_that_is_well_has_no_remedies() -> None:
    """Where nothing is wrong, each finding is ok, and recommends nothing."""
    assert {(each.level, each.remedy) for each in found({}).values()} == {(Level.OK, "")}


@pytest.mark.parametrize(
    ("facts", "url", "code", "level", "said"),
    [
        ({"redis_version": "6.0.9"}, "redis://x", "version", "problem", "Redis 6.0.9"),
        ({"role": "slave"}, "redis://x", "role", "problem", "replica"),
        ({"connected_slaves": "1"}, "redis://x", "replicas", "warning", "1 replica,"),
        ({}, "redis://x?min_replicas=1", "replicas", "problem", "min_replicas=1"),
        (
            {"rdb_last_bgsave_status": "err"},
            "redis://x",
            "persistence",
            "problem",
            "snapshot failed",
        ),
        ({"aof_enabled": "0"}, "redis://x?recovery=off", "persistence", "warning", "recovery=off"),
        ({"aof_enabled": "0"}, "redis://x", "persistence", "warning", "no append-only file"),
        (
            {"maxmemory": "9000000", "maxmemory_policy": "allkeys-lru"},
            *("redis://x", "eviction", "problem", "allkeys-lru"),
        ),
        (
            {"maxmemory": "9000000", "maxmemory_policy": "allkeys-lru"},
            *("redis://x?allow_eviction=true", "eviction", "warning", "allkeys-lru"),
        ),
        ({"maxmemory": "1048577"}, "redis://x", "memory", "warning", "1.0 MiB of 1.0 MiB"),
        ({"maxclients": "3"}, "redis://x", "connections", "warning", "3 of 3"),
    ],
)
def test_what_is_wrong_has_a_remedy(facts, url, code, level, said) -> None:
    """What would break locks on a Redis server is found, with what to do about it."""
    finding = found(facts, url)[code]
    assert finding.level == level
    assert said in finding.text
    assert finding.remedy


@pytest.mark.parametrize("field", FIELDS)
def test_a_server_that_does_not_tell_what_is_needed_is_a_problem(field: str) -> None:
    """The page lists each field of INFO that is needed, and a server without it grants nothing."""
    assert f"`{field}`" in REDIS_PAGE.read_text()
    told = {name: value for name, value in WELL.items() if name != field}
    (finding,) = fitness(told, parse("redis://x"))
    assert finding.level is Level.PROBLEM
    assert field in finding.text


@pytest.fixture(scope="module")
def single() -> Iterator[Server]:
    with Server() as server:
        yield server


@pytest.fixture(scope="module")
def node() -> Iterator[Server]:
    """A cluster of one master."""
    with Server(cluster_enabled="yes") as server:
        server.command("CLUSTER", "ADDSLOTS", *range(SLOTS))
        eventually(lambda: server.client().cluster("info")["cluster_state"] == "ok")
        yield server


@pytest.mark.parametrize("command", sorted(COMMANDS | {"asking", "cluster|slots"}))
def test_each_command_that_is_missing_is_named(request, run, command: str) -> None:
    """Of all commands that the page lists, the doctor names the one that the user may not run."""
    clustered = command in {"asking", "cluster|slots"}
    server = request.getfixturevalue("node" if clustered else "single")
    grant_least_rights(server, "+cluster|slots", "+asking", f"-{command}")
    url = server.url(user=USER, recovery="off", **OPTIONS.get(command, {}))
    if clustered:
        url = url.replace("redis://", "redis+cluster://")
    done = run("doctor", "--check", "--url", url)
    assert re.search(rf"\b{re.escape(command)}\b", done.stdout, re.IGNORECASE), done.stdout
    assert "grant it to the user; docs/redis.md" in done.stdout.lower()


OPTIONS = {"select": {"db": 1}, "client|setname": {"client_name": "x"}, "wait": {"min_replicas": 1}}
"""What a URL has to ask for until a command is sent."""


@pytest.mark.parametrize("command", ["ZRANK", "HELLO"])
def test_each_command_that_a_server_does_not_have_is_named(run, command: str) -> None:
    """A server that lacks a command, as a compatible one might, is found out like one that denies it."""
    with Server(**unknown(command)) as server:
        done = run("doctor", "--check", "--url", server.url(recovery="off"))
    assert command in done.stdout
    assert "docs/redis.md" in done.stdout


def test_the_page_lists_what_the_scripts_call() -> None:
    """A command of a script is tried on each new server, and is on the page; no other is tried."""
    texts = {path.stem: path.read_text() for path in SCRIPTS.glob("*.lua")}
    tried = set(re.findall(r"\btry\('([A-Z]+)'", texts["probe"]))
    called = set(re.findall(r"redis\.call\('([A-Z]+)'", "".join(texts.values())))
    store = (SCRIPTS.parent / "store.py").read_text()  # It names the command of command.lua.
    called |= set(re.findall(r"\(\"([A-Z]{3,})\"", store))
    assert tried == called | {"PING"}
    assert {command.lower() for command in tried} <= COMMANDS


@pytest.mark.parametrize(("ahead", "level"), [(0.2, Level.OK), (1.5, Level.WARNING)])
def test_clocks_are_compared(ahead: float, level: Level) -> None:
    """Servers whose clocks differ by more than a second are warned of; one server's clock may differ."""
    seen = [
        Seen(Address(name, 1), WELL, 0.001, at, (0, True))
        for name, at in (("a", 0.0), ("b", ahead))
    ]
    (finding,) = of_clocks(seen)
    assert finding.level is level
    assert (
        f"differ by {ahead:.3f} s; the clock of b:1 is {ahead:.3f} s ahead of ours" in finding.text
    )
    (alone,) = of_clocks(seen[1:])
    assert alone.level is Level.OK


def findings(told, *arguments: str) -> dict[str, dict[str, Any]]:
    return {each["code"]: each for each in told("doctor", *arguments)["findings"]}


def test_a_slow_engine_is_warned_of(monkeypatch, told) -> None:
    """An engine that takes long to answer is a warning, with what to do."""
    monkeypatch.setattr(doctor, "SLOW", 0.0)
    found = findings(told, "--url", "memory://")["round_trip"]
    assert (found["level"], found["remedy"]) == (
        "warning",
        "Run the server closer to the application.",
    )


@pytest.mark.parametrize(
    "server", ["redis://127.0.0.1:1", "memcached://127.0.0.1:1", "postgresql://127.0.0.1:1/x"]
)
@pytest.mark.parametrize(
    ("ttl", "recovery", "level"), [("10", 10, "ok"), ("61", 60, "warning"), ("61", "off", None)]
)
def test_a_ttl_that_exceeds_recovery_is_a_warning(told, server, ttl, recovery, level) -> None:
    """After a loss of data, a longer lease might still be held when its key is granted again."""
    found = findings(told, "--url", f"{server}?recovery={recovery}", "--ttl", ttl).get("ttl")
    assert (found and found["level"]) == level
    if level == "warning":
        assert "recovery=61" in found["remedy"]


@pytest.mark.usefixtures("patient")
def test_a_real_server_is_examined(run, told) -> None:
    """On a server with the least rights all is found, a neighbour's keys too, and a key is locked there."""
    url = fresh_url()
    shared().command("SET", ":1:a-key-of-a-cache", "value", "EX", 600)
    report = findings(told, "--url", url)
    assert {"version", "replicas", "eviction", "memory", "clock", "round_trip"} <= set(report)
    wrong = {code for code, each in report.items() if each["level"] != "ok"}
    assert wrong == {"persistence", "database"}  # The former, for the URL has recovery=off.
    assert "cache.clear() of Django" in report["database"]["text"]
    done = run("doctor", "--url", url)
    assert done.exit_code == 0
    assert "  ok       hand_off     A waiter has the key " in done.stdout
    assert "secret" not in done.output


def test_each_server_of_a_quorum_is_examined(run, told) -> None:
    """A server that is down is a warning while the others are a majority and lock, and then a problem."""
    nobody = [f"redis://127.0.0.1:{port}?recovery=off" for port in (1, 2)]

    def arguments(urls: list[str]) -> list[str]:
        return [part for each in urls for part in ("--url", each)]

    report = told("doctor", *arguments([*fresh_quorum(2, timeout=PATIENCE), nobody[0]]))
    found = {(each["code"], each["where"]): each for each in report["findings"]}
    assert found["reachable", "127.0.0.1:1"]["level"] == "warning"
    assert found["majority", ""]["text"] == "2 of 3 servers answer, and 2 are needed."
    assert found["locking", ""]["level"] == "ok"
    done = run("doctor", *arguments([fresh_url(), *nobody]))
    assert done.exit_code == 69
    assert "problem  majority     1 of 3 servers answer" in done.stdout


def test_sentinels_are_examined(run, told) -> None:
    """Sentinels that do not answer, and a name that they do not know, are told as what they are."""
    with SentinelDeployment() as sentinels:
        url = sentinels.url(recovery="off")
        sentinels.sentinels[0].kill()
        said = findings(told, "--url", url)["sentinels"]
        assert (said["level"], said["text"][:37]) == (
            "warning",
            "2 of 3 Sentinels in the URL answer, a",
        )
        done = run("--url", url.replace(SERVICE, "other"), "doctor")
    assert done.exit_code == 69
    assert "The Sentinels know no master called 'other'." in done.stdout


@pytest.mark.parametrize(
    ("recovery", "said"), [("safe", "recovery keeps"), ("off", "recovery=off")]
)
def test_what_a_failover_does_depends_on_recovery(recovery: str, said: str) -> None:
    """A primary with replicas is told what a failover may do with these settings."""
    finding = found({"connected_slaves": "2"}, f"redis://x?recovery={recovery}")["replicas"]
    assert f"lose the last ones, and {said}" in finding.text


def test_memcached_that_is_unfit_is_told_why() -> None:
    """A memcached that may evict is examined all the same: the finding says what is wrong, and the remedy."""
    with Memcached() as server:
        found = {each.code: each for each in open_engine(server.url()).diagnose()}
    finding = found["eviction"]
    assert finding.level is Level.PROBLEM
    assert finding.text == "It might evict leases when its memory is full."
    assert finding.remedy.startswith("Start it with -M")


def test_memcached_is_examined(told) -> None:
    """A memcached server tells its version, and that it never evicts."""
    report = findings(told, "--url", fresh_memcached())
    assert report["eviction"]["text"] == "It never evicts a lease (-M)."
    assert report["version"]["text"].startswith("It is memcached 1.")
    assert report["persistence"]["level"] == "warning"


def test_postgresql_is_examined(told) -> None:
    """A PostgreSQL server tells its version, how it persists, and how large the table is."""
    report = findings(told, "--url", fresh_postgresql())
    assert report["version"]["text"].startswith("It is PostgreSQL 1")
    assert report["persistence"]["level"] == "problem"  # For the tests' server has fsync=off.
    assert {report[each]["level"] for each in ("pooler", "replicas", "table", "clock")} == {"ok"}
    missing = findings(told, "--url", f"{shared_postgres().url()}?table=none")
    assert "weblock ddl" in missing["table"]["remedy"]
    nowhere = findings(told, "--url", "postgresql://127.0.0.1:1/db")
    assert nowhere["reachable"]["level"] == "problem"


POSTGRESQL: Final = {
    "unlogged": False,
    "fsync": "on",
    "synchronous_commit": "on",
    "standbys": "",
    "replicas": 1,
}


@pytest.mark.parametrize(
    ("facts", "options", "code", "level", "said"),
    [
        ({"unlogged": True}, "", "unlogged", Level.PROBLEM, "SET LOGGED"),
        ({}, "", "persistence", Level.OK, "before it answers"),
        ({"synchronous_commit": "off"}, "", "persistence", Level.WARNING, "ALTER ROLE"),
        ({"standbys": "*"}, "", "replicas", Level.OK, "before it is granted"),
        ({}, "", "replicas", Level.OK, "none is granted for 10 s"),
        ({}, "?recovery=off", "replicas", Level.WARNING, "synchronous_standby_names"),
        (
            {"standbys": "*", "synchronous_commit": "local"},
            *("?recovery=off", "replicas", Level.WARNING, "Leave recovery"),
        ),
    ],
)
def test_what_a_crash_and_a_promotion_cost_on_postgresql(
    *, facts, options, code, level, said
) -> None:
    """It depends on ``synchronous_commit``, ``synchronous_standby_names`` and ``recovery``."""
    settings = postgresql_settings(f"postgresql://x/db{options}")
    found = of_postgresql.of_a_loss(POSTGRESQL | facts, settings)
    (finding,) = (each for each in found if each.code == code)
    assert finding.level is level
    assert said in finding.text + finding.remedy


@pytest.mark.parametrize(
    ("platform", "options", "level"),
    [("", "", "ok"), ("Kubernetes", "", "warning"), ("Kubernetes", "?allow_container=true", "ok")],
)
def test_a_directory_is_examined(
    *, told, monkeypatch, tmp_path: Path, platform, options, level
) -> None:
    """Of file:// it tells owner, mount, container, descriptors and space."""
    monkeypatch.setattr(of_directories, "platform_here", lambda: platform)
    report = findings(told, "--url", f"file://{tmp_path}/locks{options}")
    assert {"directory", "mount", "container", "processes", "descriptors", "space"} <= set(report)
    assert "with mode 0700" in report["directory"]["text"]
    assert report["container"]["level"] == level


def test_too_few_descriptors_are_warned_of(monkeypatch) -> None:
    """A limit that a busy process reaches is a warning, with how to raise it."""
    monkeypatch.setattr(of_directories.resource, "getrlimit", lambda _what: (64, 64))
    full = SimpleNamespace(f_bavail=1, f_frsize=4096)
    monkeypatch.setattr(of_directories.os, "statvfs", lambda _path: full)
    found = of_directories.findings("/", "file:///", alone=True)
    report = {each.code: each for each in found}
    assert "ulimit -n" in report["descriptors"].remedy
    assert "4.0 KiB are free" in report["space"].text


@pytest.mark.parametrize(
    ("url", "code", "said"),
    [
        ("memory://", 0, "warning  scope"),
        ("noop://", 1, "problem  scope"),
        ("redis://:s3cret@127.0.0.1:1", 69, "problem  reachable"),
    ],
)
def test_probes_see_what_is_wrong_only(run, url: str, code: int, said: str) -> None:
    """With --check, a problem is the exit code 1, an engine that is down 69, and what is well unsaid."""
    done = run("doctor", "--check", "--url", url)
    assert done.exit_code == code
    assert said in done.stdout
    assert "  ok " not in done.stdout
    assert "s3cret" not in done.output


def test_bench_measures(run, told) -> None:
    """Acquiring, releasing, handing over and fairness are measured, for people and for programs."""
    done = run("bench", "--seconds", "0.05", "--threads", "3")
    assert "Acquire a free key: " in done.stdout
    assert " of 3 threads" in done.stdout
    facts = told("bench", "--seconds", "0.05", "--threads", "3")
    assert facts["acquire"]["count"] > 0
    assert 0 < facts["acquire"]["median"] <= facts["acquire"]["p99"]
    assert len(facts["fairness"]["counts"]) == 3
    assert 1 / 3 <= facts["fairness"]["jain"] <= 1
