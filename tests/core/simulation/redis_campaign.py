"""Schedules on the Redis engine, and its scripts with one mistake at a time."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache, partial
from random import Random
from typing import Final

import pytest

from weblock.stores.redis import scripts
from weblock.stores.redis.scripts import Script

from .campaign import Campaign
from .redis_engine import RedisEngine
from .schedule import Schedule
from .sometimes import OF_LIMITS
from .swarm import Swarm

lua51 = pytest.importorskip("lupa.lua51")

Scripted = Callable[[Script], Script]

AS_SHIPPED: Final[Scripted] = lambda script: script  # noqa: E731 - it is a default

SOMETIMES: Final = (
    "engine recovers",
    "engine forgot leases",
    "renewal answered Gone",
    "late claim refused by its mark",
    "lease found by heartbeat after a lost notification",
    "unconfirmed lease passed on",
    "expired lease passed on",
    "waiter skipped",
    "queue was full",
    "holder killed",
    *OF_LIMITS,
)


def redis_schedule(
    seed: int, scripted: Scripted = AS_SHIPPED, recovery: float | None = None
) -> Schedule:
    """The schedule of a seed. The server recovers for twice the ttl, which no lease outlasts."""
    random = Random(seed)
    swarm = Swarm.drawn(random).mixed(Random(f"limits {seed}"))
    swarm = replace(swarm, deaths_known=False)
    recovery = 2 * swarm.ttl if recovery is None else recovery
    engine = partial(RedisEngine, recovery=recovery, scripted=scripted)
    schedule = Schedule(random, swarm, engine)
    if random.random() < 0.15:
        redis = schedule.engine
        assert isinstance(redis, RedisEngine)
        schedule.world.after(random.random() * swarm.calm_at, redis.flush)
    return schedule


def restarting_schedule(seed: int, scripted: Scripted = AS_SHIPPED) -> Schedule:
    """The schedule of a seed in which the server restarts without its data, at any part of a second.

    It recovers for just one ttl, so that it must not be mistaken about when it was started.
    """
    random = Random(seed)
    swarm = replace(
        Swarm.drawn(random, attempts=8),
        **dict.fromkeys(("extends", "max_hold", "zero_wait", "unrenewed", "several_keys"), 0.0),
        **dict.fromkeys(("stops", "crashes", "closes", "engine_stops"), 0),
        keys=1,
        ttl=2.0,
        section=3.0,
        endless_wait=0.8,
        spread=1.0,
        restarts=3,
        amnesia=True,
        deaths_known=False,
        calm_at=6.0,
    )
    engine = partial(RedisEngine, recovery=swarm.ttl, scripted=scripted)
    return Schedule(random, swarm, engine)


def uptime_believed(script: Script) -> Script:
    """The scripts, where they take the server's word for how long it has been up."""
    return script._replace(text=script.text.replace("(uptime - 1)", "uptime"))


RESTARTS = Campaign("restarts", restarting_schedule, ("engine recovers", "engine forgot leases"))
"""Servers that restart without their data, and tell their uptime in whole seconds."""

REDIS = Campaign("redis", redis_schedule, SOMETIMES)
"""The scripts, as a server runs them."""


@dataclass(frozen=True)
class Mutant:
    """One mistake in one of the files."""

    name: str
    line: tuple[str, int]
    original: str
    mutated: str

    def __call__(self, script: Script) -> Script:
        return script._replace(text=script.text.replace(self.original, self.mutated))


FILES: Final = (
    *("head", "usual", "free", "last", "prelude"),
    *("acquire", "renew", "beat", "release", "transfer", "force_release", "ask_release"),
    *("wait_behind", "raise_fence", "begin", "look"),
)

FLIPS: Final = {
    " < ": " <= ",
    " <= ": " < ",
    " > ": " >= ",
    " >= ": " > ",
    " == ": " ~= ",
    " ~= ": " == ",
    "math.max": "math.min",
    "math.min": "math.max",
    " true": " false",
    " false": " true",
    " and ": " or ",
}

_NUMBER = re.compile(r"(?<![\w'%$.])\d+(?![\w'])")

_CALL = re.compile(r"^ *(?:local [\w, ]+ = redis\.call|redis\.call|[a-z_]+)\(")


@cache
def mutants() -> list[Mutant]:
    """The scripts with each call dropped, each comparison flipped, and each number doubled."""
    found = []
    for file, text in {
        "constants": scripts.constants(""),
        **{f: scripts.source(f) for f in FILES},
    }.items():
        for name, number, mutated in _mutations(text):
            if _parses(mutated):
                found.append(Mutant(f"{file}: {name}", (file, number), text, mutated))
    return found


def _mutations(text: str) -> Iterator[tuple[str, int, str]]:
    """What is done to which line, the line's number, and the text with it."""
    lines = text.split("\n")
    for number, line in enumerate(lines):
        code = line.partition("--")[0]
        if _CALL.match(line):
            end = _end_of_call(lines, number)
            yield f"without {line.strip()}", number + 1, "\n".join([*lines[:number], *lines[end:]])
        for changed in (*_flipped(code), *_changed(code)):
            whole = "\n".join([*lines[:number], changed, *lines[number + 1 :]])
            yield changed.strip(), number + 1, whole


def _end_of_call(lines: list[str], number: int) -> int:
    end = number + 1
    while "\n".join(lines[number:end]).count("(") != "\n".join(lines[number:end]).count(")"):
        end += 1
    return end


def _flipped(code: str) -> Iterator[str]:
    for old, new in FLIPS.items():
        for match in re.finditer(re.escape(old), code):
            yield code[: match.start()] + new + code[match.end() :]


def _changed(code: str) -> Iterator[str]:
    """A line with one of its numbers doubled; 0 and 1 are no constants of ours."""
    for match in _NUMBER.finditer(code):
        in_a_string = code[: match.start()].count("'") % 2
        if int(match[0]) > 1 and not in_a_string:
            yield f"{code[: match.start()]}{2 * int(match[0])}{code[match.end() :]}"


def _parses(text: str) -> bool:
    chunk = lua51.LuaRuntime().globals().loadstring(text)
    return not isinstance(chunk, tuple)
