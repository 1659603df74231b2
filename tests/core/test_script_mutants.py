"""The Lua scripts with one mistake at a time: conformance and schedules have to notice each."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial

import pytest

from tests.engines.test_redis_conformance import Clock, Pure, compare, in_the_model

from .simulation.agreeing import agrees
from .simulation.campaign import on_all_processors
from .simulation.lives import lives_long
from .simulation.recovery import recovers
from .simulation.redis_campaign import Mutant, mutants, redis_schedule

SEQUENCES = 60
SCHEDULES = 300

MEMORY = "only a server whose memory is full tells; a test on real servers has one"

EQUIVALENT = {
    "prelude: without redis.call('HDEL', LOCK, '')": MEMORY,
    "prelude: return counted('replication', 'second_repl_offset') >= 0": "it is -1, or at least 1",
    "prelude: if LONGEST == 0 or (run and string.find(PEERS, run, 1, false)) then": (
        "runs are hexadecimal, and no pattern"
    ),
    "prelude: written = got[4] or '',": "it writes once more that nobody has the lease",
    "prelude: if longest >= tonumber(epoch[3]) then": "it writes what is there",
    "prelude: return { 'held', now, text(lock.fence), lock.ends, lock.confirmed or 1 or 0 }": (
        "whoever is told has confirmed by asking"
    ),
    "raise_fence: if fence >= lock.fence then": "it writes what is there",
}
"""Mutants that change nothing, or nothing that the model knows of, and why."""


def hunt(index: int) -> tuple[int, str]:
    """What notices a mutant; nothing if it survives."""
    mutant = mutants()[index]
    notices = (_recovery, _agreement, _sequences, _lives, _schedules)
    return index, next((what for notice in notices if (what := notice(mutant))), "")


def _recovery(mutant: Mutant) -> str:
    return _noticed("recovery", lambda: recovers(mutant))


def _agreement(mutant: Mutant) -> str:
    return _noticed("agreement", lambda: agrees(mutant))


def _lives(mutant: Mutant) -> str:
    return _noticed("lives", lambda: lives_long(mutant))


def _sequences(mutant: Mutant) -> str:
    def one(seed: int) -> None:
        clock = Clock()
        compare(seed, clock, Pure(lambda: clock.now), [in_the_model(clock, mutant)])

    outcomes = (_noticed(f"sequence {seed}", partial(one, seed)) for seed in range(SEQUENCES))
    return next(filter(None, outcomes), "")


def _schedules(mutant: Mutant) -> str:
    def one(seed: int) -> None:
        redis_schedule(seed, mutant).run()

    outcomes = (_noticed(f"schedule {seed}", partial(one, seed)) for seed in range(SCHEDULES))
    return next(filter(None, outcomes), "")


def _noticed(by: str, check: Callable[[], None]) -> str:
    try:
        check()
    except Exception as error:  # noqa: BLE001 - a broken script may break anything
        return f"{type(error).__name__} in {by}"
    return ""


def test_the_scripts_recover_as_they_should() -> None:
    """After each way of losing leases, nothing is granted for just as long as they may last."""
    recovers(lambda script: script)


def test_the_scripts_agree_as_they_should() -> None:
    """Tickets order queues and fences, and who came first is given what others have."""
    agrees(lambda script: script)


def test_keys_outlive_what_they_say() -> None:
    """Leases of days and places are kept while they last, whoever asks; and nothing for ever."""
    lives_long(lambda script: script)


@pytest.mark.timeout(900)
def test_no_mutant_of_the_scripts_survives(capsys: pytest.CaptureFixture[str]) -> None:
    """Each call dropped, comparison flipped or number doubled is noticed, but for those that change nothing."""
    names = [mutant.name for mutant in mutants()]
    assert all(names.count(each) == 1 for each in EQUIVALENT), "fit the list to the scripts"
    mortal = [index for index, name in enumerate(names) if name not in EQUIVALENT]
    survivors = [names[index] for index, noticed in on_all_processors(hunt, mortal) if not noticed]
    with capsys.disabled():
        sys.stdout.write(f"\n  {len(mortal) - len(survivors)} of {len(mortal)} mutants noticed\n")
    assert not survivors
