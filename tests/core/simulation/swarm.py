"""What one schedule is made of: its size, and a random subset of faults with random rates.

Swarm testing (Groce et al., ISSTA 2012): a schedule that has every fault a little reaches fewer
states than many schedules that each have some faults a lot.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random

from weblock._core.holding import DRIFT


@dataclass(frozen=True, slots=True)
class Swarm:
    """Probabilities are per message or per attempt, counts per schedule, durations in seconds."""

    # The load.
    processes: int
    attempts: int
    keys: int
    ttl: float
    spread: float
    section: float
    room: int
    zero_wait: float
    endless_wait: float
    several_keys: float
    unrenewed: float
    max_hold: float
    extends: float
    # Clocks.
    drift: float
    granularity: float
    # The network.
    delay: float
    op_timeout: float
    multiplexed: bool
    late: float
    latest: float
    lost_requests: float
    lost_replies: float
    lost_notifications: float
    duplicates: float
    resets: float
    # The engine.
    engine_stops: int
    restarts: int
    amnesia: bool
    deaths_known: bool
    # The processes.
    cancels: float
    stops: int
    crashes: int
    closes: int
    # When all faults have ended.
    calm_at: float
    # Whether callers name limits, and ask holders to release.
    limited: float = 0.0
    asks: float = 0.0

    @property
    def calm(self) -> bool:
        """Whether nothing ever fails: then the engine's order is that of the requests."""
        messages = self.late + self.lost_requests + self.lost_replies + self.lost_notifications
        events = self.engine_stops + self.restarts + self.stops + self.crashes + self.closes
        return messages == 0 and events == 0

    @classmethod
    def drawn(cls, random: Random, *, attempts: int = 14) -> Swarm:
        """A random one with at most so many attempts."""

        def rate(share: float, most: float) -> float:
            return random.uniform(most / 10, most) if random.random() < share else 0.0

        def count(share: float, most: int) -> int:
            return random.randint(1, most) if random.random() < share else 0

        quiet = random.random() < 0.15  # Without faults the bounds on time are tight.
        share = 0.0 if quiet else random.choice([0.2, 0.4, 0.6])
        ttl = random.choice([0.6, 1.0, 2.0, 3.0])
        return cls(
            processes=random.randint(2, 4),
            attempts=random.randint(3, attempts),
            keys=random.choice([1, 1, 2, 3]),
            ttl=ttl,
            spread=random.choice([0.05, 1.0, 3.0]),
            section=random.choice([0.05, 0.3, 1.5]) * ttl,
            room=random.choice([1, 3, 100, 100]),
            zero_wait=rate(0.4, 0.4),
            endless_wait=rate(0.7, 0.9),
            several_keys=rate(0.4, 0.8),
            unrenewed=rate(0.3, 0.8),
            max_hold=rate(0.3, 0.8),
            extends=rate(0.3, 0.8),
            drift=DRIFT if random.random() < 0.6 else 0.0,
            granularity=random.choice([0.0, 0.001]),
            delay=random.choice([0.0005, 0.005, 0.03]),
            op_timeout=random.choice([0.25, 0.5, 1.0]),
            multiplexed=random.random() < 0.3,
            late=rate(share, 0.15),
            latest=random.uniform(0.2, 3.0),
            lost_requests=rate(share, 0.2),
            lost_replies=rate(share, 0.2),
            lost_notifications=random.choice([0.3, 1.0]) if random.random() < share else 0.0,
            duplicates=rate(share, 0.3),
            resets=random.random(),
            engine_stops=count(share, 2),
            restarts=count(share / 2, 2),
            amnesia=random.random() < 0.3,
            deaths_known=random.random() < 0.5,
            cancels=rate(0.5, 0.7),
            stops=count(share, 3),
            crashes=count(share, 2),
            closes=count(share / 3, 1),
            calm_at=random.uniform(2.0, 5.0),
        )

    def mixed(self, random: Random) -> Swarm:
        """One schedule of two stays as it is; in the other, callers name limits and ask holders.

        Give it numbers of its own, so that the rest of a schedule is the same without.
        """
        if random.random() < 0.5:
            return self
        asks = random.choice([0.0, 0.2, 0.5])
        return replace(self, limited=random.choice([0.3, 0.6, 0.9]), asks=asks)
