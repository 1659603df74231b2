"""What the two APIs share: keys, leases, and the life of an engine in this process."""

from __future__ import annotations

import re
import threading
import warnings
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Final, Generic, Literal, NamedTuple, NoReturn, TypeVar, Unpack

from ._core.acquiring import Attempts, Caller, Locker
from ._core.holding import Holding, Holdings, Status, Unprotected
from ._core.moving import hand_over, leases_in, take_over
from ._core.ports import SCOPES, Engine, Runtime
from ._core.table import SHARED, Released
from ._engines import User, opened_by_url, registering, use, use_url
from ._options import (
    SHORTEST_TTL,
    Duration,
    HoldOptions,
    LocksOptions,
    Options,
    seconds,
)
from ._platform.forks import enter_child, getpid, process
from ._platform.logs import logger
from ._platform.threads import end_later, patched_by, phases, runs_here
from ._runtime.observing import LOGGER, ROOT, Audience, Observer, as_observer
from ._runtime.runtimes import control
from .errors import ConfigurationError, EngineUnavailable, LeaseLost
from .events import Event, FailedOpen, Forced, NotRenewed
from .inspection import KeyInfos, info_of
from .keys import CheckedKey, Key, check_key, in_order, unqualified
from .stores import url as urls

T = TypeVar("T")
# Not Self, which jedi takes for the base class: nothing of Locks would be completed in IPython.
F = TypeVar("F", bound="BaseLocks")

_UNFILLED: Final = re.compile(r"\{[A-Za-z_][A-Za-z0-9_.]*(?::[a-z]+)?\}")

_MOST_WARNINGS: Final = 20
"""Keys that are warned of: more of them may be what strangers have made up."""

_MOST_LIMITS: Final = 1000
"""Keys and templates whose limit is remembered."""

_warned_of: Final[set[str]] = set()

ELECTION_PAUSE: Final = 1.0
"""Seconds from an election that the engine did not answer to the next one, at most."""


class KeySpace(NamedTuple):
    """Where keys are: the keys of two ``Locks`` in one key space are the same keys."""

    engine: Engine
    prefix: str
    """The namespace, as it stands before each key."""


class BaseLocks:
    """What ``Locks`` and ``AsyncLocks`` have in common."""

    _runtime: type[Runtime]
    _lease: type[BaseLease]

    def __init__(
        self,
        engine: Engine = None,  # type: ignore[assignment]  # Refused, with what to write instead.
        **given: Unpack[LocksOptions],
    ) -> None:
        if getpid() != process.pid:
            enter_child()
        if not hasattr(engine, "switchboard"):
            name = type(self).__name__
            if isinstance(engine, str | list | tuple):
                raise TypeError(
                    f"{name}(...) takes an open engine, not a URL: write {name}.from_url(...)"
                )
            raise TypeError(
                f"{name}(...) takes an open engine, and was given a"
                f" {type(engine).__module__}.{type(engine).__qualname__}: write"
                f" {name}.from_url(url), or {name}.from_client(client) for a redis-py client"
            )
        options = Options(**given)
        runtime = self._runtime()
        reach, wanted = SCOPES.index(engine.scope), SCOPES.index(options.require_scope)
        if reach < wanted:
            raise ConfigurationError(
                f"engine {engine.name} has scope={engine.scope!r}, but"
                f" require_scope={options.require_scope!r}: choose an engine that all machines"
                " share, such as redis://",
                code="unsuitable_engine",
            )
        with registering():
            options.check_on(engine)
        self._options = options
        self._observers = Audience(engine.name, runtime.now, options.observers)
        if library := patched_by():
            cause = f"{library} has replaced this process's threads by greenlets"
            self._observers.tell(NotRenewed(engine=engine.name, cause=cause))
        self._use(engine, runtime)
        self._closed = False
        self._reopen: Callable[[], User] | None = None
        self._is_suspended = False

    @classmethod
    def from_url(  # noqa: PYI019 - see F
        cls: type[F], url: str | Sequence[str] = urls.DEFAULT, **options: Unpack[LocksOptions]
    ) -> F:
        """Create locks on the engine that a URL names.

        All locks of a process with the same URL share one engine.

        Args:
            url: ``"redis://host"``, ``"file:///run/locks"`` and so on; a list of Redis URLs is a
                quorum, in which a lease counts while a majority agrees. By default ``file://``,
                this machine.
            **options: Defaults of all leases: see ``LocksOptions``.

        Raises:
            ConfigurationError: The URL or an option cannot work.
        """
        open_engine = partial(use_url, url)
        opening = open_engine()
        try:
            locks = cls(opening.engine, **options)
        finally:
            opening.leave()
        locks._reopen = open_engine
        opened_by_url.add(locks)
        return locks

    @classmethod
    def from_client(  # noqa: PYI019 - see F
        cls: type[F],
        client: object,
        *,
        engine_options: Mapping[str, object] | None = None,
        **options: Unpack[LocksOptions],
    ) -> F:
        """Create locks on the server that a redis-py client of any kind talks to.

        Its address, user and TLS settings are used. The connections are weblock's own, so that no
        waiter occupies one of the client's.

        Args:
            client: The client.
            engine_options: Options that a URL may have, such as ``{"prefix": "shop"}``.
            **options: Defaults of all leases: see ``LocksOptions``.

        Raises:
            ConfigurationError: The client is none of redis-py's, or an option cannot work.
        """
        return cls(urls.engine_of(client, **(engine_options or {})), **options)

    @property
    def scope(self) -> str:
        """How far the leases reach: ``none``, ``process``, ``host`` or ``cluster``."""
        return self._engine.scope

    @property
    def engine(self) -> str:
        """The engine's URL, without secrets."""
        return self._engine.name

    @property
    def namespace(self) -> str:
        """The namespace, which separates this application's keys from others on the engine."""
        return self._options.namespace

    @property
    def label(self) -> str:
        """The label of a holder that others see, unless a call sets another one."""
        if getpid() != process.pid:
            enter_child()
        return self._options.label

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"{self!r} cannot be pickled or copied, because its connections belong to this process:"
            f" create one with {type(self).__name__}.from_url(...) where it is needed; all of one"
            " URL share an engine"
        )

    def __repr__(self) -> str:
        namespace = self._options.namespace
        return f"<{type(self).__name__} {self._engine.name} namespace={namespace!r}>"

    def _use(self, engine: Engine, runtime: Runtime) -> None:
        self._engine = engine
        self._key_space = KeySpace(engine, self._options.prefix)
        user = use(engine)
        try:
            self._locker = user.locker(runtime, self._observers)
        except BaseException:
            user.leave()
            raise
        self._user = user

    def observe(self, observer: Callable[[Event], object] | Observer) -> Callable[[], None]:
        """Add an observer to those of ``observers=``, and return a function that removes it.

        Raises:
            ConfigurationError: It is not something that can be called with an event.
        """
        return self._observers.add(as_observer(observer))

    def _name(self, key: str) -> str:
        """Return the key as the engine knows it, for one request."""
        self._ensure_open()
        return self._options.prefix + check_key(key)

    async def _acquire(
        self, keys: Sequence[str], options: HoldOptions, caller: Caller | None = None
    ) -> tuple[Locker, Sequence[Holding | Unprotected]]:
        """Return the leases and the locker that they belong to: another one, after a rest."""
        if getpid() != process.pid or self._closed or self._is_suspended:
            self._ensure_open()
        own = self._options
        terms, wait = own.of_call(options) if options else own.own
        if not keys:
            raise TypeError("name at least one key to lock")
        if len(keys) == 1:  # Most calls have one.
            key = keys[0]
            names = [own.prefix + (key if isinstance(key, CheckedKey) else check_key(key))]
        else:
            names = [own.prefix + key for key in in_order(keys)]
        if "{" in "".join(names):
            warn_of_templates(keys)
        if terms.limit > 1:
            _warn_of_limits(own.namespace, keys, terms.limit)
        locker = self._locker
        observers = self._observers
        if (
            LOGGER.level != observers.level
            or ROOT.level != observers.root_level
            or (observers.sleepers and observers.some_wake())
        ):
            observers.refresh()
        try:
            if isinstance(wait, Attempts):
                return locker, await locker.attempt(names, terms, wait, caller)
            return locker, await locker.acquire(names, terms, wait, caller)
        except EngineUnavailable as failure:
            # Locks that were closed say nothing of their engine: the key may be held.
            if not terms.fail_open or locker.over:
                raise
            label = terms.label if caller is None else f"{terms.label}{caller.about}"
            if FailedOpen in observers.wanted:
                for name in names:
                    about = observers.about(name, label)
                    observers.tell(FailedOpen(**about, cause=failure.reason))
            runs = locker.runtime.control()
            return locker, [Unprotected(name, terms, control=runs) for name in names]

    async def _elect(
        self, key: str, options: HoldOptions
    ) -> tuple[Locker, Sequence[Holding | Unprotected]] | None:
        """Return the lease of a new leader, or ``None`` if these locks are closed before.

        While the engine does not answer, it asks again; the events tell of the outage.
        """
        while True:
            try:
                elected = await self._acquire((key,), options)
            except (EngineUnavailable, ConfigurationError) as failure:
                if self._closed:
                    return None
                if isinstance(failure, ConfigurationError):
                    raise
                runtime = self._locker.runtime
                await runtime.sleep(ELECTION_PAUSE * (0.5 + runtime.jitter() / 2))
                continue
            if not self._closed:
                return elected
            locker, holdings = elected
            locker.release_later(holdings)  # Another Locks has kept the engine open.

    async def _ask(self, operation: str, name: str, question: Callable[[], Awaitable[T]]) -> T:
        """Return the answer to a request about a key or a namespace, and report a failure."""
        since = self._locker.runtime.now()
        try:
            answer = await question()
        except EngineUnavailable as failure:
            health = self._locker.health
            health.refused(failure, operation, name, self.label, since=since)
            raise
        self._locker.health.answers()
        return answer

    async def _take_over(
        self, token: str, options: HoldOptions
    ) -> tuple[Locker, Holdings[Holding]]:
        terms = self._options.of_take_over(options)
        self._ensure_open()
        leases = leases_in(token)
        for lease in leases:
            if not lease.key.startswith(self._options.prefix):
                namespace = lease.key.partition(":")[0]
                raise ConfigurationError(
                    f"the token is for a key of namespace={namespace!r:.80}, and these locks are of"
                    f" namespace={self.namespace!r}: take it over with locks of the same namespace",
                    code="invalid_token",
                )
        locker = self._locker
        key = leases[0].key
        return locker, await self._ask("take_over", key, lambda: take_over(locker, leases, terms))

    async def _is_done(self, key: str) -> bool:
        name, store = self._name(key), self._locker.store
        return await self._ask(
            "once", name, lambda: self._locker.insist(lambda: store.marked(name))
        )

    async def _listed(self, start: str, limit: int) -> KeyInfos:
        store = self._locker.store
        names = await store.names(start, limit)
        infos = [info_of(name, await store.look(name)) for name in sorted(names)]
        return [info for info in infos if info]  # Some may have become free meanwhile.

    async def _force_release(self, key: str, by: str | None) -> bool:
        name = self._name(key)
        store = self._locker.store
        # Seen just before, for the engine does not say: in between, another may have got the key.
        seen = info_of(name, await self._ask("inspect", name, lambda: store.look(name)))
        reply = await self._ask("force_release", name, lambda: store.force_release(name))
        taken = isinstance(reply.answer, Released)
        if taken and Forced in self._observers.wanted:
            event = Forced(
                **self._observers.about(name, self.label),
                by=self.label if by is None else by,
                holder=seen.holder if seen else None,
                fence=seen.fence if seen else None,
                held_for=seen.held_for if seen else 0.0,
                waiters=len(seen.waiters) if seen else 0,
                others=max(0, len(seen.holders) - 1) if seen else 0,
            )
            self._observers.tell(event)
        return taken

    def _ensure_open(self) -> None:
        if getpid() != process.pid:
            enter_child()
        if self._is_suspended and not self._closed:
            with registering():
                self._open_again()
        if self._closed:
            raise ConfigurationError(f"{self!r} is closed", code="closed")

    def _open_again(self) -> None:
        # Looked at again, since another thread may have done it meanwhile, or closed these locks.
        if self._is_suspended and self._reopen and not self._closed:
            opening = self._reopen()
            try:
                self._options.check_on(opening.engine)
                self._use(opening.engine, self._locker.runtime)
            finally:
                opening.leave()
            self._is_suspended = False

    def _suspend(self, unless: Collection[object] = ()) -> None:
        """Free what ``close`` frees, until these locks are used again.

        An application may shut down and start again in one process, as test suites do. The locks
        that were made for it must work each time; only their user closes them for good.
        """
        if getpid() != process.pid:
            enter_child()
        with registering():
            # In this order: a server that starts after the look opens the locks again.
            was_suspended, self._is_suspended = self._is_suspended, True
            if unless:
                self._is_suspended = was_suspended
                return
            locker, user = self._locker, self._user
        _end(locker, user)

    def _close(self) -> None:
        if getpid() != process.pid:
            enter_child()
        if [*phases][-1] == "start" and runs_here():
            end_later(self._close)
            return
        with registering():
            self._closed = True
            locker, user = self._locker, self._user
        _end(locker, user)
        self._observers.flush()


def _end(locker: Locker, user: User) -> None:
    """End the waits of an API, and leave its engine. Not inside of the mutex: it may take a while."""
    locker.close()
    user.leave(closed=True)


_limits: Final[dict[tuple[str, str], int]] = {}
"""The limit that was named last, by namespace and template."""


def _warn_of_limits(namespace: str, keys: Sequence[str], limit: int) -> None:
    """Log once that two limits are named for one key: while both hold it, the smaller counts."""
    if limit == SHARED:
        return
    for key in keys:
        name = namespace, key.template if isinstance(key, Key) else key
        known = _limits.get(name)
        if known is None:
            if len(_limits) < _MOST_LIMITS:
                _limits[name] = limit
        elif known not in (0, limit):
            _limits[name] = 0  # This was logged.
            logger.warning(
                "the key %r is acquired with limit=%d and with limit=%d: while both kinds of"
                " holders exist, the smaller limit applies. Use the same limit everywhere"
                " [weblock.different_limits]",
                *(name[1], known, limit),
            )


def warn_of_templates(keys: Sequence[str]) -> None:
    """Logs a key that looks like a template, once: an ``f`` was forgotten, and all share one lock."""
    for key in keys:
        if isinstance(key, CheckedKey) or key in _warned_of or len(_warned_of) >= _MOST_WARNINGS:
            continue
        if found := _UNFILLED.search(key):
            _warned_of.add(key)
            name = found[0]
            logger.warning(
                "the key %r is used literally: %s was not substituted, so all callers lock the same"
                " key. Write f%r, or weblock.Key(%r, ...) with its values [weblock.unfilled_key]",
                *(key, name, key, key),
            )


class BaseLease:
    """Possession of one or several keys, until it is released or lost."""

    __slots__ = ("_holdings", "_locker")

    def __init__(self, locker: Locker, holdings: Sequence[Holding | Unprotected]) -> None:
        self._locker = locker
        self._holdings = holdings

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"{self!r} cannot be pickled or copied, because it belongs to this process: pass the"
            " token of lease.hand_over(), and call locks.take_over(token) there"
        )

    @property
    def key(self) -> str:
        """The key; of several, the first in sorted order, whatever the order they were named in."""
        return unqualified(self._holdings[0].key)

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(unqualified(holding.key) for holding in self._holdings)

    @property
    def fence(self) -> int:
        """The fencing token, which is larger than those of all earlier leases of the key.

        Of several keys, the fence of ``key``: use ``fences``. 0 if the section runs without a lease
        (``on_unavailable="open"``).
        """
        return self._holdings[0].fence

    @property
    def fences(self) -> dict[str, int]:
        """The fencing token of each key."""
        return {unqualified(holding.key): holding.fence for holding in self._holdings}

    @property
    def owner(self) -> str:
        """The random secret of this acquisition; of the first key, if there are several."""
        return self._holdings[0].owner

    @property
    def limit(self) -> int:
        """How many may hold the key while this lease is one of them: 1 if it is exclusive.

        See ``shared`` for a lease without such a number.
        """
        return self._holdings[0].terms.limit

    @property
    def shared(self) -> bool:
        """Whether any number of other shared leases of the key are granted together with this one."""
        return self.limit == SHARED

    @property
    def _leased(self) -> Sequence[Holding]:
        return [each for each in self._holdings if isinstance(each, Holding)]

    @property
    def held(self) -> bool:
        """Whether the lease is still valid; ``False`` if the section runs without one."""
        if getpid() != process.pid:
            enter_child()
        now = self._locker.runtime.now()
        return all(holding.held(now) for holding in self._holdings)

    @property
    def asked_to_release(self) -> bool:
        """Whether another caller has asked for one of the keys: see ``ask_release`` of the locks."""
        if getpid() != process.pid:
            enter_child()
        return any(holding.asked_to_release for holding in self._holdings)

    def remaining(self) -> float:
        """Return the seconds until the lease ends unless it is renewed; 0 if it has ended."""
        if getpid() != process.pid:
            enter_child()
        now = self._locker.runtime.now()
        return min(holding.remaining(now) for holding in self._holdings)

    def check(self) -> None:
        """Raise ``LeaseLost`` if the lease has ended. Costs no I/O.

        It passes if the section runs without a lease, because there is none to lose.
        """
        if getpid() != process.pid:
            enter_child()
        now = self._locker.runtime.now()
        for holding in self._holdings:
            # The rest takes longer, and has something to raise if there was a lease.
            if holding.status is not Status.HELD or now >= holding.deadline:
                holding.check(now)

    async def _extend(self, by: float) -> None:
        if getpid() != process.pid:
            enter_child()
        locker = self._locker
        for holding in self._leased:
            since = locker.runtime.now()
            try:
                await locker.extend(holding, by)
            except EngineUnavailable as failure:
                name, label = holding.key, holding.label
                locker.health.refused(failure, "extend", name, label, since=since)
                raise

    async def _hand_over(self, ttl: Duration | None) -> str:
        if getpid() != process.pid:
            enter_child()
        way = None if ttl is None else seconds("ttl", ttl, least=SHORTEST_TTL)
        locker, leased = self._locker, self._leased
        if len(leased) < len(self._holdings):
            raise LeaseLost(self.key, fence=0, reason="unprotected")
        since = locker.runtime.now()
        try:
            return await hand_over(locker, leased, way)
        except EngineUnavailable as failure:
            name, label = leased[0].key, leased[0].label
            locker.health.refused(failure, "hand_over", name, label, since=since)
            raise

    def _release_later(self) -> None:
        """Release what the garbage collector ends. Its holder no longer has it."""
        left = [each for each in self._leased if each.status is not Status.RELEASED]
        for each in left:
            self._locker.keeper.drop_holding(each)
        end_later(partial(self._locker.release_later, left))

    def _leave(self) -> None:
        """End the lease for its holder, while it lasts in the engine: ``release`` does nothing then.

        One that is lost stays lost.
        """
        if getpid() != process.pid:
            enter_child()
        for holding in self._leased:
            self._locker.leave(holding)

    def _is_own_loss(self, error: BaseException | None) -> bool:
        if not isinstance(error, LeaseLost):
            return False
        return (error.key, error.fence) in self.fences.items()

    def _when(
        self, happens: Literal["on_lost", "on_ask_release"], tell: Callable[[], object]
    ) -> None:
        """Call ``tell`` once, in the thread that notices it: it must not wait or raise."""
        if getpid() != process.pid:
            enter_child()
        if len(self._holdings) > 1:
            once, every = threading.Lock(), tell

            def tell() -> None:
                if once.acquire(blocking=False):
                    every()

        for holding in self._holdings:
            getattr(holding, happens)(tell)

    def __repr__(self) -> str:
        state = f"remaining={self.remaining():.3f}" if self.held else "not held"
        return f"<{type(self).__name__} {', '.join(self.keys)} fence={self.fence} {state}>"


leaving: Final[list[Callable[[BaseLease], object]]] = []
"""Functions that are called with a lease when its ``with`` block has ended without an error.

An event of the release would cost each request more than its lock does.
"""

L = TypeVar("L", bound=BaseLease)


class HoldBlock(Generic[L]):
    """A ``hold`` of either API, which any number of callers may share: the leases that are inside."""

    __slots__ = ("_entered", "_keys", "_leases", "_locks", "_options")

    _locks: BaseLocks
    _block: str
    """How its block begins."""

    def __init__(self, locks: BaseLocks, keys: tuple[str, ...], options: HoldOptions) -> None:
        self._leases: list[L] = []
        self._locks = locks
        self._keys = keys
        self._options = options
        self._entered = False

    def __repr__(self) -> str:
        return f"<hold {self._named()} of {self._locks!r}>"

    def __del__(self, warn: Callable[..., None] = warnings.warn) -> None:
        """Warn of a section that runs without its lock: ``hold`` alone acquires nothing."""
        if not getattr(self, "_entered", True):  # An interrupt may have come before it was made.
            hold = f"hold({self._named()})"
            warn(
                f"{hold} was never entered, so it locked nothing: write '{self._block}"
                f" locks.{hold}:' [weblock.never_entered]",
                RuntimeWarning,
                stacklevel=2,
                source=self,
            )

    def _named(self) -> str:
        return ", ".join(map(repr, self._keys))

    def _enter(self, lease: L) -> L:
        self._leases.append(lease)
        return lease

    def _leave(self) -> L:
        """Return the last lease of the task or thread that leaves, or else the last of all."""
        leases = tuple(self._leases)
        lease = leases[-1]
        if len(leases) > 1:
            who = control()
            own = [each for each in leases if each._holdings[0].control is who]  # noqa: SLF001
            lease = own[-1] if own else lease
        self._leases.remove(lease)
        return lease
