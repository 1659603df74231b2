"""``@locks.lock("item:{item_id}")``: what it decorates runs under the lock."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, Protocol, TypeVar

from flask import Flask, current_app, request

from ...errors import ConfigurationError
from ...keys import CheckedKey, KeyTemplate
from ...sync import Lease
from ..kit import LockSpec
from ..kit.values import request_values, wanted_by
from ..wsgi import RequestLocks, request_locks
from ..wsgi.target import headers_of, query_of
from .database import Database

F = TypeVar("F", bound=Callable[..., Any])

LEASE_KEY: Final = "weblock.lease"
"""Where in ``environ`` the lease of the view is."""

_MARK: Final = "weblock_locks"

GIVEN: Final = "weblock_keys"
"""The attribute of a decorator that has not got its view yet: what it was given for keys."""


class Installed(Protocol):
    """What an application has of weblock."""

    database: Database


def keys_of(lock: LockSpec, values: Mapping[str, object]) -> tuple[CheckedKey, ...]:
    """Return the keys of a request whose view is called with these values."""
    return lock.made_of(
        lambda template: _values(template, values),
        lambda function: current_app.ensure_sync(function)(**wanted_by(function, values)),
    )


def decorated(view: F, lock: LockSpec, installed: Callable[[], Installed]) -> F:
    """Return a view that runs under a lock; ``installed`` returns what the application has."""
    if isinstance(view, type):
        raise TypeError(
            f"@locks.lock decorates functions: in the class {view.__qualname__}, write"
            " decorators = [locks.lock(...)], or decorate its methods"
        )
    if not callable(view):
        raise TypeError('@locks.lock wants a key: write @locks.lock("create_item")')
    # Those of decorators below are acquired along with it, in one order.
    together: tuple[LockSpec, ...] = (lock, *getattr(view, _MARK, ()))
    defaults = _defaults_of(view)

    @functools.wraps(view)
    def held(*args: Any, **kwargs: Any) -> Any:
        values = {**defaults, **(request.view_args or {}), **kwargs}
        _acquire(together, values, installed().database)
        return current_app.ensure_sync(view)(*args, **kwargs)

    setattr(held, _MARK, together)
    return held  # type: ignore[return-value]


def lease_of() -> Lease:
    """Return the lease of the decorator that stands nearest to the running view.

    Raises ``ConfigurationError`` where no lock is held.
    """
    lease = request.environ.get(LEASE_KEY)
    if not isinstance(lease, Lease):
        raise ConfigurationError(
            f"the request to {request.path!r:.100} holds no lock: put @locks.lock on its view"
        )
    return lease


def refuse_unlocked(app: Flask, views: Sequence[Callable[..., Any]]) -> None:
    """Raise ``ConfigurationError`` for a locked view if Flask calls the unlocked function inside it.

    That happens where ``@locks.lock`` stands above ``@app.route``, which returns the function as it is.
    A view below ``@locks.lock`` without a key is told apart here: until then, it could be a function
    that makes one.
    """
    known = [*app.view_functions.values()]
    for keys in (getattr(view, GIVEN, None) for view in known):
        if keys:
            raise ConfigurationError(
                f"@locks.lock was given the view {keys[0]!r:.80} for a key, and so nothing to"
                ' decorate: name the key, as in @locks.lock("create_item")'
            )
    locked = {each for view in known for each in _layers(view)}
    for view in views:
        if view in locked:
            continue
        # Decorators may stand between the route and the function: any layer may be what Flask calls.
        if any(layer in known for layer in _layers(view)):
            raise ConfigurationError(
                f"{view.__qualname__} is served without its lock: put @locks.lock below the"
                " decorator of its route, next to the function. If this route needs no lock, put"
                " @locks.lock on another function, which calls this one"
            )


def locks_of(view: Any) -> tuple[LockSpec, ...]:
    """Return the locks of a view, and of the methods of its class."""
    cls = getattr(view, "view_class", None)
    methods = [getattr(cls, name.lower(), None) for name in getattr(cls, "methods", None) or ()]
    found = [lock for each in (view, *methods) for lock in getattr(each, _MARK, ())]
    return tuple(dict.fromkeys(found))


def _layers(view: Any) -> Iterator[object]:
    """Yield a view, and what it wraps by ``functools.wraps``."""
    while view is not None:
        yield view
        view = getattr(view, "__wrapped__", None)


def _acquire(
    together: Sequence[LockSpec], values: Mapping[str, object], database: Database
) -> None:
    """Acquire what the request does not hold yet of these locks: all keys in one order.

    Requests that lock the same keys by several decorators would otherwise wait for one another.
    """
    environ = request.environ
    if len(together) == 1:
        (lock,) = together
        environ[LEASE_KEY] = acquire_one(lock, keys_of(lock, values), database)
        return
    held = request_locks(environ)
    guarded = [lock for lock in together if database.is_wanted(lock.guard)]
    keys = {lock: keys_of(lock, values) for lock in together}
    for lock, _, missing in held.in_turn((lock, held.locks, keys[lock]) for lock in together):
        _hold(held, lock, missing, database)
    for lock in guarded:
        database.guard(held.lease_of(held.locks, keys[lock]))
    environ[LEASE_KEY] = held.lease_of(held.locks, keys[together[0]])
    held.check()  # Some may have been lost while we waited for others.


def acquire_one(lock: LockSpec, keys: tuple[CheckedKey, ...], database: Database) -> Lease:
    """Acquire what the request does not hold yet of one lock, and return its lease."""
    guarded = database.is_wanted(lock.guard)
    lease = _hold(request_locks(request.environ), lock, keys, database)
    if guarded:
        database.guard(lease)
    return lease


def _hold(
    held: RequestLocks, lock: LockSpec, keys: Sequence[CheckedKey], database: Database
) -> Lease:
    if held.missing(held.locks, keys):
        database.end_reading()
    return held.hold(keys, lock.options)


def _values(template: KeyTemplate, values: Mapping[str, object]) -> Mapping[str, object]:
    for source in template.sources.values():
        if source.kind == "path" and source.name not in values:
            raise ConfigurationError(
                f"lock({template.text!r}) wants the view's argument {source.name!r}; there is"
                f" {', '.join(map(repr, values)) or 'none'}. {{query.{source.name}}} would be a"
                f" query parameter, and {{header.{source.name}}} a header"
            )
    environ = request.environ
    return request_values(
        template, path=values, query=query_of(environ), headers=headers_of(environ)
    )


def _defaults_of(view: Callable[..., Any]) -> dict[str, object]:
    """Return the arguments of the view that its URL does not give."""
    parameters = inspect.signature(view).parameters.values()
    return {each.name: each.default for each in parameters if each.default is not each.empty}
