"""The command: ``scripts/benchmark --help``."""

from __future__ import annotations

import argparse
import sys
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path

from . import (
    cases,
    far,
    goals,
    growth,
    idempotency,
    machine,
    postgresql_peers,
    redis_peers,
    redlock_peers,
    semaphore_peers,
    web,
)
from .measuring import Effort
from .report import show, write_between_marks

CASES = {
    **cases.CASES,
    **redis_peers.CASES,
    **far.CASES,
    **redlock_peers.CASES,
    **semaphore_peers.CASES,
    **postgresql_peers.CASES,
    **web.CASES,
    **growth.CASES,
    **idempotency.CASES,
}

THOROUGH = Effort(rounds=9, slice=0.5, idle=10.0)
QUICK = Effort(rounds=3, slice=0.1, idle=1.0)
THOROUGH_GOALS = Effort(rounds=15, slice=0.4, idle=0)
QUICK_GOALS = Effort(rounds=8, slice=0.1, idle=0, fastest=True)


def main(arguments: list[str] | None = None) -> int:
    """Runs the cases that were asked for; 130 if it was interrupted."""
    asked = _parser().parse_args(arguments)
    efforts = (QUICK_GOALS, THOROUGH_GOALS) if asked.goals else (QUICK, THOROUGH)
    effort = efforts[0] if asked.quick else efforts[1]
    if asked.rounds:
        effort = replace(effort, rounds=asked.rounds)
    machine.interrupt_on_sigterm()
    if asked.goals:
        return _goals(effort, asked)
    try:
        with _cores(asked):
            for name in asked.only or (redis_peers.CASES if asked.redis else cases.CASES):
                for findings in CASES[name](effort):
                    show(findings, markdown=asked.markdown)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    return 0


def _cores(asked: argparse.Namespace) -> AbstractContextManager[None]:
    """Return what keeps the cores awake, unless they may sleep."""
    return nullcontext() if asked.asleep else machine.awake()


def _goals(effort: Effort, asked: argparse.Namespace) -> int:
    """Print the table of goals, and write it where it is wanted if the machine was quiet."""
    calm = machine.Calm()
    if asked.write and (why := calm.disturbances()):
        print(f"Nothing is measured for {asked.write}: {'; '.join(why)}.", file=sys.stderr)
        return 1
    with _cores(asked):
        findings = goals.table(effort)
    show(findings, markdown=asked.markdown)
    why = calm.disturbances()
    how = "the fastest slice of each" if effort.fastest else "medians of paired slices"
    cores = "as they are" if asked.asleep else "kept awake"
    print(f"{effort.rounds} rounds of {effort.slice:g} s, {how}; cores {cores}.")
    print(f"The machine was not quiet: {'; '.join(why)}." if why else "The machine was quiet.")
    if not asked.write:
        return 0
    if why:
        print(f"{asked.write} stays as it is.", file=sys.stderr)
        return 1
    write_between_marks(asked.write, "goals", findings)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="scripts/benchmark",
        description="Measures weblock's engines beside other locks, in turn, in one run. Only the"
        " ratios mean anything. Every run also checks that no two sections overlapped.",
        epilog="cases: " + "; ".join(f"{name}: {case.__doc__}" for name, case in CASES.items()),
    )
    parser.add_argument(
        "--only", action="append", choices=CASES, metavar="CASE", help="this case; may be repeated"
    )
    parser.add_argument(
        "--redis", action="store_true", help="the cases of the Redis engine, with a server"
    )
    parser.add_argument(
        "--quick", action="store_true", help="seconds instead of minutes, and noise"
    )
    parser.add_argument(
        "--goals",
        action="store_true",
        help="every case that has a goal, in one table of one interleaved run; with --quick, by the"
        " fastest slices, which gives ratios that are of use on a busy machine",
    )
    parser.add_argument(
        "--asleep",
        action="store_true",
        help="do not keep the cores awake while they have nothing to do",
    )
    parser.add_argument(
        "--write",
        type=Path,
        metavar="PAGE",
        help="with --goals: put the table into a page, if the machine was quiet",
    )
    parser.add_argument("--rounds", type=_positive, help="so many slices for each contender")
    parser.add_argument("--markdown", action="store_true", help="tables in Markdown")
    return parser


def _positive(text: str) -> int:
    if (number := int(text)) < 1:
        raise argparse.ArgumentTypeError("at least 1")
    return number


if __name__ == "__main__":
    sys.exit(main())
