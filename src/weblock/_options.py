"""The options of locks, and the errors for values that cannot work."""

from __future__ import annotations

import inspect
import math
import os
import re
import socket
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal, TypedDict, Unpack, cast

from ._core.acquiring import Attempts
from ._core.holding import DRIFT, Terms
from ._core.ports import SCOPES
from ._core.table import SHARED
from ._platform.forks import reset_after_fork
from ._runtime.observing import Observer, as_observers
from .errors import ConfigurationError
from .events import Event
from .keys import qualified
from .stores.transport.settings import unknown

if TYPE_CHECKING:
    from ._core.ports import Engine

Duration = float | timedelta
"""Seconds, or a ``timedelta``."""

SHORTEST_TTL: Final = 0.1
"""Seconds; a shorter lease leaves no time to renew it."""

SHORTEST_EXPIRY: Final = 0.001

LONGEST: Final = 366 * 86400.0

_NAMESPACE: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")

_ENDLESS: Final = {
    "wait": ": 0 never waits, and None waits indefinitely",
    "max_hold": "; None means no limit",
}

LARGEST_LIMIT: Final = 1_000_000
"""An engine keeps what it knows of a key in one value, with all its holders."""

MOST_DRIFT: Final = 0.25
"""A share; a larger one would leave too little of a lease."""


class HoldOptions(TypedDict, total=False):
    """How a key is held. Options that are left out are those of the ``Locks``."""

    ttl: Duration
    """How long the lease lasts unless it is renewed (10 s). 0.1 s at least.

    It is renewed while its holder lives. A holder that dies frees the key within it.
    """
    wait: Duration | Attempts | None
    """How long to wait for a busy key (5 s). 0 never waits, ``None`` waits without limit.

    ``Attempts(5)`` asks five times, with a growing backoff, instead of joining the queue.
    """
    max_hold: Duration | None
    """After how long the lease is no longer renewed, and is lost (``None``: never)."""
    renew: bool
    """Whether the lease is renewed in the background (``True``)."""
    max_waiters: int
    """How many callers may wait for the key; further ones get ``LockTimeout`` at once (1000)."""
    label: str | None
    """What others see of the holder (``None``: host name and process id); up to 200 characters."""
    limit: int
    """How many may hold the key at once (1). While callers name different ones, the smallest counts."""
    shared: bool
    """Whether any number of shared holders have the key together (``False``).

    None of them has it together with an exclusive holder. Readers share, and a writer does not.
    """
    on_unavailable: Literal["raise", "open"]
    """What to do when the engine does not answer: ``"raise"`` (the default) or ``"open"``.

    ``"open"`` runs the section **without a lease**. ``"raise"`` raises ``EngineUnavailable``.
    """


class LocksOptions(HoldOptions, total=False):
    """The options of a ``Locks`` or ``AsyncLocks``: those of ``HoldOptions``, as defaults, and these."""

    namespace: str
    """Keeps the keys of different applications apart (``"default"``)."""
    drift: float
    """The share by which the engine's clock may run faster than ours (0.01).

    That share of each lease is not relied on: with a ttl of 10 s, the holder stops relying on its
    lease 0.1 s before the engine does.
    """
    require_scope: str
    """``"host"`` or ``"cluster"``: raises ``ConfigurationError`` if the engine reaches less far."""
    observers: Iterable[Callable[[Event], object] | Observer]
    """Functions that are called with each event, each in a background thread of its own.

    An ``Observer`` sets the details. See ``weblock.events``.
    """


_DEFAULTS: Final[dict[str, Any]] = {
    "ttl": 10.0,
    "wait": 5.0,
    "max_hold": None,
    "renew": True,
    "max_waiters": 1000,
    "label": "",
    "limit": 1,
    "shared": False,
    "on_unavailable": "raise",
}


REMEMBERED: Final = 256
"""How many different sets of options are remembered, at most."""

CallTerms = tuple[Terms, float | Attempts | None]


class Options:
    """The options of one ``Locks``, checked."""

    def __init__(self, **given: Unpack[LocksOptions]) -> None:
        namespace: object = given.pop("namespace", "default")
        if not isinstance(namespace, str) or not _NAMESPACE.fullmatch(namespace):
            raise ConfigurationError(
                f"namespace {namespace!r:.80} must be 1 to 64 letters, digits, '.', '_' or '-'"
            )
        self.namespace = str.__str__(namespace)
        self.prefix = qualified(self.namespace, "")
        self.require_scope = given.pop("require_scope", "none")
        if self.require_scope not in SCOPES:
            raise ConfigurationError(
                f"require_scope={self.require_scope!r} is not one of {', '.join(SCOPES)}"
            )
        self._drift = _drift(given.pop("drift", DRIFT))
        self.observers = as_observers(given.pop("observers", ()))
        self._hold = {**_DEFAULTS, "label": _label_of_process()}
        _refuse_unknown(given, LocksOptions.__annotations__)
        self._hold = self._merged(cast("HoldOptions", given))
        self._engine: Engine | None = None
        self._settle()
        if given.get("label") is None:
            reset_after_fork(self)

    def check_on(self, engine: Engine) -> None:
        """Check from now on what this engine cannot do, too. Raises ``ConfigurationError``."""
        self._engine = engine
        self._known.clear()
        terms = self.own[0]
        if terms.renew and engine.recovery:
            engine.recovery.cover(terms.ttl)
        self._check_on_engine(terms)

    def after_fork(self) -> None:
        """Take the label of the child process, if the label is the default."""
        self._hold["label"] = _label_of_process()
        self._settle()

    def _settle(self) -> None:
        self.own = self._terms_of(self._hold)
        """The terms and the wait of a call without options."""
        self.label = self.own[0].label
        self._known: dict[tuple[object, ...], CallTerms] = {}

    def of_call(self, given: HoldOptions) -> CallTerms:
        """Return the terms and the wait of one call, whose options override our own.

        Equal options are checked once. Raises ``ConfigurationError`` for a value and ``TypeError``
        for an option that cannot work.
        """
        try:
            # With the types, since True, which is refused, equals 1, which is not.
            said = (*given.items(), *map(type, given.values()))
            return self._known[said]
        except (KeyError, TypeError):
            pass
        _refuse_unknown(given, _CHECKS)
        options = self._terms_of(self._merged(given))
        self._check_on_engine(options[0])
        if len(self._known) < REMEMBERED:
            self._known[said] = options
        return options

    def of_take_over(self, given: HoldOptions) -> Terms:
        """Return the terms of a lease that is taken over. Raises as ``of_call`` does."""
        for name in ("limit", "shared"):
            if name in given:
                raise TypeError(
                    f"a lease that is taken over keeps its limit, and take_over was given {name}=:"
                    " leave it out"
                )
        for name in ("wait", "max_waiters", "on_unavailable"):
            if name in given:
                raise TypeError(
                    f"take_over neither waits nor runs without a lease, and was given {name}=:"
                    " leave it out"
                )
        return self.of_call(given)[0]

    def _check_on_engine(self, terms: Terms) -> None:
        """Raise ``ConfigurationError`` if the engine cannot grant such leases."""
        engine, limit = self._engine, terms.limit
        if engine is None:
            return
        several = limit != 1 and engine.limits != "any"
        if several and not (limit == SHARED and engine.limits == "shared"):
            given = "shared=True" if limit == SHARED else f"limit={limit}"
            raise ConfigurationError(
                f"engine {engine.name} cannot grant a key to several holders, as {given} wants:"
                " choose an engine that can, such as file:// or redis://",
                code="unsuitable_engine",
            )
        recovery = engine.recovery
        if terms.renew and recovery and not recovery.covers(terms.ttl):
            raise ConfigurationError(
                f"ttl={terms.ttl:g} is longer than recovery={recovery.seconds:g}, after which"
                f" engine {engine.name} grants keys again when it has lost its data: add"
                f" recovery={terms.ttl:g} to the URL in all programs that lock the same keys, or"
                " shorten the ttl",
                code="unsuitable_engine",
            )

    def _terms_of(self, options: dict[str, Any]) -> CallTerms:
        terms = Terms(
            options["ttl"],
            options["max_hold"],
            options["renew"],
            options["max_waiters"],
            options["label"],
            fail_open=options["on_unavailable"] == "open",
            drift=self._drift,
            limit=options["limit"],
        )
        return terms, options["wait"]

    def _merged(self, given: HoldOptions) -> dict[str, Any]:
        merged = dict(self._hold)
        for name, value in given.items():
            if name != "label" or value is not None:
                merged[name] = _CHECKS[name](name, value)
        if shared := merged.pop("shared", None):
            if "limit" in given:
                raise ConfigurationError(
                    f"limit={given['limit']!r:.80} and shared=True exclude each other: limit=3 lets"
                    " three hold a key at once, and shared=True any number of readers but no"
                    " writer. Give one of them"
                )
            merged["limit"] = SHARED
        elif shared is False and "limit" not in given and merged["limit"] == SHARED:
            merged["limit"] = 1  # A call overrides what its locks share by default.
        return merged


def _refuse_unknown(given: Iterable[str], known: Iterable[str]) -> None:
    """Raise ``TypeError``, and say which option may be meant."""
    for name in given:
        if name in known:
            continue
        if name in LocksOptions.__annotations__:
            raise TypeError(
                f"{name}= is for all leases of a Locks, not for one call: give it to from_url"
            )
        if name in _OTHER_NAMES:
            raise TypeError(f"there is no option {name!r}: did you mean {_OTHER_NAMES[name]}?")
        if name in _OF_ENGINES:
            raise TypeError(
                f"there is no option {name!r} of a lock: it is an option of the engine, which"
                f" belongs into the URL, as in redis://host?{name}=..."
            )
        raise TypeError(unknown("option", name, known))


_WAIT: Final = "wait= (seconds to wait for a key that is held; 0 never waits)"
_TTL: Final = "ttl= (seconds that a lease lasts when its holder has died)"

_OTHER_NAMES: Final = {
    **dict.fromkeys(("timeout", "lock_timeout"), f"{_WAIT}, or {_TTL}"),
    **dict.fromkeys(("blocking", "blocking_timeout", "acquire_timeout", "block"), _WAIT),
    **dict.fromkeys(("expire", "expires", "expiry", "lease", "lease_time", "duration"), _TTL),
    **dict.fromkeys(("auto_renewal", "auto_renew", "keep_alive"), "renew= (True by default)"),
    **dict.fromkeys(("max_time", "max_lease", "deadline", "at_most"), "max_hold= (seconds)"),
    **dict.fromkeys(("permits", "max_leases", "max_concurrent", "slots"), "limit= (1 by default)"),
    **dict.fromkeys(("read", "readers", "share", "exclusive"), "shared= (False by default)"),
}
"""The names of our options in other packages."""

_OF_ENGINES: Final = [
    "allow_eviction",
    "connect_timeout",
    "db",
    "max_connections",
    "min_replicas",
    "password",
    "prefix",
    "recovery",
    "session_timeout",
    "username",
]


def _drift(value: Any) -> float:
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not 0 <= value <= MOST_DRIFT
    ):
        raise ConfigurationError(
            f"drift={value!r:.80} must be a fraction from 0 to {MOST_DRIFT:g}: 0.01 allows clocks"
            " to differ by 1 %"
        )
    return float(value)


def _label_of_process() -> str:
    return f"{socket.gethostname()}:{os.getpid()}"


def seconds(name: str, value: Any, *, least: float = 0.0) -> float:
    """Return a duration in seconds. Raises ``ConfigurationError`` for a value that cannot work."""
    if isinstance(value, timedelta):
        value = value.total_seconds()
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or (isinstance(value, float) and math.isnan(value))
    ):
        raise ConfigurationError(
            f"{name}={value!r:.80} is not a duration: give seconds, or a timedelta"
        )
    if not least <= value <= LONGEST:
        days = LONGEST / 86400
        raise ConfigurationError(
            f"{name}={value!r:.80} must be {least:g} seconds to {days:g}"
            f" days{_ENDLESS.get(name, '')}"
        )
    return float(value)


def _endless(name: str, value: Any, *, least: float = 0.0) -> float | Attempts | None:
    if value is None or (name == "wait" and isinstance(value, Attempts)):
        return value
    return seconds(name, value, least=least)


def _flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise ConfigurationError(f"{name}={value!r:.80} must be True or False")
    return value


def count(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ConfigurationError(f"{name}={value!r:.80} must be a whole number, 0 or more")
    return value


def _limit(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= LARGEST_LIMIT:
        raise ConfigurationError(
            f"{name}={value!r:.80} must be a whole number from 1 to {LARGEST_LIMIT}: how many may"
            " hold the key at once. For any number of readers, give shared=True"
        )
    return value


def _label(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise ConfigurationError(f"{name}={value!r:.80} must be a string")
    return value[:200].encode(errors="replace").decode()  # No engine can carry lone surrogates.


def _on_unavailable(name: str, value: Any) -> str:
    if value not in ("raise", "open"):
        raise ConfigurationError(
            f"{name}={value!r:.80} must be 'raise', or 'open' to run without a lock when the"
            " engine does not answer"
        )
    return str(value)


_CHECKS: Final[Mapping[str, Callable[[str, Any], Any]]] = {
    "ttl": partial(seconds, least=SHORTEST_TTL),
    "wait": _endless,
    "max_hold": partial(_endless, least=SHORTEST_TTL),
    "renew": _flag,
    "max_waiters": count,
    "label": _label,
    "limit": _limit,
    "shared": _flag,
    "on_unavailable": _on_unavailable,
}


OnBusy = Literal["wait", "skip"]
"""What ``run`` does if its key is busy."""


def skips_where_busy(on_busy: OnBusy, options: HoldOptions) -> bool:
    """Return whether to skip busy keys; without waiting, unless the ``options`` say otherwise."""
    if on_busy not in ("wait", "skip"):
        raise ConfigurationError(f"on_busy={on_busy!r:.80} must be 'wait' or 'skip'")
    if on_busy == "skip":
        options.setdefault("wait", 0)
    return on_busy == "skip"


OnLost = Literal["continue", "cancel"]
"""What happens to the work under a lock when its lease is lost."""


def cancels_when_lost(on_lost: OnLost) -> bool:
    """Return whether work is cancelled. Raises ``ConfigurationError`` for what is no such word."""
    if on_lost not in ("continue", "cancel"):
        raise ConfigurationError(f"on_lost={on_lost!r:.80} must be 'cancel' or 'continue'")
    return on_lost == "cancel"


def without_waiting(options: HoldOptions) -> HoldOptions:
    """Return the options of ``try_acquire``, which never waits. Raises ``TypeError`` for a wait."""
    wait = options.get("wait", 0)
    if isinstance(wait, bool) or wait not in (0, timedelta(0)):
        raise TypeError(
            f"try_acquire never waits, and was given wait={wait!r:.80}: call acquire, which waits"
            " and then raises LockTimeout"
        )
    return {**options, "wait": 0}


def refuse_generator(work: object) -> None:
    """Raise ``TypeError`` for a generator function, whose body runs when its lease has been released."""
    if inspect.isgeneratorfunction(work) or inspect.isasyncgenfunction(work):
        raise TypeError(
            f"{work!r:.200} is a generator, which runs after the call, when the key is no longer"
            " held: hold the key in its body, or around the loop over it"
        )


def refuse_what_cannot_be_called(callback: object) -> None:
    """Raise ``TypeError`` for a callback that would do nothing on the day when the lease is lost."""
    if not callable(callback):
        raise TypeError(f"{callback!r:.80} cannot be called: give a function without arguments")
    if inspect.iscoroutinefunction(callback):
        raise TypeError(
            f"{callback!r:.80} is async, and its coroutine would never run: give a function, which"
            " may start a task with asyncio.create_task in an event loop"
        )


def refuse_coroutine(work: object) -> None:
    """Raise ``TypeError`` for a coroutine where a function is expected, and close the coroutine."""
    if inspect.iscoroutine(work):
        work.close()
        raise TypeError(f"give {work.__qualname__} itself and its arguments, not its coroutine")


def refuse_async(work: object) -> None:
    """Raise ``TypeError`` for work that needs asyncio, or that is not done when a call of it returns."""
    refuse_coroutine(work)
    refuse_generator(work)
    if inspect.iscoroutinefunction(work):
        raise TypeError(f"{work!r:.200} is async: give it to AsyncLocks")


def refuse_async_function(function: Callable[..., object]) -> None:
    """Raise ``TypeError`` for what a blocking wrapper would not lock while it runs."""
    if inspect.iscoroutinefunction(function):
        raise TypeError(f"{function!r:.200} is async: decorate it with AsyncLocks")
    if inspect.isclass(function):
        raise TypeError(f"{function!r} is a class: decorate its methods, one by one")
    refuse_generator(function)


def refuse_blocking_function(function: Callable[..., object]) -> None:
    """Raise ``TypeError`` for what an ``async def`` around it would not lock while it runs."""
    refuse_generator(function)
    if not inspect.iscoroutinefunction(function):
        raise TypeError(f"{function!r} is not a coroutine function: decorate it with Locks")


def in_turn(options: HoldOptions) -> HoldOptions:
    """Return the options for a step that some caller must run: wait for it, and never fail open."""
    return {"wait": None, **alone(options), "on_unavailable": "raise"}


def alone(options: HoldOptions) -> HoldOptions:
    """Return the options for what no two callers may do. Raises ``ConfigurationError`` for a limit."""
    for name in ("limit", "shared"):
        if name in options:
            raise ConfigurationError(
                f"{name}= would let several callers do what only one may do: leave it out"
            )
    return {**options, "limit": 1}
