"""Runs many schedules, or replays one: ``python -m tests.simulation --help``."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter

from .schedule import simulate


def say(text: str) -> None:
    """Prints it."""
    sys.stdout.write(f"{text}\n")


def main() -> int:
    """Runs what the command line asks for; 1 if a property does not hold."""
    parser = argparse.ArgumentParser(prog="scripts/simulate", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000, metavar="N", help="how many")
    parser.add_argument("--start", type=int, default=0, metavar="S", help="the first seed")
    parser.add_argument("--replay", type=int, metavar="SEED", help="tell one schedule in full")
    options = parser.parse_args()
    if options.replay is not None:
        return replay(options.replay)
    return run_many(options.start, options.seeds)


def replay(seed: int) -> int:
    """Tells one schedule from start to end."""
    outcome = simulate(seed)
    say(outcome.story(last=len(outcome.world.trace)))
    say(f"trace {outcome.world.fingerprint()}")
    return 1 if outcome.violation else 0


def run_many(start: int, seeds: int) -> int:
    """Runs consecutive seeds until one fails, and tells how often each interesting event came."""
    began, events = time.perf_counter(), 0
    counts: Counter[str] = Counter()
    for seed in range(start, start + seeds):
        outcome = simulate(seed)
        if outcome.violation:
            say(outcome.story())
            return 1
        counts += outcome.counts
        events += outcome.events
    took = time.perf_counter() - began
    for what, how_often in sorted(counts.items()):
        say(f"{how_often:8}  {what}")
    say(f"{seeds} schedules, {events} events, no violation; {seeds / took:.0f} schedules/s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
