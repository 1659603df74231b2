"""The waiters of this process, and which processes each of them watches."""

from __future__ import annotations

from ..._core.ports import Ask, Switchboard


class Waiters(Switchboard):
    """Rings the waiters here, and remembers behind which process each one stands in its queue.

    A waiter watches one process only: the nearest one before it. Only the first in a queue watches all
    holders, if there are several. Were it to watch the holder and all
    others before it as well, each death would wake everybody, and a queue of n would need n * n
    connections.
    """

    def __init__(self) -> None:
        super().__init__()
        self._before: dict[str, tuple[str, ...]] = {}

    def disconnect(self, owner: str) -> None:
        super().disconnect(owner)
        self._before.pop(owner, None)

    def watch(self, owner: str, *processes: str) -> None:
        """Remember the processes that ``owner`` watches."""
        if not processes:
            self._before.pop(owner, None)
            return
        self._before[owner] = processes
        if owner not in self.bells:  # It has left meanwhile.
            self._before.pop(owner, None)

    def watched(self) -> set[str]:
        """Return the processes whose end a waiter here watches for."""
        return {process for before in tuple(self._before.values()) for process in before}

    def behind(self, process: str) -> list[str]:
        """Return the owners that watch a process."""
        return [owner for owner, before in tuple(self._before.items()) if process in before]

    def ask(self, owner: str) -> None:
        """Have a waiter ask the engine how it stands."""
        self.ring(owner, Ask())
