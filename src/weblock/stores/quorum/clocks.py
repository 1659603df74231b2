"""Whether the servers' clocks agree, which nothing depends on until one of them loses its data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ..._platform.logs import logger
from .tally import Tally

APART: Final = 5.0
"""Seconds by which clocks may differ: half of what a server that has lost its data takes to recover."""


class Clocks:
    """Warns once of each server whose clock is behind another's."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names
        self._warned: set[int] = set()

    def compare(self, tally: Tally) -> None:
        """Look at the times at which the servers have answered one question."""
        times = {server: tally.time_of(server) for server in tally.heard}
        if not times:
            return
        ahead = max(times, key=times.__getitem__)
        for server, time in times.items():
            behind = times[ahead] - time
            if behind > APART and server not in self._warned:
                self._warned.add(server)
                logger.warning(
                    "the clock of %s is %.0f s behind that of %s: if that server loses its data,"
                    " fences may go back by as much. Have a time server set both clocks",
                    self._names[server],
                    behind,
                    self._names[ahead],
                )
