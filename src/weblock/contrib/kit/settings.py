"""Where an application's locks come from: from its code, or its framework's configuration."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final, TypeVar, cast

from ..._api import BaseLocks
from ..._options import LocksOptions
from ...aio import AsyncLocks
from ...errors import ConfigurationError
from ...stores import url as urls
from ...sync import Locks

F = TypeVar("F", bound=BaseLocks)

Wanted = Locks | str | Sequence[str]
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
            raise ConfigurationError(f"{spell(name):.80} is not a setting; available: {there}")
    if "url" in given:
        if isinstance(locks, Locks):
            raise ConfigurationError(
                f"{spell('url')} is set, but WebLock was given locks that are already open: give one of"
                " them"
            )
        locks = given["url"]
    of_config = {name: given[name] for name in OPTIONS if name in given}
    return locks, cast("LocksOptions", {**options, **of_config})


def opened(kind: type[F], locks: object, options: LocksOptions) -> tuple[F, bool]:
    """Return the locks of an application, and whether they were made here, so that it owns them.

    ``kind`` is the API that the application needs. Raises ``TypeError`` for other locks than its, and
    for options of locks that are open already.
    """
    name = kind.__name__
    if "url" in options:
        raise TypeError(
            "there is no option 'url': the engine's URL comes second, without a name, as in"
            ' (app, "redis://...")'
        )
    if isinstance(locks, kind):
        if options:
            raise TypeError(
                f"{', '.join(options)}: these are options of the locks, which are already open. Give"
                f" them to {name}.from_url(...) instead"
            )
        return locks, False
    if isinstance(locks, AsyncLocks):
        raise TypeError(
            "an AsyncLocks is awaited, and this application waits in its threads: give"
            " Locks.from_url(...), or the engine's URL"
        )
    if isinstance(locks, Locks):
        raise TypeError(
            "a Locks blocks the thread that waits, and an ASGI application awaits its locks: give"
            " AsyncLocks.from_url(...), or the engine's URL"
        )
    if locks is not None and not isinstance(locks, str | Sequence):
        raise TypeError(
            f"a {type(locks).__module__}.{type(locks).__qualname__} is neither {name} nor the URL of an"
            f' engine: give "redis://...", or {name}.from_client(client) for a ready client'
        )
    return kind.from_url(cast("str", locks), **options), True


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
