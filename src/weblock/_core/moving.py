"""Move a lease to another process, which continues it with the same fence.

1. The giver replaces the owner of the lease by the owner of a token. From then on the lease belongs to
   no process: no keeper renews it, and it lasts for the time that the giver chose.
2. The taker replaces the owner of the token by an owner of its own, and renews the lease.

A token carries a random secret, and the key, fence and limit of each lease, in letters, digits, ``.``,
``-`` and ``_``. The owner that the engine
stores is a digest of the whole token, so a token in which anything was changed finds no lease.

An engine replaces an owner only if it is the stored one, in one atomic step. So of several callers with
one token, one gets the lease, and a token with a wrong fence changes nothing.

All takers of a token with several keys take them in the same order. Only the taker that has got the
first key asks for the others, so it may release them if it fails. If nobody can get the first key any
more, because its lease has ended, the first taker that finds this out releases the others.
"""

from __future__ import annotations

import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from hashlib import sha256
from typing import Final, NamedTuple

from ..errors import ConfigurationError, EngineUnavailable, LeaseLost
from ..events import HandedOver, TakenOver
from ..keys import check_key, unqualified
from .acquiring import Locker
from .holding import Anchor, Holding, Holdings, Status, Terms
from .keeping import LATEST
from .ports import Reply
from .table import SHARED, Claim, Held

_FORMAT: Final = "weblock1."
"""The beginning of every token. It names the version of the format."""


LONGEST_OUTAGE: Final = 3600.0
"""Seconds for which a process tries to release leases of a token, which does not say when they end."""


class OnItsWay(NamedTuple):
    """The lease of one key between two holders."""

    key: str
    fence: int
    limit: int
    owner: str
    """Its owner in the engine, until it is taken over. The token does not contain it."""


def leases_in(token: object) -> list[OnItsWay]:
    """Return the leases that a token names.

    Raises:
        ConfigurationError: The value is not a token, or a part of the token is wrong or missing.
    """
    if not isinstance(token, str) or not token.startswith(_FORMAT):
        raise ConfigurationError(
            f"take_over was given a {type(token).__name__} that is not a token: pass the string that"
            " lease.hand_over() returned",
            code="invalid_token",
        )
    text, _, checksum = token.removeprefix(_FORMAT).partition(".")
    leases: list[OnItsWay] = []
    with suppress(ValueError, TypeError, RecursionError):
        if checksum == _digest(text)[:8]:
            _, *facts = json.loads(urlsafe_b64decode(text + "=" * (-len(text) % 4)))
            leases = [
                OnItsWay(key, fence, limit, _digest(f"{number} {text}")[:32])
                for number, (key, fence, limit) in enumerate(facts)
            ]
    are_sound = all(
        [type(fact) for fact in each] == [str, int, int, str] and 1 <= each.limit <= SHARED
        for each in leases
    )
    if not leases or not are_sound:
        # The error must not show the token, which is a secret.
        raise ConfigurationError(
            f"take_over was given a token that is damaged: of its {len(token)} characters, some are"
            " missing or wrong. Pass on the whole string that lease.hand_over() returned",
            code="invalid_token",
        )
    for lease in leases:
        check_key(unqualified(lease.key))
    return leases


def _digest(text: str) -> str:
    return sha256(text.encode()).hexdigest()


async def hand_over(locker: Locker, holdings: Sequence[Holding], ttl: float | None) -> str:
    """End the leases for their holder, and return the token with which another caller continues them.

    The leases last for ``ttl`` seconds. Raises ``LeaseLost`` or ``EngineUnavailable``. Then all of them
    are released, because it is unknown which owner the engine has stored.
    """
    for holding in holdings:
        holding.check(locker.runtime.now())
    facts = [(each.key, each.fence, each.terms.limit) for each in holdings]
    secret = json.dumps([locker.runtime.new_owner(), *facts], separators=(",", ":"))
    text = urlsafe_b64encode(secret.encode()).decode().rstrip("=")
    # The checksum tells a damaged token from one whose lease has ended.
    token = f"{_FORMAT}{text}.{_digest(text)[:8]}"
    given = leases_in(token)
    try:
        for holding in holdings:  # Before the engine is asked: another may have the lease at once.
            locker.keeper.drop_holding(holding)
            holding.status, holding.reason = Status.RELEASED, "handed_over"
        for holding, lease in zip(holdings, given, strict=True):
            length = holding.terms.ttl if ttl is None else ttl
            claim = Claim(lease.owner, "", length, holding.label, lease.limit)
            try:
                await _transfer(locker, holding.key, holding.owner, claim, holding.fence)
            except LeaseLost:
                holding.refute_release()
                raise
        for holding in holdings:
            locker.keeper.watches.pop(holding.owner, None)
            length = holding.terms.ttl if ttl is None else ttl
            holding.tell(HandedOver, held_for=holding.held_for(), ttl=length)
    except BaseException:
        for holding, lease in zip(holdings, given, strict=True):
            length = holding.terms.ttl if ttl is None else ttl
            locker.keeper.release_later(
                lease.key, lease.owner, length, 2 * holding.terms.ttl + LATEST
            )
        locker.release_later(holdings)
        raise
    return token


async def take_over(locker: Locker, leases: Sequence[OnItsWay], terms: Terms) -> Holdings[Holding]:
    """Continue all leases, or none. Raises ``LeaseLost`` or ``EngineUnavailable``."""
    got: Holdings[Holding] = Holdings()
    try:
        for lease in leases:
            got.append(await _take(locker, lease, terms, got))
        for holding in got:  # The first may have been lost while the last was asked for.
            holding.check(locker.runtime.now())
    except BaseException as failure:
        if got or (isinstance(failure, LeaseLost) and await _has_ended(locker, leases[0])):
            release_given(locker, leases[len(got) :])
        await locker.undo(got, failure)
        raise
    return got


async def _has_ended(locker: Locker, lease: OnItsWay) -> bool:
    """Return whether the engine says that a lease has ended, so that no taker has it or can get it."""
    try:
        look = await locker.store.look(lease.key)
    except EngineUnavailable:
        return False
    return all(grant.fence != lease.fence for grant in look.state.grants)


def release_given(locker: Locker, leases: Sequence[OnItsWay]) -> None:
    """Release leases of a token, which no caller is to take over any more, in the background."""
    for lease in leases:
        locker.keeper.release_later(lease.key, lease.owner, LONGEST_OUTAGE, 0.0)


async def _take(
    locker: Locker, lease: OnItsWay, terms: Terms, holdings: Holdings[Holding]
) -> Holding:
    key, owner = lease.key, locker.runtime.new_owner()
    terms = replace(terms, limit=lease.limit)
    claim = Claim(owner, locker.store.process, terms.first_ttl, terms.label, lease.limit)
    is_kept = locker.keeper.watch(holdings, key, owner, terms.ttl)
    try:
        if not is_kept:
            locker.refuse_unless_kept(terms)
        until, anchor = await _transfer(locker, key, lease.owner, claim, lease.fence)
        deadline = anchor.deadline(until, at_most=claim.ttl, drift=terms.drift)
        holding = Holding(
            key,
            owner,
            lease.fence,
            terms,
            deadline=deadline,
            confirmed=True,
            now=locker.runtime.now(),
            control=locker.runtime.control(),
            void=0.0,
            label=terms.label,
            observers=locker.observers,
        )
        holding.check(locker.runtime.now())
        locker.keeper.keep_holding(holding)
        if locker.keeper.is_closed:  # Since just before: then nothing keeps it.
            raise locker.closed_error()
    except BaseException:
        # In the background: a request may be under way that would get the lease.
        locker.keeper.release_later(key, owner, terms.ttl, 2 * terms.ttl + LATEST)
        raise
    holding.tell(TakenOver)
    return holding


async def _transfer(
    locker: Locker, key: str, owner: str, claim: Claim, fence: int
) -> tuple[float, Anchor]:
    """Return when the moved lease ends, in the engine's time. Raises ``LeaseLost`` if it has ended."""
    if locker.keeper.is_closed:
        raise locker.closed_error()

    async def ask() -> tuple[Reply, float]:
        sent = locker.runtime.now()
        return await locker.store.transfer(key, owner, claim, fence=fence), sent

    reply, sent = await locker.insist(ask)
    if not isinstance(reply.answer, Held) or reply.answer.fence != fence:
        if locker.keeper.is_closed:  # To close gives back what either side has.
            raise locker.closed_error()
        raise LeaseLost(unqualified(key), fence=fence, reason="taken")
    return reply.answer.until, Anchor(reply.now, sent)
