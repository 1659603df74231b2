"""The Lua scripts with one mistake at a time: some check of the scripts has to notice each."""

from __future__ import annotations

import os
import sys

import pytest

from .simulation.campaign import on_all_processors
from .simulation.redis_campaign import mutants
from .simulation.script_checks import known_checks, who_notices

HEXADECIMAL = "ids are hexadecimal, and no pattern"

ONE_MORE = "it looks at the server once more"

INSTANT = "what ends in that very microsecond has ended, or not: neither does harm"

LONGER_WAY = "what is left to the prelude has the same outcome there"

SAME = "it writes what is there, or deletes what is not"

MORE = "it only reads, writes or settles more than it need"

A_SET = "only its names count"

EQUIVALENT = {
    "head: local known = checked < now and now <= checked + SECOND and RECOVERY <= recovery and string.find(names, NAME, 1, true)": ONE_MORE,
    "head: local known = checked <= now and now < checked + SECOND and RECOVERY <= recovery and string.find(names, NAME, 1, true)": ONE_MORE,
    "head: local known = checked <= now and now <= checked + SECOND and RECOVERY <= recovery and string.find(names, NAME, 1, false)": HEXADECIMAL,
    "usual: local usual = known and WHERE ~= 'asking' and now > recovered_at and run == RUN and not next(voided)": LONGER_WAY,
    "free: local excludes = usual and least == 1 and ticket == 0 and now < soonest and soonest < now + longest": LONGER_WAY,
    "last: elseif not heir and fence < now then": LONGER_WAY,
    "last: if fence >= free_fence then": SAME,
    "prelude: if epoch.run == RUN and (not promoted or string.find(epoch.names, name, 1, false)) then": HEXADECIMAL,
    "prelude: names = string.find(names, each, 1, false) and names or string.sub(each .. ' ' .. names, 1, 500)": HEXADECIMAL,
    "prelude: names = name ~= NAME and name or name .. ' ' .. NAME,": ONE_MORE,
    "prelude: if is_free and lock.fence < now then": INSTANT,
    "head: local recovered_at = recovery >= 0 and lost + recovery or 0": LONGER_WAY,
    "prelude: local elsewhere = epoch.run ~= '' and epoch.checked >= since": INSTANT,
    "prelude: local promoted = tonumber(string.match(info, 'second_repl_offset:(%-?%d+)')) >= 0": "it is -1, or at least 1",
    "prelude: local over = now <= epoch.checked and recovered_at <= epoch.checked": "it is set back by nothing",
    "prelude: local over = now < epoch.checked and recovered_at < epoch.checked": INSTANT,
    "prelude: if epoch.lost >= now + SWITCH then": SAME,
    "prelude: if fields[name] ~= true then": SAME,
    "prelude: fields[name], puts[name], drops[name], changed = false, nil, false, true": A_SET,
    "prelude: fields[name], puts[name], drops[name], changed = false, nil, true, false": "what is left of a place is none, for the queue does not have it",
    "prelude: redis.call('HDEL', LOCK, unpack(gone, first, math.min(#gone, first + 1998)))": MORE,
    "prelude: lock.mixed = lock.mixed or lease.limit == leases[1].limit": MORE,
    "prelude: table.sort(leases, function(one, other) return one.fence <= other.fence end)": "no two fences are the same",
    "prelude: lock.count, lock.limit, lock.mixed, lock.soonest, lock.length = #leases, HUGE, true, HUGE, 0": MORE,
    "prelude: elseif nearest <= lease.ends then": SAME,
    "prelude: if lock.fence >= epoch.fence then": SAME,
    "prelude: local lasting = lock.count == 1 and lock.soonest - now or lock.count >= 1 and lock.length or 0": "of one lease the length is that of all",
    "prelude: local holder = lock.count >= 0 and (lock.holder ~= '' and lease_of(lock.holder) or all_leases()[1])": MORE,
    "prelude: return { 'held', now, lease.fence, lease.ends, lease.confirmed or 1 or 0, asked }": "whoever is told has confirmed by asking",
    "acquire: drop_places(first, first + SEEN - 1, function(place) return now > place.ends end)": INSTANT,
    "renew: if not AWAY and lock.run ~= RUN and lock.count >= 0 then": MORE,
    "beat: if not settled or not (lease and lives(lease)) then": MORE,
    "beat: settled = false": MORE,
    "ask_release: if lock.count >= 0 then": MORE,
    "raise_fence: if fence >= lease.fence then": SAME,
}
"""Mutants that change nothing, or nothing that the model knows of, and why."""


def hunt(index: int) -> tuple[int, str]:
    return index, who_notices(mutants()[index])


def test_mutants_that_change_nothing_are_mutants() -> None:
    """Each that is excused is there, once: a script that has changed has its list looked at again."""
    names = [mutant.name for mutant in mutants()]
    assert [each for each in EQUIVALENT if names.count(each) != 1] == []


def test_no_mutant_of_the_scripts_survives(capsys: pytest.CaptureFixture[str]) -> None:
    """The scripts pass all checks as they are shipped, and each call dropped, comparison flipped or number doubled fails one.

    But for those that change nothing; and every fifth, for they cost much; all of them with ``WEBLOCK_LONG=1``, as after any change of the scripts.
    """
    assert [known.check.name for known in known_checks() if known.fails] == []
    names = [mutant.name for mutant in mutants()]
    mortal = [index for index, name in enumerate(names) if name not in EQUIVALENT]
    mortal = mortal[:: 1 if "WEBLOCK_LONG" in os.environ else 5]
    survivors = [names[index] for index, noticed in on_all_processors(hunt, mortal) if not noticed]
    with capsys.disabled():
        sys.stdout.write(f"\n  {len(mortal) - len(survivors)} of {len(mortal)} mutants noticed\n")
    assert not survivors
