"""The lock protocol on a majority of independent servers."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

from ..._core.ports import Look, Pulse, Reply, Runtime, Store, Unfinished
from ..._core.table import Busy, Claim, Gone, Waiting
from ...errors import EngineUnavailable
from ..redis.calls import MICRO
from ..redis.store import RedisStore
from .candidate import Candidate
from .tally import Tally

if TYPE_CHECKING:
    from . import QuorumEngine

T = TypeVar("T")

PAUSES: Final = (0.002, 0.005, 0.01, 0.02)
"""The longest pauses, in seconds, before an asker without a majority asks again."""

Question = Callable[[RedisStore], Coroutine[Any, Any, T]]


class QuorumStore(Store):
    """A store on several Redis stores: it asks all, and follows the majority."""

    process = ""

    def __init__(
        self, engine: QuorumEngine, runtime: Runtime, stores: Sequence[RedisStore]
    ) -> None:
        self._engine = engine
        self._runtime = runtime
        self._stores = stores

    async def acquire(self, key: str, claim: Claim, *, room: int) -> Reply:
        candidate = self._engine.candidate(claim, self._runtime.now())
        candidate.ticket = candidate.ticket or await self._new_ticket()
        outcome: Reply | EngineUnavailable
        for pause in (*PAUSES, 0.0):
            tally = await self._nominate(key, candidate, room)
            if tally.granted:
                outcome = await self._agreed(key, candidate, tally)
                if isinstance(outcome, Reply):
                    return outcome
            else:
                outcome = self._known(tally.outcome(), tally)
                if isinstance(outcome.answer, Busy):
                    return self._refused(outcome, outcome.answer, candidate, tally)
                if not isinstance(outcome.answer, Waiting):
                    return outcome
                if not await self._holds_on(key, candidate, tally):
                    return outcome
            await self._runtime.sleep(pause * (0.5 + self._runtime.jitter() / 2))
        if isinstance(outcome, EngineUnavailable):
            raise outcome
        return outcome

    async def refresh(self, pulses: Sequence[Pulse]) -> Sequence[Reply | EngineUnavailable]:
        sent = self._runtime.now()

        def tallies(replies: dict[int, Any]) -> list[Tally]:
            of_pulse = [
                {s: r if isinstance(r, EngineUnavailable) else r[i] for s, r in replies.items()}
                for i in range(len(pulses))
            ]
            return [Tally(len(self._stores), sent, each) for each in of_pulse]

        replies = await self._ask(
            self._servers(),
            lambda store: _beat(store, pulses),
            enough=lambda replies: all(each.granted for each in tallies(replies)),
        )
        outcomes: list[Reply | EngineUnavailable] = []
        for pulse, tally in zip(pulses, tallies(replies), strict=True):
            candidate = self._engine.candidates.get(pulse.owner)
            fence = candidate.fence if candidate else None
            if candidate:
                candidate.asked_for(pulse.ttl, sent)
                candidate.handovers.reminded(tally)
            if candidate and tally.granted and fence and tally.forgetful:
                await self._repair(pulse, candidate, tally.forgetful, fence)
            outcomes.append(tally.heartbeat(fence) or self._unavailable(tally))
        return outcomes

    async def release(self, key: str, owner: str, *, void: float = 0) -> Reply:
        candidate = self._engine.candidates.get(owner)
        if candidate:
            candidate.over = True  # Before we look whether a repair is under way.
            void = max(void, candidate.void if candidate.under_way else 0)
        servers = candidate.asked if candidate else self._servers()
        tally = await self._tally(servers, lambda store: store.release(key, owner, void=void))
        # The servers that may know of it are asked again later.
        if tally.answered < len(tally.replies):
            if candidate:
                candidate.asked = set(tally.silent)
            self._engine.forget_later(owner, self._runtime.now())
            raise self._unfinished(tally)
        self._engine.forget(owner)
        # Servers that were never asked have nothing to release.
        return tally.released() or Reply(Gone(), tally.sent)

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
            candidate.asked.add(self._stores.index(store))
            mine = claim._replace(process=store.process)
            return candidate.asks(store.transfer(key, owner, mine, fence=fence))

        sent, count = self._runtime.now(), len(self._stores)
        replies: dict[int, Any] = {}
        for server in self._engine.order:
            replies |= await self._ask([server], question)
            tally = Tally(count, sent, replies)
            if tally.holding:
                break
            if server in tally.forgetful and await self._has(server, key, fence):
                return Reply(Gone(), sent)

        def together(rest: dict[int, Any]) -> Tally:
            return Tally(count, sent, replies | rest)

        rest = await self._ask(
            self._servers() - replies.keys(), question, enough=lambda rest: together(rest).granted
        )
        return self._known(together(rest).heartbeat(fence), together(rest))

    async def force_release(self, key: str) -> Reply:
        tally = await self._tally(self._servers(), lambda store: store.force_release(key))
        return self._known(tally.released(), tally)

    async def ask_release(self, key: str) -> Reply:
        """Ask the holders on every server: a holder needs to learn it from only one of them."""
        tally = await self._tally(self._servers(), lambda store: store.ask_release(key))
        return self._known(tally.asked(), tally)

    async def look(self, key: str) -> Look:
        """Return the state of the server that agrees with most others on the holder and its fence."""
        looks = [each for each in await self._looks(key) if isinstance(each, Look)]
        grants = [look.state.grant for look in looks]
        owners = [grant and grant.claim.owner for grant in grants]
        leases = [grant and (grant.claim.owner, grant.fence) for grant in grants]
        votes = [
            (owners.count(owner), leases.count(lease))
            for owner, lease in zip(owners, leases, strict=True)
        ]
        return looks[votes.index(max(votes))]

    async def names(self, prefix: str, limit: int) -> Sequence[str]:
        replies = await self._ask(self._servers(), lambda store: store.names(prefix, limit))
        found = [names for names in replies.values() if not isinstance(names, EngineUnavailable)]
        self._check(len(found), replies)
        return sorted({name for names in found for name in names})[:limit]

    async def mark(self, key: str, keep: float | None) -> None:
        """Record the mark on a majority at least, so that every other majority has a server that knows it."""

        async def noted(store: RedisStore) -> bool:
            await store.mark(key, keep)
            return True

        replies = await self._ask(self._servers(), noted)
        self._check(sum(each is True for each in replies.values()), replies)

    async def marked(self, key: str) -> bool:
        replies = await self._ask(self._servers(), lambda store: store.marked(key))
        self._check(sum(isinstance(each, bool) for each in replies.values()), replies)
        return True in replies.values()

    async def _has(self, server: int, key: str, fence: int) -> bool:
        """Return whether a server has a lease with this fence."""
        (look,) = (await self._ask([server], lambda store: store.look(key))).values()
        grant = look.state.grant if isinstance(look, Look) else None
        return grant is not None and grant.fence == fence

    async def _looks(self, key: str) -> Iterable[Look | EngineUnavailable]:
        replies = await self._ask(self._servers(), lambda store: store.look(key))
        self._check(sum(isinstance(each, Look) for each in replies.values()), replies)
        return replies.values()

    async def _new_ticket(self) -> int:
        """Return the servers' time in microseconds, which answers have told before.

        The first in a process asks for it. Raises ``EngineUnavailable`` if no majority answers.
        """
        clocks, now = self._engine.clocks, self._runtime.now

        async def shown(store: RedisStore) -> None:
            sent, time = now(), await store.clock()
            server = self._stores.index(store)
            clocks.heard(server, time, sent=sent, received=now())

        if not clocks.known:
            replies: dict[int, Any] = await self._ask(
                self._servers(), shown, enough=lambda _replies: clocks.alike
            )
            if not clocks.known:
                raise self._unavailable(Tally(len(self._stores), 0.0, replies))
        return round(clocks.time(now()) * MICRO)

    async def _nominate(self, key: str, candidate: Candidate, room: int) -> Tally:
        claim, ticket = candidate.claim, candidate.ticket

        def question(store: RedisStore) -> Coroutine[Any, Any, Reply]:
            server = self._stores.index(store)
            candidate.asked.add(server)
            candidate.handovers.asking(server)
            mine = claim._replace(process=store.process)
            return candidate.asks(store.acquire(key, mine, room=room, ticket=ticket))

        tally = await self._tally(self._servers(), question, enough=lambda tally: tally.granted)
        candidate.fence = None  # One that a late ring has told of is over.
        candidate.holding = set(tally.holding)
        candidate.handovers.told(tally)
        self._engine.clocks.compare(tally)
        return tally

    async def _agreed(
        self, key: str, candidate: Candidate, tally: Tally
    ) -> Reply | EngineUnavailable:
        """Make sure that a majority has the fence that the holder gets.

        Returns the reason if too few still have the lease: the vote must then be repeated.
        """
        owner, fence, level = candidate.claim.owner, tally.fence, set(tally.level)
        if len(level) < tally.majority:
            raised = await self._tally(  # Those that have not answered yet may have let it in.
                self._servers() - level,
                lambda store: store.raise_fence(key, owner, fence),
                enough=lambda raised: len(level) + len(raised.holding) >= tally.majority,
            )
            if len(level) + len(raised.holding) < tally.majority:
                return self._unavailable(raised)
        candidate.fence = fence
        return self._known(tally.outcome(), tally)

    async def _holds_on(self, key: str, candidate: Candidate, tally: Tally) -> bool:
        """Give back what others have a better claim to; return whether some servers remain ours."""
        if not tally.holding:
            return False
        claim, ticket = candidate.claim, candidate.ticket

        def question(store: RedisStore) -> Coroutine[Any, Any, Reply]:
            server = self._stores.index(store)
            candidate.handovers.asking(server)
            mine = claim._replace(process=store.process)
            until = tally.until(server)
            return store.stand_back(key, mine, ticket=ticket, until=until)

        answers = await self._tally(tally.holding, question)
        candidate.holding = set(answers.holding)
        candidate.handovers.told(answers)
        return bool(answers.holding)

    def _refused(self, reply: Reply, busy: Busy, candidate: Candidate, tally: Tally) -> Reply:
        """Return whether some servers may have granted what others refused."""
        elsewhere = bool(candidate.asked - set(tally.refusing))
        if not elsewhere:
            self._engine.forget(candidate.claim.owner)
        return reply._replace(answer=busy._replace(elsewhere=elsewhere))

    async def _repair(
        self, pulse: Pulse, candidate: Candidate, forgetful: Sequence[int], fence: int
    ) -> None:
        """Restore a lease on servers that have lost it, while a majority has it."""
        claim = candidate.claim._replace(ttl=pulse.ttl)
        candidate.asked |= set(forgetful)

        def question(store: RedisStore) -> Coroutine[Any, Any, Reply]:
            mine = claim._replace(process=store.process)
            return candidate.asks(store.acquire(pulse.key, mine, room=0, ticket=fence))

        candidate.under_way.add(pulse)  # A release that does not wait for us has to know.
        if not candidate.over:
            await self._ask(forgetful, question)
        candidate.under_way.discard(pulse)

    async def _tally(
        self,
        servers: Iterable[int],
        question: Question[Reply],
        *,
        enough: Callable[[Tally], bool] = lambda _tally: False,
    ) -> Tally:
        sent = self._runtime.now()
        count = len(self._stores)
        replies = await self._ask(
            servers, question, enough=lambda replies: enough(Tally(count, sent, replies))
        )
        return Tally(count, sent, replies)

    async def _ask(
        self,
        servers: Iterable[int],
        question: Question[T],
        *,
        enough: Callable[[dict[int, Any]], bool] = lambda _replies: False,
    ) -> dict[int, T | EngineUnavailable]:
        """Return each server's answer; servers known to be down are not waited for."""
        now = self._runtime.now()
        replies: dict[int, Any] = {}
        works = []
        for server in servers:
            if failure := self._engine.health[server].known_failure(now):
                replies[server] = failure
            else:
                works.append(self._one(server, question, replies))
        await self._runtime.side_by_side(works, lambda: enough(replies))
        # In their order; and those that answer later change nothing.
        return {server: replies[server] for server in sorted(replies)}

    async def _one(self, server: int, question: Question[T], replies: dict[int, Any]) -> None:
        health, now = self._engine.health[server], self._runtime.now
        sent = now()
        try:
            answer = replies[server] = await question(self._stores[server])
        except EngineUnavailable as error:
            replies[server] = error
            health.failed(error, sent=sent, now=now())
        else:
            received = now()
            health.answered(received)
            if isinstance(answer, Reply):
                self._engine.clocks.heard(server, answer.now, sent=sent, received=received)

    def _servers(self) -> set[int]:
        return set(range(len(self._stores)))

    def _known(self, reply: Reply | None, tally: Tally) -> Reply:
        if reply is None:
            raise self._unavailable(tally)
        return reply

    def _check(self, answered: int, replies: dict[int, Any]) -> None:
        tally = Tally(len(self._stores), 0.0, replies)
        if answered < tally.majority:
            raise self._unavailable(tally)

    def _unfinished(self, tally: Tally) -> EngineUnavailable:
        failure, released = self._unavailable(tally), tally.released()
        if released is None:
            return failure
        return Unfinished(failure.engine, failure.reason, released.answer)

    def _unavailable(self, tally: Tally) -> EngineUnavailable:
        failures = [each for each in tally.replies.values() if isinstance(each, EngineUnavailable)]
        answered = len(self._stores) - len(failures)
        said = (
            f"{answered} of {len(self._stores)} servers answered, and {tally.majority} must agree;"
            + "".join(f" {failure}" for failure in failures[:1])
            if failures
            else "its servers answered differently each time: their votes are split"
        )
        unavailable = EngineUnavailable(self._engine.name, said)
        unavailable.__cause__ = failures[0] if failures else None
        return unavailable


async def _beat(store: RedisStore, pulses: Sequence[Pulse]) -> Sequence[Reply | EngineUnavailable]:
    """Raise ``EngineUnavailable`` if no heartbeat was answered."""
    replies = await store.refresh(pulses)
    failures = [each for each in replies if isinstance(each, EngineUnavailable)]
    if failures and len(failures) == len(replies):
        raise failures[0]
    return replies
