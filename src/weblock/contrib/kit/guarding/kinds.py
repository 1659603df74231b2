"""What is checked before a COMMIT, as settings and locks name it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

from ....errors import ConfigurationError

GuardKind = Literal["lease", "database"]

LEASE_GUARD: Final = "lease"
"""Only that the lease has not ended, as far as its holder knows."""

DATABASE_GUARD: Final = "database"
"""Also the fence, by the database itself."""

GUARDS: Final = (LEASE_GUARD, DATABASE_GUARD)


def refuse_guard(guard: object, options: Mapping[str, object]) -> None:
    """Raise ``ConfigurationError`` for what is no ``guard=`` of a lock with these options."""
    if guard is not None and guard not in GUARDS:
        raise ConfigurationError(f"guard={guard!r:.80}: give 'lease', 'database' or None")
    if guard == DATABASE_GUARD and (options.get("shared") or options.get("limit", 1) != 1):
        raise ConfigurationError(
            "the guard in the database needs an exclusive lease: leave out limit= and shared=, or the guard"
        )
