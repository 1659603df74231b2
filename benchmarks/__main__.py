"""The command: ``scripts/benchmark --help``."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path

from . import cases, machine, redis_peers, redlock_peers, web
from .measuring import Effort
from .plot import plotted
from .report import Findings, show

CASES = {**cases.CASES, **redis_peers.CASES, **redlock_peers.CASES, **web.CASES}

THOROUGH = Effort(rounds=9, slice=0.5, idle=10.0)
QUICK = Effort(rounds=3, slice=0.1, idle=1.0)


def main(arguments: list[str] | None = None) -> int:
    """Runs the cases that were asked for; 130 if it was interrupted."""
    asked = _parser().parse_args(arguments)
    effort = QUICK if asked.quick else THOROUGH
    if asked.rounds:
        effort = replace(effort, rounds=asked.rounds)
    machine.interrupt_on_sigterm()
    shown: list[Findings] = []
    try:
        for name in asked.only or (redis_peers.CASES if asked.redis else cases.CASES):
            for findings in CASES[name](effort):
                show(findings, markdown=asked.markdown)
                shown.append(findings)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    if asked.plot:
        asked.plot.write_text(plotted(shown))
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
    parser.add_argument("--rounds", type=_positive, help="so many slices for each contender")
    parser.add_argument("--markdown", action="store_true", help="tables in Markdown")
    parser.add_argument("--plot", type=Path, metavar="SVG", help="a plot of the rates, too")
    return parser


def _positive(text: str) -> int:
    if (number := int(text)) < 1:
        raise argparse.ArgumentTypeError("at least 1")
    return number


if __name__ == "__main__":
    sys.exit(main())
