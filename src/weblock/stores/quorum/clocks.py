"""The servers' clocks: the time that orders waiters, and whether the clocks agree."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ..._platform.logs import logger

APART: Final = 5.0
"""Seconds by which clocks may differ: half of what a server that has lost its data takes to recover."""

ALIKE: Final = 1.0
"""Seconds by which the clocks of a majority may differ that need not wait for the others."""


class Clocks:
    """The servers' clocks, and by how much each is ahead of ours.

    Ours may show anything, and what each client calls now would order waiters by whose clock is
    behind. So the order is by the servers' time, which each of their answers tells.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names
        self._majority = len(names) // 2 + 1
        self._ahead: dict[int, float] = {}
        self._warned: set[int] = set()

    @property
    def known(self) -> bool:
        """Whether a majority has ever told what it shows."""
        return len(self._ahead) >= self._majority

    @property
    def alike(self) -> bool:
        """Whether a majority shows the same, so that whatever the others show does not matter."""
        ahead = sorted(self._ahead.values())
        windows = zip(ahead, ahead[self._majority - 1 :], strict=False)
        return any(last - first <= ALIKE for first, last in windows)

    def heard(self, server: int, time: float, *, sent: float, received: float) -> None:
        """Record an answer: the server's clock showed ``time`` between these two of ours.

        What was known stays as far as the answer allows it, so of many answers the fastest counts.
        """
        least, most = time - received, time - sent
        ahead = min(max(self._ahead.get(server, least), least), most)
        self._ahead[server] = ahead
        behind = max(self._ahead.values()) - ahead
        if behind > APART and server not in self._warned:
            self._warned.add(server)
            logger.warning(
                "the clock of %s is %.0f s behind that of %s: if that server loses its data,"
                " fences may go back by as much. Have a time server set both clocks",
                self._names[server],
                behind,
                self._names[max(self._ahead, key=self._ahead.__getitem__)],
            )

    def time(self, now: float) -> float:
        """Return what all clocks of a majority show now, at least.

        With all of them known, no minority can move it, wherever its clocks are.
        """
        return now + sorted(self._ahead.values(), reverse=True)[self._majority - 1]
