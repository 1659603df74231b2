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

MORE_OFTEN = "it is written more or less often, and says at least as much"

LONGER_WAY = "what is left to the prelude has the same outcome there"

EQUIVALENT = {
    "glance: local quiet = left > 0 and left < SECOND and told[2] == RUN and told[3] == ARGV[2]": LONGER_WAY,
    "glance: local quiet = left >= 0 and left <= SECOND and told[2] == RUN and told[3] == ARGV[2]": (
        "in that very microsecond the server need not be looked at either"
    ),
    "grant: if there == 0 and ttl < tonumber(told[4]) then": LONGER_WAY,
    "put_down: local plain = void == 0 and got[1] == owner and now < ends and ends - got[3] < MINUTE"
    " and fence <= now": LONGER_WAY,
    "put_down: local plain = void == 0 and got[1] == owner and now < ends and ends - got[3] <= MINUTE"
    " and fence < now": LONGER_WAY,
    "put_down: if fence >= noted then": "it writes what is there",
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
    "prelude: written = false": "it only costs a command more",
    "prelude: written = got[4] or '',": "it writes once more that nobody has the lease",
    "prelude: return { 'held', now, lease.fence, lease.ends, lease.confirmed or 1 or 0, lease.asked and 1 or nil }": (
        "whoever is told has confirmed by asking"
    ),
    "prelude: if owner ~= but and now <= tonumber(ends) then": INSTANT,
    "prelude: if #kept >= 15 then": MORE_OFTEN,
    "prelude: if #kept > 30 then": MORE_OFTEN,
    "prelude: if length >= MINUTE then": MORE_OFTEN,
    "prelude: elseif length >= epoch.longest or now + length > epoch.ends then": MORE_OFTEN,
    "prelude: elseif length > epoch.longest or now + length >= epoch.ends then": MORE_OFTEN,
    "prelude: local ends = math.max(epoch.ends, now + length + 20 * SECOND)": MORE_OFTEN,
    "prelude: if string.find(epoch.long, owner .. ' ', 1, false) then": HEXADECIMAL,
    "prelude: return lease.ends + ((elsewhere or now <= epoch.level) and epoch.ahead or 0)": INSTANT,
    "prelude: return now <= quarantine and fits(lock, limit) and epoch.why or ''": INSTANT,
    "prelude: while at < #packed do": "no lease takes just one byte",
    "prelude: lock.unsaved = true": "it writes what is there",
    "prelude: if lock.fence >= epoch.fence then": "it writes what is there",
    "prelude: length = length < MINUTE and math.max(length, HANDOFF) or HANDOFF": LONGER_WAY,
    "prelude: if now <= epoch.recovered or now < epoch.level then": LONGER_WAY,
    "prelude: if now < epoch.recovered or now <= epoch.level then": LONGER_WAY,
    "prelude: elseif lock.fence < now then": INSTANT,
    "acquire: if #lock.grants == 0 and now > quarantine then": "it is granted a few lines later",
    "acquire: if lease and ticket > 0 and now <= quarantine then": INSTANT,
    "acquire: if now > quarantine and fits(lock, limit) and not first_waiter() then": INSTANT,
    "refresh: if lock.written == ALL and renewed >= 0 then": MORE_OFTEN,
    "raise_fence: if fence >= lease.fence then": "it writes what is there",
}
"""Mutants that change nothing, or nothing that the model knows of, and why."""


def hunt(index: int) -> tuple[int, str]:
    """What notices a mutant; nothing if it survives."""
    return index, who_notices(mutants()[index])


def test_mutants_that_change_nothing_are_mutants() -> None:
    """Each that is excused is there, once: a script that has changed has its list looked at again."""
    names = [mutant.name for mutant in mutants()]
    assert [each for each in EQUIVALENT if names.count(each) != 1] == []


def test_no_mutant_of_the_scripts_survives(capsys: pytest.CaptureFixture[str]) -> None:
    """The scripts pass all checks as they are shipped, and each call dropped, comparison flipped or number doubled fails one.

    But for those that change nothing; and every third, for they cost much; all of them with ``WEBLOCK_LONG=1``, as after any change of the scripts.
    """
    assert [known.check.name for known in known_checks() if known.fails] == []
    names = [mutant.name for mutant in mutants()]
    mortal = [index for index, name in enumerate(names) if name not in EQUIVALENT]
    mortal = mortal[:: 1 if "WEBLOCK_LONG" in os.environ else 3]
    survivors = [names[index] for index, noticed in on_all_processors(hunt, mortal) if not noticed]
    with capsys.disabled():
        sys.stdout.write(f"\n  {len(mortal) - len(survivors)} of {len(mortal)} mutants noticed\n")
    assert not survivors
