"""What adapters ask of ``Locks``, ``AsyncLocks`` and their leases, and users do not.

Adapters use these names and the public ones: no name of the API classes that begins with an underscore.
An acquisition for a request has these steps:

1. ``acquire`` returns an ``Acquired``: the leases of the keys, and the locker that renews them.
2. ``kind_of(locks)(*acquired)`` makes a lease of it, for the user.
3. ``await locker.release(holdings)`` releases it, in blocking code too, where no step of it suspends.

The functions that each request calls are those of the classes themselves, which costs it no further call.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Coroutine, Sequence
from operator import attrgetter
from typing import Any, Final

from ._api import BaseLease, BaseLocks, KeySpace
from ._core.acquiring import Caller, Locker
from ._core.holding import Holding, Holdings, Terms, Unprotected
from ._core.moving import leases_in, release_given
from ._core.ports import Found, Texts
from ._core.table import Busy, Claim, Held
from ._options import Duration, HoldOptions, seconds
from ._platform.logs import logger
from .errors import ConfigurationError, EngineRecovering, EngineUnavailable
from .events import KeyEvent
from .keys import CheckedKey, unqualified

Acquired = tuple[Locker, Sequence[Holding | Unprotected]]
"""What was acquired, and what releases it."""

acquire: Final[
    Callable[[BaseLocks, Sequence[str], HoldOptions, Caller | None], Coroutine[Any, Any, Acquired]]
] = BaseLocks._acquire
"""Acquire keys for a caller, which a request is. Raises what ``Locks.acquire`` raises."""

take_over: Final[Callable[[BaseLocks, str, HoldOptions], Coroutine[Any, Any, Acquired]]] = (
    BaseLocks._take_over
)
"""Continue what a token of ``hand_over`` stands for. Raises what ``Locks.take_over`` raises."""

key_space_of: Final[Callable[[BaseLocks], KeySpace]] = attrgetter("_key_space")
"""Return where the keys of some locks are: a key in the same place is the same key."""

kind_of: Final[Callable[[BaseLocks], type[BaseLease]]] = attrgetter("_lease")
"""Return the class of the leases of some locks."""

acquired_of: Final[Callable[[BaseLease], Acquired]] = attrgetter("_locker", "_holdings")
"""Return what a lease was made of."""


def give_up(locks: BaseLocks, token: str) -> None:
    """Release in the background what a token of ``hand_over`` stands for, unless it was taken over.

    Raises ``ConfigurationError`` if the locks are closed: then the keys stay taken.
    """
    locks._ensure_open()
    release_given(locks._locker, leases_in(token))


def joined(locks: BaseLocks, leases: Sequence[BaseLease], keys: Sequence[str]) -> Acquired:
    """Return several leases in one place, of either kind of locks, as one acquisition of these keys."""
    held = {unqualified(each.key): each for lease in leases for each in lease._holdings}
    hands = Holdings(held[key] for key in keys)
    hands.others = [lease._holdings for lease in leases]
    return locks._locker, hands


def terms_of(locks: BaseLocks, options: HoldOptions) -> Terms:
    """Return what locks and options say together: ttl, limit and so on."""
    own = locks._options
    return (own.of_call(options) if options else own.own)[0]


holdings_of: Final[Callable[[BaseLease], Sequence[Holding]]] = attrgetter("_leased")
"""Return the lease of each key, with its qualified key, owner, fence and terms.

Keys without one are left out: those of a section that runs although the engine does not answer.
"""

leave: Final = BaseLease._leave
"""End a lease for its holder, while its key stays taken: it is not released, nor renewed."""

close: Final = BaseLocks._close
"""Close locks of either kind, also where no event loop runs."""

rest: Final = BaseLocks._suspend
"""Free what ``close`` frees, until the locks are used again: an application may start again.

Do nothing if ``unless``, to which other threads may add, contains anything.
"""


async def begin_recovery(locks: BaseLocks) -> None:
    """Have an engine that may have lost leases begin to recover now, not with the first caller.

    It begins with a claim. The event ``Recovering`` says how long it takes; no caller is reported.
    """
    recovery = locks._key_space.engine.recovery
    if not (recovery and recovery.seconds):
        return
    locker, name = locks._locker, locks._name("weblock:start")
    store, owner = locker.store, locker.runtime.new_owner()
    try:
        reply = await store.acquire(name, Claim(owner, store.process, 1.0, "weblock"), room=0)
        answer = reply.answer
        if isinstance(answer, Held):
            await store.release(name, owner)
        elif isinstance(answer, Busy) and answer.recovering:
            rest = max(0.0, answer.until - reply.now)
            locker.health.recovers(
                EngineRecovering(locker.engine, answer.recovering, retry_after=rest)
            )
    except EngineRecovering as failure:
        locker.health.recovers(failure)
    except EngineUnavailable:
        pass  # The first caller reports it.
    except ConfigurationError as error:
        logger.error("%s", error)  # noqa: TRY400 - it has no traceback that helps


class KeptTexts:
    """Texts that the engine of some locks keeps for a while, each under the lease of a key."""

    def __init__(self, locks: BaseLocks, what: str) -> None:
        """Raises ``ConfigurationError`` for an engine that keeps none; ``what`` says who needs one."""
        self.locks = locks
        if locks._locker.store.texts is None:
            raise ConfigurationError(
                f"{what} keeps answers in the engine of its locks, and {locks.engine} keeps none:"
                " use file://, redis:// (one server, Sentinel or Cluster), postgresql:// or"
                " memory://"
            )

    async def find(self, key: str, group: str) -> Found:
        """Return the text of a key, and how many texts its group has. Raises ``EngineUnavailable``."""
        name = self.locks._name(key)
        return await self.locks._ask(
            "find", name, lambda: self._texts.find(name, self._group(group))
        )

    async def keep(self, lease: BaseLease, group: str, text: str, seconds: float) -> None:
        """Keep a text under the key of a lease, if the engine says that the lease is still held.

        Repeats that for some seconds while the engine does not answer. Raises ``LeaseLost`` and
        ``EngineUnavailable``.
        """
        (held,) = lease._leased
        held.check(self.locks._locker.runtime.now())
        what, owner = (held.key, self._group(group), text), held.owner

        async def keep() -> bool:
            return await self._texts.keep(*what, owner=owner, seconds=seconds)

        if not await self.locks._ask("keep", held.key, lambda: self.locks._locker.insist(keep)):
            held.lose("taken")
            raise held.loss()

    async def forget(self, key: str, group: str) -> bool:
        """Remove the text of a key, and return whether there was one."""
        name = self.locks._name(key)
        return await self.locks._ask(
            "forget", name, lambda: self._texts.forget(name, self._group(group))
        )

    async def all(self, limit: int) -> Sequence[tuple[str, str]]:
        """Return the keys that have texts, and each text, at most so many."""
        start = self.locks._name("all").removesuffix("all")
        found = await self.locks._ask("list", start, lambda: self._texts.all(start, limit))
        return [(unqualified(name), text) for name, text in found]

    def _group(self, group: str) -> str:
        """Return the group as the engine knows it: that of another namespace is another one."""
        return hashlib.sha256(self.locks._name(group).encode()).hexdigest()

    @property
    def _texts(self) -> Texts:
        texts = self.locks._locker.store.texts
        assert texts is not None  # Locks that open again open the same engine.
        return texts


def tell(locks: BaseLocks, kind: type[KeyEvent], key: CheckedKey, **facts: Any) -> None:
    """Tell the observers of some locks what an adapter knows about a key."""
    observers = locks._observers
    if kind in observers.wanted:
        about = observers.about(locks._name(key), locks.label)
        observers.tell(kind(**about, **facts))


class AtLeast:
    """Keeps the key of a run taken for a while, also if its work ends before: see ``Locks.run``."""

    def __init__(self, locks: BaseLocks, given: Duration | None, options: HoldOptions) -> None:
        """Raises ``ConfigurationError`` for a time for which the lease cannot last."""
        self._now = locks._locker.runtime.now
        self._least = None if given is None else seconds("at_least", given)
        self._until = 0.0
        max_hold = None if given is None else terms_of(locks, options).max_hold
        if self._least is not None and max_hold is not None and self._least > max_hold:
            raise ConfigurationError(
                f"at_least={self._least:g} is longer than max_hold={max_hold:g}, after which the"
                " lease is lost: raise max_hold="
            )

    async def begin(self, lease: BaseLease) -> None:
        """Make a new lease last for long enough."""
        if self._least is not None:
            self._until = self._now() + self._least
            # By 0, too: a lease that was handed over is short until its holder confirms it.
            await lease._extend(max(0.0, self._least - lease.remaining()))

    def end(self, lease: BaseLease) -> None:
        """Leave the lease, if its key is to stay taken."""
        if self._least is not None and self._now() < self._until:
            leave(lease)
