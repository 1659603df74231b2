"""The command: ``scripts/benchmark --help``."""

from __future__ import annotations

import argparse
import signal
import sys
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from . import growth, idempotency, instructions, machine, races, web
from .measuring import Effort
from .report import show, write_between_marks

CASES = {
    "goals": lambda effort: (*races.goals(effort), *web.web(effort)),
    **growth.CASES,
    **races.CASES,
    **web.CASES,
    **instructions.CASES,
    **idempotency.CASES,
}
PAGE = Path("docs/dev/benchmarks.md")
WRITTEN = ["goals", "instructions", "growth"]
"""The cases that have a place in the page."""

THOROUGH = Effort(rounds=15, slice=0.4)
QUICK = Effort(rounds=8, slice=0.1, fastest=True)


def main(arguments: list[str] | None = None) -> int:
    """Runs the cases that were asked for; 130 if it was interrupted."""
    parser = _parser()
    asked = parser.parse_args(arguments)
    names = asked.only or WRITTEN
    if asked.write and not {*names} <= {*WRITTEN}:
        parser.error(f"only these are written into {PAGE}: {', '.join(WRITTEN)}")
    effort = QUICK if asked.quick else THOROUGH
    if asked.rounds:
        effort = replace(effort, rounds=asked.rounds)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with ExitStack() as stack:
            stack.enter_context(machine.awake())
            if asked.before:
                before = stack.enter_context(machine.checked_out(asked.before))
                effort = replace(effort, before=before)
            for name in names:
                conditions = machine.Conditions()
                found = []
                for findings in CASES[name](effort):
                    show(str(findings))
                    found.append(findings)
                about = str(conditions)  # Before the page is changed.
                show(f"{about}\n")
                if asked.write:
                    text = "\n".join([f"{about}\n", *map(str, found)])
                    write_between_marks(PAGE, name, text)
                    if name == "growth":
                        growth.draw(found, PAGE.with_name("growth.svg"), about)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
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
        help=f"this case; may be repeated: {', '.join(CASES)} (by default, {' and '.join(WRITTEN)})",
    )
    parser.add_argument(
        "--write",
        action="store_true",
        help=f"put the tables into {PAGE}, and the plots of growth next to it",
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="short slices, of which the fastest count: ratios that are of use on a busy machine",
    )
    parser.add_argument(
        "--before", metavar="COMMIT", help="let weblock as it was at this commit race along"
    )
    parser.add_argument("--rounds", type=int, help="so many slices for each contender")
    return parser


if __name__ == "__main__":
    sys.exit(main())
