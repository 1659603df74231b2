"""Runs many schedules, or replays one: ``scripts/simulate --help``."""

from __future__ import annotations

import argparse
import sys
import time

from .campaign import CORE, Campaign, Tally, told
from .cluster_campaign import CLUSTER, HANGING, MOVING
from .dying import KEEPERS
from .quorum_campaign import QUORUM
from .redis_campaign import REDIS, RESTARTS
from .redis_stores import STORE
from .stepping import CLOCKS, REDIS_CLOCKS
from .zookeeper_campaign import ZOOKEEPER

CAMPAIGNS = {
    each.name: each
    for each in (
        *(CORE, CLOCKS, REDIS_CLOCKS, KEEPERS, REDIS, RESTARTS, STORE),
        *(CLUSTER, MOVING, HANGING, QUORUM, ZOOKEEPER),
    )
}


def main() -> int:
    """Does what the command line says; 1 if a property was violated."""
    parser = argparse.ArgumentParser(prog="scripts/simulate", description=__doc__)
    parser.add_argument("--of", choices=CAMPAIGNS, default=CORE.name, help="what is simulated")
    parser.add_argument("--seeds", type=int, default=20_000, metavar="N", help="how many schedules")
    parser.add_argument("--start", type=int, default=0, metavar="S", help="the first seed")
    parser.add_argument("--replay", type=int, metavar="SEED", help="one schedule, told in full")
    options = parser.parse_args()
    campaign = CAMPAIGNS[options.of]
    if options.replay is not None:
        return replay(campaign, options.replay)
    return run(campaign, range(options.start, options.start + options.seeds))


def tell(*what: object, sep: str = " ") -> None:
    sys.stdout.write(sep.join(str(each) for each in what) + "\n")


def replay(campaign: Campaign, seed: int) -> int:
    schedule, failure = campaign.run_seed(seed)
    tell(schedule.swarm)
    tell(told(schedule))
    tell(failure.story if failure else f"seed {seed} violates nothing")
    tell(f"{schedule.world.events} events, fingerprint {schedule.world.fingerprint()}")
    return 1 if failure else 0


def run(campaign: Campaign, seeds: range) -> int:
    began = time.monotonic()

    def show_progress(tally: Tally) -> None:
        sys.stdout.write(f"\r{tally.schedules} schedules, {len(tally.failures)} failures")

    tally = campaign.run(seeds, show_progress)
    took = time.monotonic() - began
    tell(f"\n{tally.events} events in {took:.1f} s: {tally.schedules / took:.0f} schedules/s")
    for what, times in sorted(tally.counts.items()):
        tell(f"{times:9d}  {what}")
    try:
        campaign.check(tally)
    except AssertionError as failed:
        tell(failed)
        return 1
    tell("No failure.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
