"""Runs many schedules, or replays one: ``scripts/simulate --help``."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter

from .campaign import Tally, on_all_processors, run_campaign, run_seed, told
from .quorum_campaign import quorum_schedule, run_quorum_seeds
from .world import Violation


def main() -> int:
    """Does what the command line says; 1 if a property was violated."""
    parser = argparse.ArgumentParser(prog="scripts/simulate", description=__doc__)
    parser.add_argument("--seeds", type=int, default=20_000, metavar="N", help="how many schedules")
    parser.add_argument("--start", type=int, default=0, metavar="S", help="the first seed")
    parser.add_argument("--replay", type=int, metavar="SEED", help="one schedule, told in full")
    parser.add_argument("--quorum", action="store_true", help="of several servers, not of one")
    options = parser.parse_args()
    if options.quorum:
        return quorum(options.start, options.seeds, options.replay)
    if options.replay is not None:
        return replay(options.replay)
    return campaign(options.start, options.seeds)


def tell(*what: object, sep: str = " ") -> None:
    """Writes a line."""
    sys.stdout.write(sep.join(str(each) for each in what) + "\n")


def replay(seed: int) -> int:
    """Tells one schedule."""
    schedule, failure = run_seed(seed)
    tell(schedule.swarm)
    tell(told(schedule))
    tell(failure.story if failure else f"seed {seed} violates nothing")
    tell(f"{schedule.world.events} events, fingerprint {schedule.world.fingerprint()}")
    return 1 if failure else 0


def campaign(start: int, count: int) -> int:
    """Runs many, and tells what came of them."""
    began = time.monotonic()

    def show_progress(tally: Tally) -> None:
        sys.stdout.write(f"\r{tally.schedules} schedules, {len(tally.failures)} failures")

    tally = run_campaign(start, count, show_progress)
    took = time.monotonic() - began
    tell(f"\n{tally.events} events in {took:.1f} s: {tally.schedules / took:.0f} schedules/s")
    for what, times in sorted(tally.counts.items()):
        tell(f"{times:9d}  {what}")
    if tally.never:
        tell("never met:", *tally.never, sep="\n  ")
    for failure in tally.failures[:3]:
        tell(f"\n{failure.story}")
    seeds = [failure.seed for failure in tally.failures]
    tell(f"{len(seeds)} failures, of seeds {seeds[:50]}" if seeds else "No failure.")
    return 1 if seeds or tally.never else 0


def quorum(start: int, count: int, seed: int | None) -> int:
    """The same on a quorum."""
    if seed is not None:
        schedule = quorum_schedule(seed)
        try:
            schedule.run()
        except Violation as violation:
            tell(f"{told(schedule)}\n{schedule.swarm}\n{violation}")
            return 1
        tell(f"{told(schedule)}\nseed {seed} violates nothing")
        return 0
    seeds = range(start, start + count)
    chunks = [seeds[first : first + 50] for first in range(0, count, 50)]
    counts: Counter[str] = Counter()
    stories: list[str] = []
    for met, failed in on_all_processors(run_quorum_seeds, chunks):
        counts.update(met)
        stories += failed
        sys.stdout.write(f"\r{counts['schedules']} schedules, {len(stories)} failures")
    tell(*("", *(f"{times:9d}  {what}" for what, times in sorted(counts.items()))), sep="\n")
    tell(*stories[:3], f"{len(stories)} failures" if stories else "No failure.", sep="\n\n")
    return 1 if stories else 0


if __name__ == "__main__":
    sys.exit(main())
