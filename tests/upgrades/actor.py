"""A process that locks as it is told, in the version of weblock that ``PYTHONPATH`` has.

It speaks JSON, one value a line, and uses public names only: an earlier version runs it, too.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import weblock
from weblock import Lease, Locks


class Actor:
    """The orders that it obeys. It has at most one lease."""

    def __init__(self, url: str | list[str], patience: float) -> None:
        self._locks = Locks.from_url(url, ttl=patience, wait=patience)
        self._lease: Lease | None = None

    def source(self) -> str:
        """Return where the version of weblock is that runs here."""
        return str(weblock.__file__)

    def acquire(self, key: str) -> int | None:
        """Return the fence."""
        self._lease = self._locks.acquire(key)
        return self._lease.fence

    def is_refused(self, key: str) -> bool:
        """Return whether another holder has the key."""
        return self._locks.try_acquire(key) is None

    def extend(self) -> None:
        """Ask the engine whether the lease is still ours."""
        assert self._lease
        self._lease.extend(1)

    def release(self) -> None:
        """Pass the key on."""
        assert self._lease
        self._lease.release()

    def force_release(self, key: str) -> bool:
        """Return whether there was a lease."""
        return self._locks.force_release(key)

    def once(self, key: str) -> bool:
        """Return whether the step ran here."""
        return self._locks.once(key, lambda: None)

    def obey(self, verb: str, *args: Any) -> Any:
        """Return the outcome, or the name of an error."""
        try:
            return getattr(self, verb)(*args)
        except Exception as error:  # noqa: BLE001 - an earlier version may find what it cannot read
            return type(error).__name__


if __name__ == "__main__":
    actor = Actor(*json.loads(sys.argv[1]))
    for order in sys.stdin:
        verb, args, _ = json.loads(order)
        sys.stdout.write(json.dumps(actor.obey(verb, *args)) + "\n")
        sys.stdout.flush()
