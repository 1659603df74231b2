"""The settings in ``app.config``: ``WEBLOCK_URL``, ``WEBLOCK_TTL`` and so on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from ..._options import LocksOptions, seconds
from ...errors import ConfigurationError
from ..kit.guarding import DATABASE_GUARD, GUARDS, LEASE_GUARD, LOCK_WAIT, GuardKind
from ..kit.settings import Wanted, configured
from ..wsgi import Rewrite

NAME: Final = "WEBLOCK"
PREFIX: Final = f"{NAME}_"


@dataclass(frozen=True)
class GuardSettings:
    """What is checked before a COMMIT; ``wait`` is how many seconds a database waits for a former holder."""

    kind: GuardKind = LEASE_GUARD
    wait: float = LOCK_WAIT

    def asks_database(self, guard: GuardKind | None) -> bool:
        """Return whether the database is to refuse stale holders of a lock with this ``guard=``."""
        return (guard or self.kind) == DATABASE_GUARD


def settings_in(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return our settings in an application's ``config``, as the user writes them."""
    return {name: value for name, value in config.items() if name.startswith(PREFIX)}


@dataclass(frozen=True)
class Settings:
    """The settings of an application, from the code and from its ``config``, which overrides them."""

    locks: Wanted
    options: LocksOptions
    rewrite: Rewrite | None
    guard: GuardSettings = GuardSettings()

    def with_config(self, config: Mapping[str, Any]) -> Settings:
        """Return the settings of an application. Raises ``ConfigurationError``."""
        if NAME in config:  # As in Django's settings; it would be ignored.
            raise ConfigurationError(
                f"{NAME} in app.config is no setting: each has a name of its own, such as"
                ' WEBLOCK_URL = "redis://..."'
            )
        given = {
            name.removeprefix(PREFIX).lower(): value for name, value in settings_in(config).items()
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
            guard=_guard(given),
        )


def _function(rewrite: Rewrite | None) -> Rewrite | None:
    if not (rewrite is None or callable(rewrite)):
        raise ConfigurationError(f"{PREFIX}REWRITE is {rewrite!r:.80}: give a function")
    return rewrite


def _guard(given: Mapping[str, Any]) -> GuardSettings:
    kind = given.get("guard", LEASE_GUARD)
    if kind not in GUARDS:
        raise ConfigurationError(f"{PREFIX}GUARD is {kind!r:.80}: give 'lease' or 'database'")
    if "guard_wait" in given and "guard" not in given:
        raise ConfigurationError(
            f"app.config has {PREFIX}GUARD_WAIT without {PREFIX}GUARD: give {PREFIX}GUARD 'database', or"
            " 'lease' if single locks have guard='database'"
        )
    wait = seconds(f"{PREFIX}GUARD_WAIT", given.get("guard_wait", LOCK_WAIT), least=0.001)
    return GuardSettings(kind, wait)
