"""The settings in ``app.config``: ``WEBLOCK_URL``, ``WEBLOCK_TTL`` and so on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, cast

from ..._options import LocksOptions, seconds
from ...errors import ConfigurationError
from ...sync import Locks
from ..guarding import LOCK_WAIT
from ..wsgi import Rewrite

PREFIX: Final = "WEBLOCK_"

OPTIONS: Final = tuple(name.upper() for name in LocksOptions.__annotations__)
"""What ``LocksOptions`` lists, in the upper case of settings."""

OTHERS: Final = ("URL", "REWRITE", "GUARD", "GUARD_WAIT")

LEASE: Final = "lease"
DATABASE: Final = "database"


@dataclass(frozen=True)
class Settings:
    """What an application is given: in the code, or in its ``config``, which goes first.

    ``guard_wait`` is in seconds, or ``None`` where the leases alone are checked before a COMMIT.
    """

    locks: Locks | str | Sequence[str] | None
    options: LocksOptions
    rewrite: Rewrite | None
    guard_wait: float | None = None

    def with_config(self, config: Mapping[str, Any]) -> Settings:
        """Return the settings of an application. Raises ``ConfigurationError``."""
        given = {
            name.removeprefix(PREFIX): value
            for name, value in config.items()
            if name.startswith(PREFIX)
        }
        for name in given:
            if name not in (*OTHERS, *OPTIONS):
                there = ", ".join(PREFIX + known for known in (*OTHERS, *OPTIONS))
                raise ConfigurationError(f"app.config has {PREFIX}{name:.80}; there is {there}")
        options = {name.lower(): given[name] for name in OPTIONS if name in given}
        return replace(
            self,
            locks=self._locks(given),
            options=cast("LocksOptions", {**self.options, **options}),
            rewrite=_function(given.get("REWRITE", self.rewrite)),
            guard_wait=_guard_wait(given),
        )

    def _locks(self, given: Mapping[str, Any]) -> Locks | str | Sequence[str] | None:
        if "URL" not in given:
            return self.locks
        if isinstance(self.locks, Locks):
            raise ConfigurationError(
                f"app.config has {PREFIX}URL, but WebLock was given locks that are open already: give"
                " one of them"
            )
        url: str | Sequence[str] | None = given["URL"]
        return url


def _function(rewrite: Rewrite | None) -> Rewrite | None:
    if not (rewrite is None or callable(rewrite)):
        raise ConfigurationError(f"{PREFIX}REWRITE is {rewrite!r:.80}: a function is wanted")
    return rewrite


def _guard_wait(given: Mapping[str, Any]) -> float | None:
    kind = given.get("GUARD", LEASE)
    if kind not in (LEASE, DATABASE):
        raise ConfigurationError(
            f"{PREFIX}GUARD is {kind!r:.80}: {LEASE!r} or {DATABASE!r} is wanted"
        )
    if kind == DATABASE:
        return seconds(f"{PREFIX}GUARD_WAIT", given.get("GUARD_WAIT", LOCK_WAIT), least=0.001)
    if "GUARD_WAIT" in given:
        raise ConfigurationError(f"app.config has {PREFIX}GUARD_WAIT without GUARD={DATABASE!r}")
    return None
