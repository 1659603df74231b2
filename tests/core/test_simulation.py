"""The protocol under the simulator: schedules by the thousand, each replayable by its seed."""

from __future__ import annotations

import os
import subprocess
import sys
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from weblock._core.holding import DRIFT

from .simulation.campaign import CORE
from .simulation.schedule import Schedule
from .simulation.swarm import Swarm

SCHEDULES = 1_000


def test_no_schedule_violates_a_property() -> None:
    """P1 to P13 hold after every event of thousands of schedules, which meet every rare state."""
    CORE.hold_to_it(SCHEDULES)


def rates(most: float) -> st.SearchStrategy[float]:
    """Never, or with some probability."""
    return st.just(0.0) | st.floats(most / 10, most)


swarms = st.builds(
    Swarm,
    processes=st.integers(2, 4),
    attempts=st.integers(1, 12),
    keys=st.integers(1, 3),
    ttl=st.sampled_from([1.0, 0.6, 2.0, 3.0]),
    spread=st.sampled_from([0.05, 1.0, 3.0]),
    section=st.floats(0.05, 3.0),
    room=st.sampled_from([100, 1, 3]),
    zero_wait=rates(0.4),
    endless_wait=rates(0.9),
    several_keys=rates(0.8),
    unrenewed=rates(0.8),
    max_hold=rates(0.8),
    extends=rates(0.8),
    drift=st.sampled_from([0.0, DRIFT]),
    granularity=st.sampled_from([0.0, 0.001]),
    delay=st.sampled_from([0.0005, 0.005, 0.03]),
    op_timeout=st.sampled_from([0.25, 0.5, 1.0]),
    multiplexed=st.booleans(),
    late=rates(0.15),
    latest=st.floats(0.2, 3.0),
    lost_requests=rates(0.2),
    lost_replies=rates(0.2),
    lost_notifications=rates(1.0),
    duplicates=rates(0.3),
    resets=st.floats(0, 1),
    engine_stops=st.integers(0, 2),
    restarts=st.integers(0, 2),
    amnesia=st.booleans(),
    deaths_known=st.booleans(),
    cancels=rates(0.7),
    stops=st.integers(0, 3),
    crashes=st.integers(0, 2),
    closes=st.integers(0, 1),
    calm_at=st.floats(2.0, 5.0),
    limited=rates(1.0),
    asks=rates(0.5),
)


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(swarms, st.integers(0, 2**32))
def test_no_combination_of_faults_violates_a_property(swarm: Swarm, seed: int) -> None:
    """Nor does any swarm that Hypothesis makes up, which shrinks to the faults that it takes."""
    Schedule(Random(seed), swarm).run()


@pytest.mark.parametrize("seed", [17])
def test_a_seed_decides_everything(seed: int) -> None:
    """The same seed gives the same events in processes whose sets and dicts hash differently."""
    code = (
        "from tests.core.simulation.campaign import CORE;"
        f"print(CORE.run_seed({seed})[0].world.fingerprint())"
    )
    fingerprints = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": "."},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hash_seed in ("0", "1", "4242")
    }
    assert len(fingerprints) == 1
