"""What is told of a key, of what an engine knows; and what an engine that never locks tells."""

from __future__ import annotations

import dataclasses
import os
import pickle
import socket
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from weblock import AsyncLocks, KeyInfo, LeaseLost, Locks
from weblock._core.ports import Look
from weblock._core.table import Claim, Grant, KeyState, Place
from weblock.inspection import HolderInfo, info_of


def claim(label: str) -> Claim:
    return Claim(f"secret-{label}", "process", 10.0, label)


GRANT = Grant(claim("holder"), 7, since=100.0, until=110.0, confirmed=True)
QUEUE = (Place(claim("first"), 104.0), Place(claim("second"), 103.0))
HOLDER = HolderInfo("holder", 7, held_for=2.0, remaining=8.0, limit=1)
INFO = KeyInfo(
    "a:b",
    "holder",
    7,
    held_for=2.0,
    remaining=8.0,
    waiters=("first", "second"),
    holders=(HOLDER,),
)


def test_no_time_is_negative() -> None:
    """Whatever the engine's clock does, nobody holds for less than no time."""
    info = info_of("shop:a:b", Look(KeyState(7, (GRANT,)), 99.0))
    assert info.held_for == 0
    info = info_of("shop:a:b", Look(KeyState(7, (GRANT,)), 111.0))
    assert info.remaining == 0


def test_a_fact_that_does_not_change() -> None:
    """What was told can be kept and passed on, but not written to."""
    assert pickle.loads(pickle.dumps(INFO)) == INFO
    assert len({INFO, INFO}) == 1
    with pytest.raises(dataclasses.FrozenInstanceError):
        INFO.holder = "another"  # type: ignore[misc]
    assert not hasattr(INFO, "__dict__")


class TestNoop:
    """An engine that never locks has several holders of one key, and says who they are."""

    @pytest.fixture
    def locks(self):
        with Locks.from_url(f"noop://{uuid.uuid4().hex}", ttl=60) as locks:
            yield locks

    def test_the_first_holder_is_shown(self, locks) -> None:
        """Of several, the one with the smallest fence."""
        first, second = (locks.acquire("key", wait=0, label=label) for label in ("first", "second"))
        info = locks.inspect("key")
        assert (info.holder, info.fence, info.waiters) == ("first", first.fence, ())
        assert [info.key for info in locks.list("k")] == ["key"]
        first.release()
        assert locks.inspect("key").fence == second.fence
        second.release()
        assert locks.inspect("key") is None
        assert locks.list() == []

    def test_force_takes_from_all(self, locks) -> None:
        """All who have the key lose it."""
        leases = [locks.acquire(key, wait=0) for key in ("key", "key", "another")]
        assert locks.force_release("key") is True
        assert locks.force_release("key") is False
        for lease in leases[:2]:
            with pytest.raises(LeaseLost, match="no longer knows"):
                lease.release()
        assert [info.key for info in locks.list()] == ["another"]
        leases[2].release()

    def test_an_extension_is_shown(self, locks) -> None:
        """What is left of a lease grows when it is extended."""
        lease = locks.acquire("key", renew=False)
        lease.extend(100)
        assert locks.inspect("key").remaining > 100
        lease.release()


def test_many_keys(tmp_path: Path) -> None:
    """More keys than are looked at in one go are all listed."""
    with Locks.from_url(f"file://{tmp_path}/locks", ttl=600) as locks:
        keys = [f"key:{number:04d}" for number in range(2100)]
        leases = [locks.acquire(key) for key in keys]
        assert [info.key for info in locks.list(limit=5000)] == keys
        for lease in leases:
            lease.release()
        assert locks.list() == []


def test_a_look_at_files_makes_none(tmp_path: Path) -> None:
    """Listing what is held on a machine where little was ever held takes no room there."""
    with Locks.from_url(f"file://{tmp_path}/locks") as locks:
        assert locks.list() == []
        assert not list(tmp_path.glob("locks/records-*"))


@pytest.mark.parametrize("api", [Locks, AsyncLocks])
def test_a_label_is_cut(api) -> None:
    """A label has at most 200 characters, as an option of all and of one call."""
    url = f"memory://{uuid.uuid4().hex}"
    assert api.from_url(url, label="x" * 1000).label == "x" * 200
    with Locks.from_url(url, ttl=60) as locks, locks.hold("key", label="y" * 1000):
        assert locks.inspect("key").holder == "y" * 200


FORK = """
import os
from weblock import Locks
default, named = Locks.from_url("memory://"), Locks.from_url("memory://", label="named")
if os.fork() == 0:
    lease = default.acquire("key")
    print(os.getpid(), default.inspect("key").holder, default.label, named.label, flush=True)
    os._exit(0)
os.wait()
print(os.getpid(), default.label)
"""


def test_the_label_of_a_forked_process() -> None:
    """A child is known by its own process id, unless its label was chosen."""
    said = subprocess.run([sys.executable, "-c", FORK], capture_output=True, text=True, check=True)
    child, parent = (line.split() for line in said.stdout.splitlines())
    host = socket.gethostname()
    assert child[1:] == [f"{host}:{child[0]}", f"{host}:{child[0]}", "named"]
    assert parent[1] == f"{host}:{parent[0]}"
    assert int(parent[0]) != os.getpid()
