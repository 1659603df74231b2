"""The Lua scripts with one mistake at a time: conformance and schedules have to notice each."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import partial

import pytest

from .simulation.agreeing import agrees
from .simulation.campaign import on_all_processors
from .simulation.conformance import (
    Clock,
    Piecemeal,
    Pure,
    compare,
    compare_full_queues,
    in_the_model,
)
from .simulation.lives import lives_long
from .simulation.piecemeal import goes_piecemeal
from .simulation.recovery import recovers
from .simulation.redis_campaign import Mutant, mutants, redis_schedule

SEQUENCES = 60
SCHEDULES = 300

HEXADECIMAL = "ids are hexadecimal, and no pattern"

ONE_MORE = "it looks at the server once more"

INSTANT = "what ends in that very microsecond has ended, or not: neither does harm"

MEMORY = "only a server whose memory is full tells; a test on real servers has one"

EQUIVALENT = {
    "prelude: if tonumber(ends) >= lost then": INSTANT,
    "prelude: local elsewhere = epoch.run ~= '' and epoch.checked >= since": INSTANT,
    "prelude: local before = now <= epoch.level and epoch.ahead or 0": INSTANT,
    "prelude: local promoted = tonumber(string.match(info, 'second_repl_offset:(%-?%d+)')) >= 0": (
        "it is -1, or at least 1"
    ),
    "prelude: if now <= epoch.checked then": "it is set back by nothing",
    "prelude: if not string.find(epoch.run, ' ' .. RUN .. ' ', 1, false) then": HEXADECIMAL,
    "prelude: local known = string.find(epoch.run, ' ' .. RUN .. ' ', 1, false)": HEXADECIMAL,
    "prelude: without note({ run = string.sub(epoch.run, 1, 500) .. RUN .. ' ' })": (
        "it only costs a look at the server each time"
    ),
    "prelude: if not known or now <= epoch.checked or now > epoch.checked + SECOND then": ONE_MORE,
    "prelude: if not known or now < epoch.checked or now >= epoch.checked + SECOND then": ONE_MORE,
    "prelude: if recovered >= epoch.recovered and recovered > now then": "it writes what is there",
    "prelude: if recovered > epoch.recovered and recovered >= now then": INSTANT,
    "prelude: without erase('HDEL', LOCK, '')": MEMORY,
    "prelude: local essential, written = true, false": MEMORY,
    "prelude: local essential, written = false, true": MEMORY,
    "prelude: written = false": MEMORY,
    "prelude: if essential or not written then": MEMORY,
    "prelude: written = got[4] or '',": "it writes once more that nobody has the lease",
    "prelude: return { 'held', now, text(lock.fence), lock.ends, lock.confirmed or 1 or 0 }": (
        "whoever is told has confirmed by asking"
    ),
    "raise_fence: if fence >= lock.fence then": "it writes what is there",
}
"""Mutants that change nothing, or nothing that the model knows of, and why."""


def hunt(index: int) -> tuple[int, str]:
    """What notices a mutant; nothing if it survives."""
    mutant = mutants()[index]
    notices = (_recovery, _agreement, _pieces, _sequences, _lives, _schedules)
    return index, next((what for notice in notices if (what := notice(mutant))), "")


def _recovery(mutant: Mutant) -> str:
    return _noticed("recovery", lambda: recovers(mutant))


def _agreement(mutant: Mutant) -> str:
    return _noticed("agreement", lambda: agrees(mutant))


def _pieces(mutant: Mutant) -> str:
    return _noticed("pieces", lambda: goes_piecemeal(mutant))


def _lives(mutant: Mutant) -> str:
    return _noticed("lives", lambda: lives_long(mutant))


def _sequences(mutant: Mutant) -> str:
    def one(seed: int) -> None:
        clock = Clock()
        compare(seed, clock, Pure(lambda: clock.now), [in_the_model(clock, mutant)])

    def full(seed: int) -> None:
        clock = Clock()
        compare_full_queues(seed, clock, Pure(lambda: clock.now), in_the_model(clock, mutant))

    def piecemeal(seed: int) -> None:
        clock = Clock()
        lua = in_the_model(clock, mutant, Piecemeal)
        compare(seed, clock, Pure(lambda: clock.now), [lua])

    tries = [partial(one, seed) for seed in range(SEQUENCES)] + [partial(full, 0), partial(full, 1)]
    tries += [partial(piecemeal, seed) for seed in range(SEQUENCES)]
    outcomes = (_noticed(f"sequence {number}", each) for number, each in enumerate(tries))
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


def test_the_scripts_do_their_part_in_pieces() -> None:
    """On two servers, quarantines, clocks and fences of one count on the other."""
    goes_piecemeal(lambda script: script)


def test_keys_outlive_what_they_say() -> None:
    """Leases of days and places are kept while they last, whoever asks; and nothing for ever."""
    lives_long(lambda script: script)


def test_mutants_that_change_nothing_are_mutants() -> None:
    """Each that is excused is there, once: a script that has changed has its list looked at again."""
    names = [mutant.name for mutant in mutants()]
    assert [each for each in EQUIVALENT if names.count(each) != 1] == []


@pytest.mark.timeout(7200)
@pytest.mark.skipif(
    "WEBLOCK_LONG" not in os.environ,
    reason="hundreds of mutants take most of an hour: WEBLOCK_LONG=1 hunts them",
)
def test_no_mutant_of_the_scripts_survives(capsys: pytest.CaptureFixture[str]) -> None:
    """Each call dropped, comparison flipped or number doubled is noticed, but for those that change nothing."""
    names = [mutant.name for mutant in mutants()]
    mortal = [index for index, name in enumerate(names) if name not in EQUIVALENT]
    survivors = [names[index] for index, noticed in on_all_processors(hunt, mortal) if not noticed]
    with capsys.disabled():
        sys.stdout.write(f"\n  {len(mortal) - len(survivors)} of {len(mortal)} mutants noticed\n")
    assert not survivors
