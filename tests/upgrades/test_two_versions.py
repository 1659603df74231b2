"""Two versions of weblock on one engine, as in a rolling upgrade: this one, and an earlier one."""

from __future__ import annotations

import functools
import io
import json
import os
import subprocess
import tarfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from tests.contract.engines import ENGINES
from tests.contract.puppets import Puppet
from tests.engines.seats import Seat
from tests.support.waiting import PATIENCE, eventually, waiters
from weblock import LeaseLost, Locks
from weblock._core import table
from weblock._core.table import Gone, Held, Waiting
from weblock._runtime.blocking import BlockingRuntime

TOP: Final = Path(__file__).parents[2]

EARLIER: Final = os.environ.get("WEBLOCK_EARLIER", "65f71e7d0137f966cb5f790c8499f008a91692ce")
"""The commit beside which this version must work: that of the latest release, once there is one.

A change that fails here needs a new minor version, and a line in the changelog. Then this commit is set anew.
"""

WITH_POSTGRESQL: Final = os.environ.get(
    "WEBLOCK_EARLIER", "2406c2bbc9b89ce7f1a2757359304e8a32fe94af"
)
"""The same for PostgreSQL, which the other commit does not have as an engine. Neither knows limits."""

SHARED: Final = ["file", "valkey", "redlock-3", "zookeeper", "memcached", "postgresql"]
"""Engines of each kind that several processes share."""


class Earlier(Puppet):
    """A process of the earlier version."""

    def __init__(self, source: Path, url: str | list[str]) -> None:
        self.start("tests.upgrades.actor", json.dumps([url, PATIENCE]), PYTHONPATH=str(source))
        assert self.do("source").startswith(str(source))


class Versions(NamedTuple):
    """This version, and a process of the earlier one, on one engine."""

    today: Locks
    earlier: Earlier


@pytest.fixture(scope="module")
def source_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Returns the folder with the version of a commit."""

    @functools.cache
    def source_of(commit: str) -> Path:
        command = ["git", "-C", str(TOP), "archive", commit, "src/weblock"]
        try:
            archive = subprocess.run(command, capture_output=True, check=True).stdout
        except (OSError, subprocess.CalledProcessError):
            pytest.skip(f"this checkout has no commit {commit}: git fetch --unshallow")
        folder = tmp_path_factory.mktemp("earlier")
        with tarfile.open(fileobj=io.BytesIO(archive)) as files:
            files.extractall(folder, filter="data")
        return folder / "src"

    return source_of


@pytest.fixture(scope="module", params=SHARED)
def versions(
    request: pytest.FixtureRequest,
    source_of: Callable[[str], Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Versions]:
    """Both versions, on an engine that nobody has used."""
    source = source_of(WITH_POSTGRESQL if request.param == "postgresql" else EARLIER)
    url = ENGINES[request.param].fresh_url(tmp_path_factory.mktemp("engine"))
    with (
        closing(Earlier(source, url)) as earlier,
        Locks.from_url(url, ttl=PATIENCE, wait=PATIENCE) as today,
    ):
        yield Versions(today, earlier)


def test_each_waits_for_the_other_and_fences_increase(versions: Versions) -> None:
    """A key goes from one version to the other and back, by the queue, and never to both."""
    today, earlier = versions
    first = today.acquire("handed over")
    assert earlier.do("is_refused", "handed over")
    earlier.begin("acquire", "handed over")
    eventually(lambda: waiters(today, "handed over") == 1)
    first.release()
    second = earlier.hear()
    assert today.try_acquire("handed over") is None
    with ThreadPoolExecutor(1) as threads:
        third = threads.submit(today.acquire, "handed over")
        eventually(lambda: waiters(today, "handed over") == 1)
        assert earlier.do("release") is None
        assert first.fence < second < third.result().fence
    third.result().release()


def test_each_sees_and_ends_the_leases_of_the_other(versions: Versions) -> None:
    """Either version shows a holder of the other one, and can take its lease away."""
    today, earlier = versions
    fence = earlier.do("acquire", "forced")
    info = today.inspect("forced")
    assert info
    assert info.fence == fence
    assert today.force_release("forced")
    assert earlier.do("extend") == "LeaseLost"
    lease = today.acquire("forced")
    assert earlier.do("force_release", "forced") is True
    with pytest.raises(LeaseLost):
        lease.extend(1)


def test_what_one_has_done_once_the_other_does_not_repeat(versions: Versions) -> None:
    """A step that ran in one version is done for the other."""
    today, earlier = versions
    assert earlier.do("once", "by the earlier one") is True
    assert today.once("by the earlier one", lambda: None) is False
    assert today.once("by this one", lambda: None) is True
    assert earlier.do("once", "by this one") is False


@pytest.mark.parametrize("versions", ["valkey", "zookeeper", "postgresql"], indirect=True)
def test_an_earlier_version_shares_no_key(versions: Versions) -> None:
    """A version that knows no limits waits for all who share a key, and passes it on to such callers."""
    today, earlier = versions
    store = today._engine.connect(BlockingRuntime())
    readers = [Seat(store, "default:shared", table.SHARED) for _ in range(3)]
    fences = [reader.take().fence for reader in readers]
    assert earlier.do("is_refused", "shared")
    readers.pop(0).release()
    earlier.begin("acquire", "shared")
    eventually(lambda: waiters(today, "shared") == 1)
    for reader in readers:
        assert isinstance(reader.beat(), Held)
        reader.release()
    fences.append(earlier.hear())
    late = [Seat(store, "default:shared", table.SHARED) for _ in range(2)]
    assert [type(reader.ask()) for reader in late] == [Waiting] * 2
    assert earlier.do("release") is None
    for reader in late:
        fences.append(reader.wait().fence)
        reader.release()
    assert fences == sorted(set(fences))


@pytest.mark.parametrize(
    ("versions", "error"),
    [("file", "ValueError"), ("memcached", "EngineUnavailable")],
    indirect=["versions"],
)
def test_an_earlier_version_cannot_read_who_shares_a_key(versions: Versions, error: str) -> None:
    """Whatever it asks fails as long as several hold the key, and works again as soon as none does."""
    today, earlier = versions
    store = today._engine.connect(BlockingRuntime())
    readers = [Seat(store, "default:unread", table.SHARED) for _ in range(2)]
    fences = [reader.take().fence for reader in readers]
    for verb in ("is_refused", "force_release"):
        assert earlier.do(verb, "unread") == error
    for reader in readers:
        assert isinstance(reader.beat(), Held)
        reader.release()
    assert earlier.do("acquire", "unread") > max(fences)
    assert today.try_acquire("unread", shared=True) is None
    assert earlier.do("release") is None


def test_an_earlier_version_is_not_asked(versions: Versions) -> None:
    """A holder of the earlier version goes on when it is asked to release, and the next holder is not asked."""
    today, earlier = versions
    earlier.do("acquire", "asked")
    assert today.ask_release("asked")
    assert earlier.do("extend") is None
    assert earlier.do("is_refused", "asked")
    assert earlier.do("release") is None
    with today.hold("asked") as lease:
        lease.extend(1)
        assert not lease.asked_to_release


def test_a_holder_is_asked_before_an_earlier_version(versions: Versions) -> None:
    """One of this version learns that it was asked while the earlier version waits, which then has the key."""
    today, earlier = versions
    lease = today.acquire("asked before")
    assert today.ask_release("asked before")
    earlier.begin("acquire", "asked before")
    eventually(lambda: waiters(today, "asked before") == 1)
    lease.extend(1)
    assert lease.asked_to_release
    lease.release()
    assert earlier.hear() > lease.fence
    assert earlier.do("extend") is None
    assert earlier.do("release") is None


@pytest.mark.parametrize("versions", ["valkey", "postgresql"], indirect=True)
def test_an_earlier_version_takes_a_key_from_all_who_share_it(versions: Versions) -> None:
    """Its ``force_release`` ends the leases of all of them."""
    today, earlier = versions
    store = today._engine.connect(BlockingRuntime())
    readers = [Seat(store, "default:taken away", table.SHARED) for _ in range(2)]
    for reader in readers:
        reader.take()
    assert earlier.do("force_release", "taken away") is True
    assert [type(reader.beat()) for reader in readers] == [Gone] * 2
    assert earlier.do("acquire", "taken away")
    assert earlier.do("release") is None


@pytest.mark.parametrize("versions", ["zookeeper"], indirect=True)
def test_an_earlier_version_takes_a_key_from_one_who_shares_it(versions: Versions) -> None:
    """On ZooKeeper its ``force_release`` ends one lease at a time, and says whether there was one."""
    today, earlier = versions
    store = today._engine.connect(BlockingRuntime())
    readers = [Seat(store, "default:taken away", table.SHARED) for _ in range(2)]
    for reader in readers:
        reader.take()
    assert earlier.do("force_release", "taken away") is True
    assert sorted(type(reader.beat()).__name__ for reader in readers) == ["Gone", "Held"]
    assert earlier.do("force_release", "taken away") is True
    assert earlier.do("acquire", "taken away")
    assert earlier.do("release") is None
