"""The lock protocol on a majority of independent servers."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

from ..._core.ports import Look, Pulse, Reply, Runtime, Store, Unfinished
from ..._core.table import Asked, Busy, Claim, Gone, Held, Waiting
from ...errors import EngineUnavailable
from ..redis.calls import MICRO
from ..redis.store import RedisStore
from ..transport.backoff import spread
from .at_once import AtOnce
from .candidate import Candidate
from .tally import Tally

if TYPE_CHECKING:
    from . import QuorumEngine

PAUSES: Final = (0.002, 0.005, 0.01, 0.02)
"""The longest pauses, in seconds, before a caller without a majority asks again."""

Question = Callable[[RedisStore], Coroutine[Any, Any, Any]]


class QuorumStore(Store):
    """A store on several Redis stores: it asks all, and follows the majority."""

    process = ""

    def __init__(
        self,
        engine: QuorumEngine,
        runtime: Runtime,
        stores: Sequence[RedisStore],
        at_once: AtOnce,
    ) -> None:
        self._engine = engine
        self._runtime = runtime
        self._stores = stores
        self._all = frozenset(range(len(stores)))
        self._at_once = at_once

    async def acquire(self, key: str, claim: Claim, *, room: int) -> Reply:
        candidate = self._engine.candidate(claim, self._runtime.now())
        candidate.ticket = ticket = candidate.ticket or await self._new_ticket()
        for pause in (*PAUSES, 0.0):
            tally = await self._ask(
                self._all,
                lambda store: store.acquire(key, _from(store, claim), room=room, ticket=ticket),
                candidate,
                enough=lambda tally: tally.granted,
            )
            candidate.fence = None  # A fence that a late notification has told is over.
            candidate.waits(tally)
            outcome, failure = self._known(tally.outcome(), tally), None
            match outcome.answer:
                case Held(fence=fence):
                    failure = await self._agree(key, claim.owner, fence, tally)
                    if failure is None:
                        candidate.fence = fence
                        return outcome
                case Busy() as busy:
                    # Some servers may have granted what others refused.
                    elsewhere = bool(candidate.asked - tally.answers(Busy).keys())
                    if not elsewhere:
                        self._engine.candidates.pop(claim.owner, None)
                    return outcome._replace(answer=busy._replace(elsewhere=elsewhere))
                case Waiting() if await self._stand_back(key, candidate, tally):
                    pass
                case _:
                    return outcome
            await self._runtime.sleep(spread(pause, self._runtime.jitter))
        if failure:
            raise failure
        return outcome

    async def _agree(
        self, key: str, owner: str, fence: int, tally: Tally
    ) -> EngineUnavailable | None:
        """Make sure that a majority has the fence that the holder gets.

        Returns the reason if too few still have the lease: the vote must then be repeated.
        """
        held = tally.answers(Held).items()
        level = {server for server, answer in held if answer.fence == fence}
        if len(level) >= tally.majority:
            return None
        raised = await self._ask(
            self._all - level,  # Servers that have not answered yet may have granted the lease.
            lambda store: store.raise_fence(key, owner, fence),
            enough=lambda raised: len(level) + len(raised.answers(Held)) >= tally.majority,
        )
        agreed = len(level) + len(raised.answers(Held)) >= tally.majority
        return None if agreed else self._unavailable(raised)

    async def _stand_back(self, key: str, candidate: Candidate, tally: Tally) -> bool:
        """Give leases back to earlier waiters; return whether some servers still grant us the key."""
        held = tally.answers(Held)
        if not held:
            return False

        def question(store: RedisStore) -> Coroutine[Any, Any, Reply]:
            claim, until = _from(store, candidate.claim), held[self._stores.index(store)].until
            return store.stand_back(key, claim, ticket=candidate.ticket, until=until)

        tally = await self._ask(held, question, candidate)
        candidate.waits(tally)
        return bool(tally.answers(Held))

    async def _new_ticket(self) -> int:
        """Return the servers' time in microseconds, which answers have told before.

        The first caller in a process asks for it. Raises ``EngineUnavailable`` if no majority answers.
        """
        clocks = self._engine.clocks
        if not clocks.known:
            tally = await self._ask(self._all, _time)
            if not clocks.known:
                raise self._unavailable(tally)
        return round(clocks.time(self._runtime.now()) * MICRO)

    async def refresh(self, pulses: Sequence[Pulse]) -> Sequence[Reply | EngineUnavailable]:
        def tallies(together: Tally) -> list[Tally]:
            return [together.part(index) for index in range(len(pulses))]

        together = await self._ask(
            self._all,
            lambda store: _beat(store, pulses),
            enough=lambda together: all(each.granted for each in tallies(together)),
        )
        outcomes: list[Reply | EngineUnavailable] = []
        for pulse, tally in zip(pulses, tallies(together), strict=True):
            candidate = self._engine.candidates.get(pulse.owner)
            fence = candidate.fence if candidate else None
            if candidate:
                candidate.asked_for(pulse.ttl, tally.sent)
                candidate.waits(tally, still=True)
            if candidate and tally.granted and fence and (forgetful := tally.answers(Gone)):
                await self._repair(pulse, candidate, forgetful, fence)
            outcomes.append(tally.heartbeat(fence) or self._unavailable(tally))
        return outcomes

    async def _repair(
        self, pulse: Pulse, candidate: Candidate, forgetful: Iterable[int], fence: int
    ) -> None:
        """Restore a lease on servers that have lost it, while a majority has it."""
        claim = candidate.claim._replace(ttl=pulse.ttl)
        await self._ask(
            forgetful,
            lambda store: store.acquire(pulse.key, _from(store, claim), room=0, ticket=fence),
            candidate,
        )

    async def release(self, key: str, owner: str, *, void: float = 0) -> Reply:
        candidate = self._engine.candidates.get(owner)
        if candidate:
            candidate.over = True  # Before we look whether a repair is under way.
            void = max(void, candidate.void if candidate.under_way else 0)
        # Servers that were never asked have nothing to release.
        servers = frozenset(candidate.asked) if candidate else self._all
        tally = await self._ask(servers, lambda store: store.release(key, owner, void=void))
        released = tally.released()
        if not tally.silent:
            self._engine.candidates.pop(owner, None)
            return released or Reply(Gone(), tally.sent)
        if candidate:
            candidate.asked = set(tally.silent)  # They may know of it, and are asked again later.
        failure = self._unavailable(tally)
        raise Unfinished(failure.engine, failure.reason, released.answer) if released else failure

    async def transfer(self, key: str, owner: str, claim: Claim, *, fence: int) -> Reply:
        """Replace the owner on a majority. Of several claims for one lease, only one succeeds.

        All claims ask the servers in the same order, one server at a time, until one of them accepts.
        A claim that finds another claim on the way stops there. So the votes are not split: the claim
        that was first at the first server gets the others, too.
        """
        if giver := self._engine.candidates.get(owner):
            giver.over = True
        candidate = self._engine.candidate(claim, self._runtime.now())
        candidate.fence = fence

        def question(store: RedisStore) -> Coroutine[Any, Any, Reply]:
            return store.transfer(key, owner, _from(store, claim), fence=fence)

        tally = None
        for server in self._engine.order:
            tally = await self._ask([server], question, candidate, before=tally)
            if tally.answers(Held):
                break
            if server in tally.answers(Gone) and await self._has(server, key, fence):
                return Reply(Gone(), tally.sent)
        assert tally
        others = self._all - tally.replies.keys()
        tally = await self._ask(
            others, question, candidate, before=tally, enough=lambda tally: tally.granted
        )
        return self._known(tally.heartbeat(fence), tally)

    async def _has(self, server: int, key: str, fence: int) -> bool:
        """Return whether a server has a lease with this fence."""
        (look,) = (await self._ask([server], lambda store: store.look(key))).replies.values()
        grant = look.state.grant if isinstance(look, Look) else None
        return grant is not None and grant.fence == fence

    async def force_release(self, key: str) -> Reply:
        tally = await self._ask(self._all, lambda store: store.force_release(key))
        return self._known(tally.released(), tally)

    async def ask_release(self, key: str) -> Reply:
        """Ask the holders on every server: a holder needs to learn it from only one of them."""
        sent = self._runtime.now()
        replies = await self._answers(lambda store: store.ask_release(key))
        return Reply(
            Asked() if any(type(each.answer) is Asked for each in replies) else Gone(), sent
        )

    async def look(self, key: str) -> Look:
        """Return the state of the server that agrees with most others on the holder and its fence."""
        looks: list[Look] = await self._answers(lambda store: store.look(key))
        grants = [look.state.grant for look in looks]
        leases = [(each.claim.owner, each.fence) if each else ("", 0) for each in grants]
        owners = [owner for owner, _ in leases]
        votes = [(owners.count(each[0]), leases.count(each)) for each in leases]
        return looks[votes.index(max(votes))]

    async def names(self, prefix: str, limit: int) -> Sequence[str]:
        found = await self._answers(lambda store: store.names(prefix, limit))
        return sorted({name for names in found for name in names})[:limit]

    async def mark(self, key: str, keep: float | None) -> None:
        """Record the mark on a majority at least, so that every other majority has a server that knows it."""
        await self._answers(lambda store: store.mark(key, keep))

    async def marked(self, key: str) -> bool:
        return any(await self._answers(lambda store: store.marked(key)))

    async def _answers(self, question: Question) -> list[Any]:
        """Return what the servers answer. Raises ``EngineUnavailable`` if no majority does."""
        tally = await self._ask(self._all, question)
        if tally.answered < tally.majority:
            raise self._unavailable(tally)
        return [each for each in tally.replies.values() if not isinstance(each, EngineUnavailable)]

    async def _ask(
        self,
        servers: Iterable[int],
        question: Question,
        candidate: Candidate | None = None,
        *,
        before: Tally | None = None,
        enough: Callable[[Tally], bool] = lambda _tally: False,
    ) -> Tally:
        """Return each server's answer, or only those that have come when they are ``enough``.

        Servers that are known to be down are not asked. ``candidate`` is given if those that are asked
        will remember it; it is not when it is over. The answers are counted together with those ``before``.
        """
        now, clocks, health = self._runtime.now, self._engine.clocks, self._engine.health
        down, sent, this = health.failures.copy(), now(), object()
        replies: dict[int, Any] = {server: down[server] for server in servers if server in down}
        asked = [server for server in servers if server not in down]
        if candidate:
            candidate.asks(asked)
            candidate.under_way.update([(this, server) for server in asked])
            if candidate.over:  # A release that does not wait for us can see what is under way.
                asked = []

        def tally() -> Tally:
            found = {**before.replies, **replies} if before else replies.copy()
            began = before.sent if before else sent
            return Tally(len(self._stores), began, dict(sorted(found.items())))

        async def ask(server: int) -> None:
            try:
                answer = replies[server] = await question(self._stores[server])
            except EngineUnavailable as error:
                replies[server] = error
                health.failed(server, error, sent=sent)
                return
            received = now()
            health.answered_at[server] = received
            if candidate:
                candidate.under_way.discard((this, server))
            if isinstance(answer, Reply):
                clocks.heard(server, answer.now, sent=sent, received=received)

        await self._at_once([ask(server) for server in asked], lambda: enough(tally()))
        late = [server for server in asked if server not in replies]
        if late and not enough(tally()):
            for server in late:
                silent = EngineUnavailable(self._engine.names[server], "no answer yet")
                replies[server] = silent
                health.failed(server, silent, sent=sent)
        return tally()  # Answers that come later change nothing.

    def _known(self, reply: Reply | None, tally: Tally) -> Reply:
        if reply is None:
            raise self._unavailable(tally)
        return reply

    def _unavailable(self, tally: Tally) -> EngineUnavailable:
        failures = [tally.replies[server] for server in tally.silent]
        said = (
            f"{len(self._stores) - len(failures)} of {len(self._stores)} servers answered, and"
            f" {tally.majority} must agree; {failures[0]}"
            if failures
            else "its servers answered differently each time: their votes are split"
        )
        unavailable = EngineUnavailable(self._engine.name, said)
        unavailable.__cause__ = failures[0] if failures else None
        return unavailable


def _from(store: RedisStore, claim: Claim) -> Claim:
    """Return a claim as one server gets it: each notifies this process on a channel of its own."""
    return claim._replace(process=store.process)


async def _time(store: RedisStore) -> Reply:
    """Return an answer that only tells the server's time."""
    return Reply(Gone(), await store.clock())


async def _beat(store: RedisStore, pulses: Sequence[Pulse]) -> Sequence[Reply | EngineUnavailable]:
    """Raise ``EngineUnavailable`` if no heartbeat was answered."""
    replies = await store.refresh(pulses)
    failures = [each for each in replies if isinstance(each, EngineUnavailable)]
    if failures and len(failures) == len(replies):
        raise failures[0]
    return replies
