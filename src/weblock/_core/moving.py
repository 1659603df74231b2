"""How a lease moves on to another process, which continues it with the same fence.

Its owner is replaced twice. The giver puts a new secret in its place, the token: from then on the
lease belongs to no process, nobody renews it, and it lasts for as long as the giver has said. The
taker puts an owner of its own in place of the token. The engine replaces an owner only if that is
still the owner, so of several callers with one token, one gets the lease.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from ..errors import LeaseLost
from ..events import HandedOver, TakenOver
from ..keys import unqualified
from .acquiring import Locker
from .holding import Anchor, Hands, Holding, Status, Terms
from .keeping import LATEST
from .ports import Reply
from .table import Claim, Held
from .tokens import OnItsWay


async def hand_over(
    locker: Locker, holdings: Sequence[Holding], ttl: float | None
) -> list[OnItsWay]:
    """End the leases for their holder, while they last for ``ttl`` seconds, for a caller that has the token.

    Raises ``LeaseLost`` or ``EngineUnavailable``. Then they are all given back, for nobody knows by
    whose name the engine has them.
    """
    for holding in holdings:
        holding.check(locker.runtime.now())
    for holding in holdings:  # Before the engine is asked: another may have the lease at once.
        locker.keeper.drop_holding(holding)
        holding.status, holding.reason = Status.RELEASED, "handed_over"
    given: list[OnItsWay] = []
    try:
        for holding in holdings:
            length = holding.terms.ttl if ttl is None else ttl
            secret, limit = locker.runtime.new_owner(), holding.terms.limit
            given.append(OnItsWay(holding.key, secret, holding.fence, limit))
            await _give(locker, holding, given[-1].owner, length)
    except BaseException:
        for lease, holding in zip(given, holdings, strict=False):
            _owe(locker, lease.key, lease.owner, holding.terms.ttl)
        locker.abandon(holdings)
        raise
    for holding in holdings:
        locker.keeper.stakes.pop(holding.owner, None)
        if HandedOver in locker.observers.wanted:
            length = holding.terms.ttl if ttl is None else ttl
            told = HandedOver(**holding.about(), held_for=holding.held_for(), ttl=length)
            locker.observers.tell(told)
    return given


async def _give(locker: Locker, holding: Holding, secret: str, ttl: float) -> None:
    claim = Claim(secret, "", ttl, holding.label, holding.terms.limit)
    reply, _ = await _transfer(locker, holding.key, holding.owner, claim, holding.fence)
    if not isinstance(reply.answer, Held) or reply.answer.fence != holding.fence:
        holding.refute_release()
        raise holding.loss()


async def take_over(locker: Locker, leases: Sequence[OnItsWay], terms: Terms) -> Hands[Holding]:
    """Continue all leases, or none. Raises ``LeaseLost`` or ``EngineUnavailable``."""
    got: Hands[Holding] = Hands()
    try:
        for lease in leases:
            got.append(await _take(locker, lease, terms, got))
        for holding in got:  # The first may have been lost while the last was asked for.
            holding.check(locker.runtime.now())
    except Exception:
        with suppress(LeaseLost):  # Why not all were taken over says more.
            await locker.release(got)
        raise
    except BaseException:
        locker.abandon(got)
        raise
    return got


async def _take(locker: Locker, lease: OnItsWay, terms: Terms, hands: Hands[Holding]) -> Holding:
    key, owner = lease.key, locker.runtime.new_owner()
    terms = replace(terms, limit=lease.limit)
    claim = Claim(owner, locker.store.process, terms.first_ttl, terms.label, lease.limit)
    is_kept = locker.keeper.stake(hands, key, owner, terms.ttl)
    try:
        _refuse_if_over(locker)
        if not is_kept:
            locker.refuse_unless_kept(terms)
        reply, sent = await _transfer(locker, key, lease.owner, claim, lease.fence)
        _refuse_if_over(locker)
        deadline = _deadline(reply, sent, lease, claim, terms)
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
            claim=claim,
            observers=locker.observers,
        )
        holding.check(locker.runtime.now())
        locker.keeper.keep_holding(holding)
        _refuse_if_over(locker)  # Since just before: then nobody keeps it.
    except BaseException:
        _owe(locker, key, owner, terms.ttl)
        raise
    if TakenOver in locker.observers.wanted:
        locker.observers.tell(TakenOver(**holding.about()))
    return holding


def _refuse_if_over(locker: Locker) -> None:
    """Raise ``EngineUnavailable`` where no keeper would keep what is taken over."""
    if locker.keeper.over:
        raise locker.closed()


def _deadline(reply: Reply, sent: float, lease: OnItsWay, claim: Claim, terms: Terms) -> float:
    """Return when the new holder is to stop relying on the lease. Raises ``LeaseLost`` if it has none."""
    answer = reply.answer
    if not isinstance(answer, Held) or answer.fence != lease.fence:
        raise LeaseLost(unqualified(lease.key), fence=lease.fence, reason="taken")
    return Anchor(reply.now, sent).deadline(answer.until, at_most=claim.ttl, drift=terms.drift)


async def _transfer(
    locker: Locker, key: str, owner: str, claim: Claim, fence: int
) -> tuple[Reply, float]:
    """Return the engine's answer, and when the request that it answers was sent."""

    async def ask() -> tuple[Reply, float]:
        sent = locker.runtime.now()
        return await locker.store.transfer(key, owner, claim, fence=fence), sent

    return await locker.insist(ask)


def _owe(locker: Locker, key: str, owner: str, ttl: float) -> None:
    """Give back in the background what a request that may be under way would get."""
    locker.owe(key, owner, ttl, 2 * ttl + LATEST)
