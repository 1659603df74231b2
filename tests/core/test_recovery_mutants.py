"""The rules of recovery, dropped one at a time as in the model: a case of the scripts notices each."""

from __future__ import annotations

import pytest

from weblock.stores.redis.scripts import Script

from .simulation.recovery import CASES, Rig

MUTANTS = {
    "only the first value of recovery counts": (
        "if RECOVERY > epoch.recovery then",
        "if false then",
    ),
    "a lease does not name its run": ("lease.run ~= RUN", "false"),
    "a lease of another run ends as it says": (
        "math.max(nearest, now + epoch.recovery, recovered_at)",
        "math.max(nearest, now)",
    ),
    "a lease of another run is cut to the recovery": (
        "math.max(nearest, now + epoch.recovery, recovered_at)",
        "math.max(now + epoch.recovery, recovered_at)",
    ),
    "no seconds more after a promotion": (
        "return now + SWITCH, 'it has taken",
        "return now, 'it has taken",
    ),
    "no seconds more after a restart": ("WHERE == 'single' and 0 or SWITCH", "0"),
    "no seconds more after an arrival": (
        "return now + SWITCH, 'it was started or emptied",
        "return now, 'it was started or emptied",
    ),
    "an arrival counts as a restart": ("elseif WHERE == 'cluster' then", "elseif false then"),
    "leases are renewed before all have heard": ("local early = ", "local early = false and "),
    "a lease is news during the recovery": (
        "    if recovers then\n      return refused",
        "    if false then\n      return refused",
    ),
    "waiters are let in during the recovery": (
        "local grants = not AWAY and not recovers",
        "local grants = not AWAY",
    ),
    "leases are handed over during the recovery": (
        "if recovers then\n  answer = { 'unknown'",
        "if false then\n  answer = { 'unknown'",
    ),
    "a flush is not noticed": ("if string.find(commands,", "if false and string.find(commands,"),
    "a run is the run id": (
        "epoch.run == RUN and (not promoted or string.find(epoch.names, name, 1, true))",
        "epoch.run == RUN",
    ),
    "a release forgets who gave up": (
        "and not ALONE and not next(lock.voided)",
        "and not ALONE",
    ),
    "a clock that is set back is not noticed": (
        "if epoch.lost > now + SWITCH then",
        "if false then",
    ),
    "a lease may be longer than it was": (
        "math.min(lease.ends, now + lease.length)\n    if",
        "lease.ends\n    if",
    ),
    "a lock alone is deleted": ("and not ALONE and not next", "and not next"),
    "a lock alone is noted in the epoch": (
        "if not AWAY then\n  if not known",
        "if true then\n  if not known",
    ),
}


def changed(name: str, script: Script) -> Script:
    before, after = MUTANTS[name]
    return script._replace(text=script.text.replace(before, after))


@pytest.mark.parametrize("name", MUTANTS)
def test_a_rule_that_is_dropped_is_missed(name: str) -> None:
    """Without the rule, at least one case of the recovery fails."""

    def fails(case: object) -> bool:
        try:
            case(Rig(lambda script: changed(name, script)))  # type: ignore[operator]
        except Exception:  # noqa: BLE001 - a broken script may break anything
            return True
        return False

    assert any(map(fails, CASES))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__.strip("_"))
def test_the_rules_as_they_are(case: object) -> None:
    """With all rules, each case is as it should be."""
    case(Rig(lambda script: script))  # type: ignore[operator]
