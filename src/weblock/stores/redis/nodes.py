"""Where the servers are: one, the master that Sentinels name, or the masters of a cluster.

Finding out blocks; asyncio does it in a thread.
"""

from __future__ import annotations

from typing import Protocol

from .settings import Address


class Nodes(Protocol):
    """The servers of one deployment."""

    def ready(self) -> bool:
        """Return whether ``address_of`` may be called; if not, ``refresh`` must be called first."""

    def refresh(self) -> None:
        """Find out where the servers are. Raises redis-py's errors, or ``Unfit``."""

    def address_of(self, bucket: int) -> Address:
        """Return a server's address. Raises redis-py's errors, or ``Unfit``, if there is none."""

    def listen_at(self) -> Address:
        """Return a server that passes on the notifications of all servers."""

    def serves(self, address: Address) -> bool:
        """Return whether a server is one of them, as far as known, and answers."""

    def moved(self, bucket: int, address: Address) -> None:
        """Record a server's answer that another server has a bucket's keys."""

    def doubt(self, address: Address | None = None, error: Exception | None = None) -> None:
        """Make the next caller look again, after a server failed in this way."""

    def close(self) -> None:
        """End what goes on in the background."""


class OneNode:
    """One server, at an address that does not change."""

    def __init__(self, address: Address) -> None:
        self._address = address

    def ready(self) -> bool:
        return True

    def refresh(self) -> None:
        """There is nothing to find out."""

    def address_of(self, bucket: int) -> Address:
        return self._address

    def listen_at(self) -> Address:
        return self._address

    def serves(self, address: Address) -> bool:
        return True

    def moved(self, bucket: int, address: Address) -> None:
        """There is no other."""

    def doubt(self, address: Address | None = None, error: Exception | None = None) -> None:
        """There is no other."""

    def close(self) -> None:
        """There is nothing to end."""
