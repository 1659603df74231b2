"""The protocol keeps its promises on many thousands of schedules, with faults of all kinds."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from .engine import Faults
from .schedule import simulate

SCHEDULES = 20_000
ROOT = Path(__file__).parents[2]

SOMETIMES = [
    "acquire: Cancelled",
    "acquire: EngineUnavailable",
    "acquire: LeaseLost",
    "acquire: LockTimeout",
    "acquire: LockTimeout at once",
    "acquire: LockTimeout queue full",
    "already held",
    "applied after the client gave up",
    "at risk",
    "cancelled while releasing",
    "crashed",
    "crashed while holding",
    "dead waiter skipped",
    "deadline passed while holding",
    "extended",
    "extension unanswered",
    "heartbeat for nothing",
    "late request refused",
    "lease ended by itself",
    "lease passed on, never confirmed",
    "lease renewed",
    "lease taken by hand",
    "lost reply",
    "lost request",
    "lost wake-up",
    "lost: expired",
    "lost: max_hold",
    "lost: taken",
    "renewed though its deadline had passed, unseen",
    "told at release",
    "told in time that the lease was taken",
]


def start(first: int, seeds: int) -> subprocess.Popen[str]:
    """Runs so many seeds in a process of its own."""
    command = [sys.executable, "-m", "tests.simulation", f"--start={first}", f"--seeds={seeds}"]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)


@pytest.mark.timeout(900)
def test_many_schedules() -> None:
    """No schedule breaks a promise, and every interesting thing happens in some."""
    half = SCHEDULES // 2
    runs = [start(0, half), start(half, half)]
    told = [run.communicate()[0] for run in runs]
    for run, output in zip(runs, told, strict=True):
        assert run.returncode == 0, output
    happened = {line.split(maxsplit=1)[1] for output in told for line in output.splitlines()}
    never = [what for what in SOMETIMES if what not in happened]
    assert not never, f"the schedules prove nothing about {never}"


def fingerprint(seed: int, hash_seed: str) -> str:
    """The trace's hash, from a Python of its own."""
    code = f"from tests.simulation.schedule import simulate; print(simulate({seed}).world.fingerprint())"
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


@pytest.mark.parametrize("seed", [1, 7])
def test_a_seed_is_a_schedule(seed: int) -> None:
    """A failure can be replayed: the same seed gives the same trace, in any Python process."""
    assert fingerprint(seed, "1") == fingerprint(seed, "2")


def test_a_story_tells_how_to_replay_it() -> None:
    """What a failure prints has the seed, the last events, and the command to see them all."""
    story = simulate(7).story(last=5).splitlines()
    assert len(story) == 7
    assert story[0].startswith("seed 7")
    assert story[-1] == "replay with: scripts/simulate --replay 7"


rates = st.sampled_from([0.0, 0.05, 0.3, 0.9])
few = st.integers(0, 4)

faults: st.SearchStrategy[Any] = st.builds(
    Faults,
    lost_requests=rates,
    lost_replies=rates,
    slow=rates,
    lost_rings=rates,
    engine_pauses=few,
    pauses=few,
    stalls=few,
    crashes=few,
    cancels=rates,
    robberies=few,
    skew=st.sampled_from([0.0, 0.002, 0.004]),
)


@settings(
    max_examples=100,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
@given(seed=st.integers(0, 2**32), faults=faults)
def test_any_faults_together(seed: int, faults: Faults) -> None:
    """Whatever set of faults comes together, with whatever rates, no promise is broken."""
    outcome = simulate(seed, faults)
    assert not outcome.violation, outcome.story()
