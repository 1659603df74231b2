"""What the clients were told, and whether that is what was to be shown."""

from __future__ import annotations

from dataclasses import dataclass

from demo.load import Answer


@dataclass(frozen=True)
class Told:
    """What a GET told of a report."""

    state: str
    worker: int | None
    fence: int | None


@dataclass(frozen=True)
class Report:
    """One report, from the requests for it until its worker has ended, in one way or the other."""

    answers: list[Answer]
    """To the requests for it, which came at once."""
    granted: int | None
    """The fence that the accepted one had."""
    told: list[Told]
    """What each GET told that told something new."""

    @property
    def accepted(self) -> list[Answer]:
        """The answers that accepted it."""
        return [each for each in self.answers if each.status == 202]

    @property
    def is_single(self) -> bool:
        """Whether one request was accepted, and all others were told that the key is busy."""
        busy = [each for each in self.answers if each.code == "lock_timeout"]
        return len(self.accepted) == 1 and len(busy) == len(self.answers) - 1

    @property
    def has_its_fence(self) -> bool:
        """Whether the worker went on with the fence of the request."""
        return {each.fence for each in self.told if each.worker} == {self.granted}

    @property
    def states(self) -> list[str]:
        """What GET told, one after the other; one that was short may be missing."""
        return [each.state for each in self.told]
