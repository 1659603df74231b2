"""What each version let through."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from demo.outcome import Run
from demo.versions import BOUND, Version


@dataclass(frozen=True)
class Outcome(Run):
    """What became of the requests to one version."""

    version: Version

    @property
    def told(self) -> Counter[int]:
        """How often each status was answered."""
        return Counter(answer.status for answer in self.answers)

    @property
    def raced(self) -> bool:
        """Whether two were inside at once, and the bound was broken."""
        return self.overlaps > 0 and self.items > BOUND

    @property
    def lost(self) -> bool:
        """Whether any holder learned that its lease was lost."""
        return any(answer.code == "lease_lost" for answer in self.answers)

    @property
    def held(self) -> bool:
        """Whether as many as may be were made, one by one, and all others told that there are."""
        told = self.told
        return (
            self.overlaps == 0
            and self.items == told[201] == BOUND
            and told[201] + told[400] == len(self.answers)
        )
