"""Which engine a URL names, and what is imported to open it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any

import pytest

from weblock import AsyncLocks, ConfigurationError, Locks
from weblock._engines import use_url
from weblock.stores.redis.settings import SCHEMES
from weblock.stores.url import ENGINES

CODES = {
    "weblock.Locks.from_url('memory://')": {"memory"},
    "weblock.Locks.from_url('redis://localhost')": {"redis"},
    "weblock.Locks.from_url([f'redis://{n}' for n in 'abc'])": {"redis", "quorum"},
    "import redis; weblock.Locks.from_client(redis.Redis())": {"redis"},
    "try: weblock.Locks.from_url('nosuch://')\nexcept ValueError: pass": set(),
    "try: weblock.Locks.from_client({})\nexcept ValueError: pass": set(),
}
"""What an application runs, and the engines that are imported for it."""

IMPORTED = """
import os, sys, redis, redis.asyncio, weblock
for code in sys.argv[1:]:
    if not os.fork():
        exec(code)
        print(*(name.split(".")[2] for name in sys.modules if name.startswith("weblock.stores.")))
        sys.stdout.flush()
        os._exit(0)
    os.wait()
"""
"""The driver, which takes long to import, is there before; the processes that run the code are forked."""


def test_only_the_engine_that_is_named_is_imported() -> None:
    """An application pays for, and depends on, no engine but its own."""
    command = [sys.executable, "-c", IMPORTED, *CODES]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    imported = [set(line.split()) & {*ENGINES.values(), "quorum"} for line in printed.splitlines()]
    assert dict(zip(CODES, imported, strict=True)) == CODES


def test_every_scheme_opens_its_engine() -> None:
    """The list names a module for each scheme, and each module knows all schemes it is named for."""
    assert {scheme for scheme, module in ENGINES.items() if module == "redis"} == set(SCHEMES)
    rest = {"unix": "/run/x.sock", "redis+sentinel": "h/name", "rediss+sentinel": "h/name"}
    for scheme in ENGINES.keys() - {"file"}:
        user = use_url(f"{scheme}://{rest.get(scheme, 'h')}")
        assert type(user.engine).__module__.startswith(f"weblock.stores.{ENGINES[scheme]}")
        user.leave()


SERVERS = sorted(ENGINES.keys() - {"file", "memory", "noop", "unix"})


@pytest.mark.parametrize("scheme", SERVERS)
def test_an_address_that_does_not_exist_is_refused(scheme: str) -> None:
    """It is named when the URL is read, and the password is not: drivers raise a bare ``ValueError``."""
    login = "" if scheme == "memcached" else "joe:s%40cret@"
    with pytest.raises(
        ConfigurationError, match=rf"^the {re.escape(scheme)}:// URL names a server ':::'.*\[::1\]"
    ) as refused:
        Locks.from_url(f"{scheme}://{login}[:::]:99/name")
    assert "cret" not in "".join(traceback.format_exception(refused.value))
    Locks.from_url(f"{scheme}://[::1]:99" + "/name" * ("sentinel" in scheme)).close()


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("zookeeper://[fe80::1%]", "names no server"),
        ("zookeeper://h:\u0663", "names no server"),
        ("postgresql://joe:s%40cret@%F0/db", "libpq cannot read the postgresql:// URL"),
    ],
)
def test_what_a_driver_cannot_read_is_refused(url: str, words: str) -> None:
    """What its driver would answer with a bare ``ValueError`` is named when the URL is read."""
    with pytest.raises(ConfigurationError, match=words) as refused:
        Locks.from_url(url)
    assert "cret" not in "".join(traceback.format_exception(refused.value))


@pytest.mark.parametrize("around", ["{}\n", "{} ", " {}", "{}\r\n"])
def test_a_url_with_white_space_around_it_is_refused(around: str, tmp_path: Path) -> None:
    """A URL from a file has a line end: ``file://`` would lock in a directory that nobody else has."""
    with pytest.raises(
        ConfigurationError, match=r"^the file:// URL has white space.*url\.strip\(\)"
    ):
        Locks.from_url(around.format(f"file://{tmp_path}/locks"))
    assert not [*tmp_path.iterdir()]


def test_a_url_with_white_space_around_it_shows_no_password() -> None:
    """What is said of it has no part of it but the scheme, and of a quorum each URL is looked at."""
    with pytest.raises(ConfigurationError, match=r"^the redis:// URL has white space") as refused:
        Locks.from_url(["redis://a", "redis://:sec?ret@b\n", "redis://c"])
    assert "sec" not in str(refused.value)


@pytest.mark.parametrize("api", [Locks, AsyncLocks])
def test_a_variable_that_is_not_set_is_no_url(api: Any) -> None:
    """``os.environ.get`` of a missing variable is refused, and is not the engine of one machine."""
    with pytest.raises(ConfigurationError, match="URL is None: name an engine"):
        api.from_url(os.environ.get("WEBLOCK_THAT_IS_NOT_SET"))


def test_no_label_is_the_default_label() -> None:
    """``label=None`` says what leaving it out says, of the locks and of a call."""
    with Locks.from_url("memory://label", label=None) as locks, locks.hold("a", label=None):
        found = locks.inspect("a")
        assert found
        assert found.holder == locks.label
