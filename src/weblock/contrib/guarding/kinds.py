"""What is checked before a COMMIT, as settings and locks name it."""

from __future__ import annotations

from typing import Final, Literal

GuardKind = Literal["lease", "database"]

LEASE_GUARD: Final = "lease"
"""Only that the lease has not ended, as far as its holder knows."""

DATABASE_GUARD: Final = "database"
"""Also the fence, by the database itself."""

GUARDS: Final = (LEASE_GUARD, DATABASE_GUARD)
