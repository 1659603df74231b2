"""Renewals: a lease goes on when its node is written again, which only a majority can confirm."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from ..._core.ports import Pulse, Reply
from ..._core.table import Claim, Gone, Held
from ...errors import EngineUnavailable
from .answers import AsyncResult
from .memory import Memory, Own
from .nodes import asked_in, packed
from .session import Session
from .wire import Key, Wire


class Renewal(NamedTuple):
    """A lease that is being renewed, and until when it will last."""

    owner: str
    sent: float
    until: float
    fence: int | None
    read: AsyncResult
    """The node just before: another client may have written into it that it wants the key."""
    result: AsyncResult


class Renewing:
    """How the leases of this process are renewed."""

    def __init__(self, wire: Wire, memory: Memory) -> None:
        self._wire = wire
        self._memory = memory

    async def all(
        self, session: Session, pulses: Sequence[Pulse]
    ) -> list[Reply | EngineUnavailable]:
        """Renew leases that we know of, all at once."""
        renewals = [
            self._sent(Key(session, session.layout.of_key(pulse.key)), pulse.owner, pulse.ttl)
            for pulse in pulses
        ]
        reads = [renewal.read for renewal in renewals]
        outcomes = await self._wire.outcomes(*reads, *(renewal.result for renewal in renewals))
        found, stats = outcomes[: len(reads)], outcomes[len(reads) :]
        return [self._renewed(*each) for each in zip(renewals, found, stats, strict=True)]

    def _sent(self, key: Key, owner: str, ttl: float) -> Renewal:
        """Write that a lease goes on: its observers begin to count anew.

        A later renewal keeps what an earlier one has promised: they are sent in order.
        """
        memory = self._memory
        with memory.sending:
            sent = self._wire.now()
            own = memory.leases.get(owner, Own(sent, "", 1))
            until = max(sent + ttl, own.until)
            memory.leases[owner] = own._replace(until=until)
            data = packed(
                key.session.name,
                own.label,
                until - sent,
                limit=own.limit,
                fence=own.fence,
                asked=own.asked,
            )
            read = key.session.client.get_async(key.lease_of(owner))
            result = key.session.client.set_async(key.lease_of(owner), data)
        return Renewal(owner, sent, until, own.fence, read, result)

    def _renewed(self, renewal: Renewal, read: Any, stat: Any) -> Any:
        if isinstance(stat, EngineUnavailable):
            return stat
        if isinstance(stat, Exception):
            self._memory.forget(renewal.owner)
            return self._wire.reply(Gone())
        asked = self._notes_asking(renewal.owner, read, stat)
        held = Held(renewal.fence or stat.czxid, renewal.until, asked=asked)
        return Reply(held, renewal.sent)

    def _notes_asking(self, owner: str, read: Any, stat: Any) -> bool:
        """Return whether the holder was asked to release; remember it, since renewals write over it.

        Only the holder and callers that ask write to the node of a lease. If it was written between our
        read and our write, which were sent together, another caller has asked.
        """
        own = self._memory.leases.get(owner)
        if isinstance(read, Exception):
            return bool(own and own.asked)
        asked = asked_in(read[0]) or stat.version != read[1].version + 1
        if asked and own:
            self._memory.leases[owner] = own._replace(asked=True)
        return asked

    async def again(self, key: Key, claim: Claim) -> Reply | None:
        """Renew a lease whose owner asks for it, because it does not know that it has it."""
        leases = self._memory.leases
        leases.setdefault(claim.owner, Own(self._wire.now(), claim.label, claim.limit))
        renewal = self._sent(key, claim.owner, claim.ttl)
        read, stat = await self._wire.all(renewal.read, renewal.result)
        reply = self._renewed(renewal, read, stat)
        return reply if isinstance(reply.answer, Held) else None
