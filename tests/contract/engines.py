"""The engines that the contract is held to, and what each of them promises.

An engine is added here by one entry, and is finished when the suite passes.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.servers import a_redis, a_valkey, fresh_memcached, fresh_quorum, fresh_url
from tests.servers.postgres import fresh_postgresql
from tests.servers.zookeeper import fresh_zookeeper

PATIENT = {"timeout": 5, "connect_timeout": 5}
"""Options of quorums, where a server has a quarter of a second for an answer.

None of these servers is ever down: one that does not answer waits for a processor.
"""


@dataclass(frozen=True)
class Promises:
    """How to get an engine that nobody has used before, and what it is held to."""

    fresh_url: Callable[[Path], str | list[str]]
    locks: bool = True
    """At most one holds a key."""
    fences: bool = True
    """Fences strictly increase over all processes that lock."""
    queue: bool = True
    """First come, first served."""
    processes: bool = True
    """Processes exclude one another."""
    remembers: bool = True
    """What has been done stays so when all processes that lock are gone."""
    several: bool = False
    """Several may hold a key at once, with ``limit=`` and ``shared=``."""
    texts: bool = False
    """It keeps texts under leases."""
    in_files: bool = False
    """It is in the folder that ``fresh_url`` is given."""
    death_noticed_at_once: bool = False
    """A killed holder or waiter delays nobody; otherwise a holder does, by its ttl."""
    api: str | None = None
    """The API of the tests that cost much, where another engine has both: the same code, or part of it."""
    apis: tuple[str, ...] = ("sync", "asyncio")
    """The APIs of all other tests. What runs the same Python as another engine has one, or none."""
    by_turns: bool = False
    """Each test has one of its APIs, by turns: both ask the store, which is the same, in their own way."""
    sections: int = 1_280
    """Of how many it is shown, all on one key, that none overlap."""


ENGINES = {
    "memory": Promises(
        lambda tmp: f"memory://{uuid.uuid4().hex}",
        processes=False,
        remembers=False,
        several=True,
        texts=True,
    ),
    "noop": Promises(
        lambda tmp: f"noop://{uuid.uuid4().hex}",
        by_turns=True,
        locks=False,
        queue=False,
        processes=False,
        remembers=False,
    ),
    "file": Promises(
        lambda tmp: f"file://{tmp}/locks",
        several=True,
        texts=True,
        in_files=True,
        death_noticed_at_once=True,
    ),
    "valkey": Promises(lambda tmp: fresh_url(a_valkey()), several=True, texts=True),
    "redis": Promises(
        lambda tmp: fresh_url(a_redis()),
        several=True,
        texts=True,
        api="asyncio",
        apis=(),
        sections=512,
    ),
    "postgresql": Promises(
        lambda tmp: fresh_postgresql(),
        several=True,
        texts=True,
        api="asyncio",
        apis=("sync",),
        sections=256,
    ),
    "zookeeper": Promises(
        lambda tmp: fresh_zookeeper(), several=True, api="sync", by_turns=True, sections=256
    ),
    "redlock-3": Promises(
        lambda tmp: fresh_quorum(3, **PATIENT), api="asyncio", by_turns=True, sections=512
    ),
    "redlock-5": Promises(
        lambda tmp: fresh_quorum(5, **PATIENT), api="sync", apis=(), sections=512
    ),
    # It keeps every promise, but cannot wake another process: a waiter there looks, some milliseconds
    # later, so that a hot key changes hands a tenth as often.
    "memcached": Promises(
        lambda tmp: fresh_memcached(), several=True, api="asyncio", by_turns=True, sections=256
    ),
}

OF_EACH_KIND = {"memory", "noop", "file", "valkey"}
"""The engines for what is about the core: in this process, on files, and on a server."""
