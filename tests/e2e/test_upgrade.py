"""A rolling upgrade: replicas of an earlier commit and of this one lock on one engine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.contract.engines import ENGINES, Promises

TOP = Path(__file__).parents[2]

EARLIER = "eaf7702e"
"""The first commit that stores leases as this one does. Whoever changes what is stored moves it on.

Then ``docs/deployment.md`` says that the two may not share an engine, and the format's name changes.
"""

REPLICA = """
import json, pathlib, sys, weblock
from weblock import Locks
assert weblock.__file__.startswith(sys.argv[4])
urls, journal, own = json.loads(sys.argv[1]), pathlib.Path(sys.argv[2]), sys.argv[3]
with Locks.from_url(urls, namespace="shop", wait=60) as locks:
    if own == "heir":
        print(locks.take_over(sys.stdin.readline().strip()).fence)
        sys.exit()
    for _ in range(25):
        with locks.hold("stock") as lease:
            lines = journal.read_text()
            journal.write_text(f"{lines}{own} {lease.fence}\\n")
    if own == "before":
        lease = locks.acquire("job")
        print(lease.fence, lease.hand_over(ttl=60))
"""


@pytest.fixture(scope="module")
def earlier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("earlier")
    asked = ["git", "-C", str(TOP), "archive", EARLIER, "src"]
    archive = subprocess.run(asked, capture_output=True, check=False)
    if archive.returncode:
        pytest.skip("this checkout has no history")
    subprocess.run(["tar", "-x", "-C", str(folder)], input=archive.stdout, check=True)
    return folder / "src"


def replica(source: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", REPLICA, *arguments, str(source)],
        env={**os.environ, "PYTHONPATH": str(source)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize(
    "promises",
    [
        pytest.param(each, id=name)
        for name, each in ENGINES.items()
        if each.locks and each.processes
    ],
)
def test_two_commits_lock_together(earlier: Path, promises: Promises, tmp_path: Path) -> None:
    """They exclude each other, share one queue and one order of fences, and hand leases over."""
    journal = tmp_path / "journal"
    journal.write_text("")
    told = json.dumps(promises.fresh_url(tmp_path)), str(journal)
    before, after = replica(earlier, *told, "before"), replica(TOP / "src", *told, "after")
    after.communicate()
    fence, token = before.communicate()[0].split()
    assert (before.returncode, after.returncode) == (0, 0)
    entries = [line.split() for line in journal.read_text().splitlines()]
    owners, fences = zip(*entries, strict=True)
    assert (owners.count("before"), owners.count("after")) == (25, 25)
    assert [int(each) for each in fences] == sorted(set(map(int, fences)))
    heir = replica(TOP / "src", *told, "heir")
    assert heir.communicate(f"{token}\n")[0].split() == [fence]
