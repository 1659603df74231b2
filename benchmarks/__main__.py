"""The command: ``scripts/benchmark --help``."""

from __future__ import annotations

import argparse
import sys
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

from . import goals, growth, idempotency, machine, races, web
from .measuring import Effort
from .report import markdown, show, write_between_marks

CASES = {**races.CASES, **web.CASES, **growth.CASES, **idempotency.CASES}

THOROUGH = Effort(rounds=15, slice=0.4)
QUICK = Effort(rounds=8, slice=0.1, fastest=True)


def main(arguments: list[str] | None = None) -> int:
    """Runs the cases that were asked for; 130 if it was interrupted."""
    asked = _parser().parse_args(arguments)
    effort = QUICK if asked.quick else THOROUGH
    if asked.rounds:
        effort = replace(effort, rounds=asked.rounds)
    machine.interrupt_on_sigterm()
    calm = machine.Calm()
    if asked.write and (why := calm.disturbances()):
        print(f"Nothing is measured for {asked.write}: {'; '.join(why)}.", file=sys.stderr)
        return 1
    some = [] if asked.goals or asked.write else [CASES[name] for name in asked.only]
    found = []
    try:
        with nullcontext() if asked.asleep else machine.awake():
            for case in some or [goals.tables]:
                for findings in case(effort):
                    show(findings, as_markdown=asked.markdown)
                    found.append(findings)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    why = calm.disturbances()
    how = "the fastest slice of each" if effort.fastest else "medians of paired slices"
    cores = "as they are" if asked.asleep else "kept awake"
    about = (
        f"{machine.description()}: {effort.rounds} rounds of {effort.slice:g} s, {how}; cores"
        f" {cores}."
    )
    print(about)
    print(f"The machine was not quiet: {'; '.join(why)}." if why else "The machine was quiet.")
    if asked.write and why:
        print(f"{asked.write} stays as it is.", file=sys.stderr)
        return 1
    if asked.write:
        write_between_marks(asked.write, "goals", "\n".join([about, "", *map(markdown, found)]))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="scripts/benchmark",
        description="Measures weblock's engines beside other locks, in turn, in one run. Only the"
        " ratios mean anything. Every run also checks that no two sections overlapped.",
    )
    parser.add_argument(
        "--only",
        action="append",
        choices=CASES,
        metavar="CASE",
        default=[],
        help=f"this case, in detail; may be repeated: {', '.join(CASES)}",
    )
    parser.add_argument(
        "--goals",
        action="store_true",
        help="every case that has a goal, met or not met (the default)",
    )
    parser.add_argument(
        "--write",
        type=Path,
        metavar="PAGE",
        help="the same, and put the tables into a page if the machine was quiet",
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="short slices, of which the fastest count: ratios that are of use on a busy machine",
    )
    parser.add_argument(
        "--asleep",
        action="store_true",
        help="do not keep the cores awake while they have nothing to do",
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
