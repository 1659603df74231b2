"""Where an application's locks come from: from its code, or its framework's configuration."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final, cast

from ..._options import LocksOptions
from ...aio import AsyncLocks
from ...errors import ConfigurationError
from ...stores import url as urls
from ...sync import Locks

Wanted = Locks | str | Sequence[str] | None
"""Locks that are open already, or the engine that is to be opened."""

OPTIONS: Final = tuple(LocksOptions.__annotations__)


def configured(
    locks: Wanted,
    options: LocksOptions,
    given: Mapping[str, Any],
    *,
    spell: Callable[[str], str],
    others: Collection[str] = (),
) -> tuple[Wanted, LocksOptions]:
    """Return what a configuration makes of the locks and options that the code gave.

    ``given`` are the settings: ``url``, the options, and ``others``, which belong to the adapter.
    ``spell`` returns a setting as the user writes it. Raises ``ConfigurationError`` for one that does
    not exist, and for a URL next to locks that are open already.
    """
    known = ("url", *others, *OPTIONS)
    for name in given:
        if name not in known:
            there = ", ".join(map(spell, known))
            raise ConfigurationError(f"there is no setting {spell(name):.80}; there is {there}")
    if "url" in given:
        if isinstance(locks, Locks):
            raise ConfigurationError(
                f"{spell('url')} is set, but WebLock was given locks that are open already: give one of"
                " them"
            )
        locks = given["url"]
    of_config = {name: given[name] for name in OPTIONS if name in given}
    return locks, cast("LocksOptions", {**options, **of_config})


def refuse_url(options: LocksOptions) -> None:
    """Raise ``TypeError`` for ``url=``, which ``from_url`` has and no adapter."""
    if "url" in options:
        raise TypeError(
            "there is no option 'url': the engine's URL comes second, without a name, as in"
            ' (app, "redis://...")'
        )


def opened(locks: Wanted, options: LocksOptions) -> Locks:
    """Return the locks of an application, which are made here if only their engine is named."""
    refuse_url(options)
    if isinstance(locks, Locks):
        if options:
            raise TypeError(
                f"{', '.join(options)}: these are options of the locks, which are open already. Give"
                " them to Locks.from_url(...) instead"
            )
        return locks
    if isinstance(locks, AsyncLocks):
        raise TypeError(
            "an AsyncLocks is awaited, and this application waits in its threads: give"
            " Locks.from_url(...), or the engine's URL"
        )
    return Locks.from_url(locks, **options)


def refuse_other_application(app: object, kind: type) -> None:
    """Raise ``TypeError`` for what is no application of a framework, such as an engine's URL."""
    if not isinstance(app, kind):
        raise TypeError(
            f"WebLock takes the {kind.__name__} application first, and was given {shown(app)}: write"
            ' WebLock(app, "redis://..."), or WebLock(locks="redis://...") and later init_app(app)'
        )


def shown(value: object) -> str:
    """Return an argument of a wrong kind for a message: a string may be a URL with a password."""
    if not isinstance(value, str):
        return f"{value!r:.100}"
    return f"{urls.without_secrets(value)!r:.100}" if "://" in value else urls.shown(value)
