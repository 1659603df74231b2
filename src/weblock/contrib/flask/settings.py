"""The settings in ``app.config``: ``WEBLOCK_URL``, ``WEBLOCK_TTL`` and so on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from ..._options import LocksOptions, seconds
from ...errors import ConfigurationError
from ..guarding import LOCK_WAIT
from ..settings import Wanted, configured
from ..wsgi import Rewrite

PREFIX: Final = "WEBLOCK_"

LEASE: Final = "lease"
DATABASE: Final = "database"


@dataclass(frozen=True)
class Settings:
    """The settings of an application, from the code and from its ``config``, which overrides them.

    ``guard_wait`` is in seconds, or ``None`` where the leases alone are checked before a COMMIT.
    """

    locks: Wanted
    options: LocksOptions
    rewrite: Rewrite | None
    guard_wait: float | None = None

    def with_config(self, config: Mapping[str, Any]) -> Settings:
        """Return the settings of an application. Raises ``ConfigurationError``."""
        given = {
            name.removeprefix(PREFIX).lower(): value
            for name, value in config.items()
            if name.startswith(PREFIX)
        }
        locks, options = configured(
            self.locks,
            self.options,
            given,
            spell=lambda name: PREFIX + name.upper(),
            others=("rewrite", "guard", "guard_wait"),
        )
        return replace(
            self,
            locks=locks,
            options=options,
            rewrite=_function(given.get("rewrite", self.rewrite)),
            guard_wait=_guard_wait(given),
        )


def _function(rewrite: Rewrite | None) -> Rewrite | None:
    if not (rewrite is None or callable(rewrite)):
        raise ConfigurationError(f"{PREFIX}REWRITE is {rewrite!r:.80}: give a function")
    return rewrite


def _guard_wait(given: Mapping[str, Any]) -> float | None:
    kind = given.get("guard", LEASE)
    if kind not in (LEASE, DATABASE):
        raise ConfigurationError(f"{PREFIX}GUARD is {kind!r:.80}: give {LEASE!r} or {DATABASE!r}")
    if kind == DATABASE:
        return seconds(f"{PREFIX}GUARD_WAIT", given.get("guard_wait", LOCK_WAIT), least=0.001)
    if "guard_wait" in given:
        raise ConfigurationError(f"app.config has {PREFIX}GUARD_WAIT without GUARD={DATABASE!r}")
    return None
