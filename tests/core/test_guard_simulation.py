"""Guarded sections in every order, on a database of each isolation level; and the mistakes it finds."""

import pytest

from .simulation.guarded import (
    LEVELS,
    MUTANTS,
    READ_COMMITTED,
    SERIALIZABLE,
    continued,
    guarded,
    guarded_by_a_lost_engine,
    runs,
)

FENCES = [(1, 2), (2, 1), (1, 1)]
"""As they should be, as a late raise has them, and as of an engine that was set back."""


@pytest.mark.parametrize("fences", FENCES, ids=str)
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("steps", [guarded, guarded_by_a_lost_engine])
def test_no_order_of_two_sections_commits_what_is_stale(steps, level, fences):
    """A section that commits has read what every section before it has committed."""
    found = list(runs(level, steps, fences))
    assert not [run for run in found if run.stale]
    assert all("committed" in run.outcomes for run in found)
    assert any(run.outcomes.count("committed") == 1 for run in found)


@pytest.mark.parametrize("fences", [(1, 2), (1, 1)], ids=str)
@pytest.mark.parametrize("level", LEVELS)
def test_some_order_lets_both_commit(level, fences):
    """Those that follow each other are not refused, unless the engine has given the fence twice."""
    both = [run for run in runs(level, guarded, fences) if run.outcomes == ("committed",) * 2]
    assert bool(both) == (fences == (1, 2))


@pytest.mark.parametrize("level", LEVELS)
def test_those_that_share_a_lease_may_follow_each_other(level):
    """Holders of a lease that was handed over have one fence: some order lets both commit, none a stale one."""
    found = list(runs(level, continued, (1, 1)))
    assert not [run for run in found if run.stale]
    assert any(run.outcomes == ("committed",) * 2 for run in found)


def test_no_order_of_three_sections_commits_what_is_stale():
    """Nor do three, one of which has the fence of another."""
    count = 0
    for run in runs(READ_COMMITTED, guarded, (1, 2, 2)):
        count += 1
        assert not run.stale, run
    assert count > 1000


@pytest.mark.parametrize("mutant", MUTANTS, ids=[each.__name__ for each in MUTANTS])
def test_each_mistake_is_found(mutant):
    """With either step left out or weakened, some order commits what is stale, at some level."""
    broken = {
        level
        for level in LEVELS
        for fences in FENCES
        if any(run.stale for run in runs(level, mutant, fences))
    }
    assert broken
    assert SERIALIZABLE not in broken  # There the database itself sees what was read.
