"""The lock protocol on a majority of independent servers."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

from ..._core.ports import Look, Pulse, Reply, Runtime, Store, Unfinished
from ..._core.table import Busy, Claim, Gone, Held, Waiting
from ...errors import EngineUnavailable
from ..redis.calls import MICRO
from ..redis.store import RedisStore
from ..transport.backoff import spread
from .at_once import AtOnce
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
        self,
        engine: QuorumEngine,
        runtime: Runtime,
        stores: Sequence[RedisStore],
        at_once: AtOnce,
    ) -> None:
        self._engine = engine
        self._runtime = runtime
        self._stores = stores
        self._at_once = at_once

    async def acquire(self, key: str, claim: Claim, *, room: int) -> Reply:
        candidate = self._engine.candidate(claim, self._runtime.now())
        candidate.ticket = candidate.ticket or await self._new_ticket()
        split: EngineUnavailable | None = None
        for pause in (*PAUSES, 0.0):
            tally = await self._nominate(key, candidate, room)
            outcome, split = self._known(tally.outcome(), tally), None
            match outcome.answer:
                case Held(fence=fence):
                    split = await self._split(key, candidate, tally)
                    if split is None:
                        candidate.fence = fence
                        return outcome
                case Busy() as busy:
                    # Some servers may have granted what others refused.
                    elsewhere = bool(candidate.asked - tally.answers(Busy).keys())
                    if not elsewhere:
                        self._engine.forget(claim.owner)
                    return outcome._replace(answer=busy._replace(elsewhere=elsewhere))
                case Waiting() if await self._holds_on(key, candidate, tally):
                    pass
                case _:
                    return outcome
            await self._runtime.sleep(spread(pause, self._runtime.jitter))
        if split:
            raise split
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
                candidate.waits(tally, still=True)
            if candidate and tally.granted and fence and (forgetful := tally.answers(Gone)):
                await self._repair(pulse, candidate, forgetful.keys(), fence)
            outcomes.append(tally.heartbeat(fence) or self._unavailable(tally))
        return outcomes

    async def release(self, key: str, owner: str, *, void: float = 0) -> Reply:
        candidate = self._engine.candidates.get(owner)
        if candidate:
            candidate.over = True  # Before we look whether a repair is under way.
            void = max(void, candidate.void if candidate.under_way else 0)
        # Servers that were never asked have nothing to release.
        servers = candidate.asked if candidate else self._servers()
        tally = await self._tally(servers, lambda store: store.release(key, owner, void=void))
        released = tally.released()
        if tally.answered == len(tally.replies):
            self._engine.forget(owner)
            return released or Reply(Gone(), tally.sent)
        # The servers that may know of it are asked again later.
        if candidate:
            candidate.asked = set(tally.silent)
        self._engine.forget_later(owner, self._runtime.now())
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
            mine = claim._replace(process=store.process)
            return store.transfer(key, owner, mine, fence=fence)

        sent, count = self._runtime.now(), len(self._stores)
        replies: dict[int, Any] = {}
        for server in self._engine.order:
            replies |= await self._ask([server], question, candidate)
            tally = Tally(count, sent, replies)
            if tally.holding:
                break
            if server in tally.answers(Gone) and await self._has(server, key, fence):
                return Reply(Gone(), sent)

        def together(rest: dict[int, Any]) -> Tally:
            return Tally(count, sent, replies | rest)

        others, granted = self._servers() - replies.keys(), lambda rest: together(rest).granted
        rest = await self._ask(others, question, candidate, enough=granted)
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
        looks = await self._answers(lambda store: store.look(key))
        grants = [look.state.grant for look in looks]
        owners = [grant and grant.claim.owner for grant in grants]
        leases = [grant and (grant.claim.owner, grant.fence) for grant in grants]
        votes = [
            (owners.count(owner), leases.count(lease))
            for owner, lease in zip(owners, leases, strict=True)
        ]
        return looks[votes.index(max(votes))]

    async def names(self, prefix: str, limit: int) -> Sequence[str]:
        found = await self._answers(lambda store: store.names(prefix, limit))
        return sorted({name for names in found for name in names})[:limit]

    async def mark(self, key: str, keep: float | None) -> None:
        """Record the mark on a majority at least, so that every other majority has a server that knows it."""
        await self._answers(lambda store: store.mark(key, keep))

    async def marked(self, key: str) -> bool:
        return any(await self._answers(lambda store: store.marked(key)))

    async def _has(self, server: int, key: str, fence: int) -> bool:
        """Return whether a server has a lease with this fence."""
        (look,) = (await self._ask([server], lambda store: store.look(key))).values()
        grant = look.state.grant if isinstance(look, Look) else None
        return grant is not None and grant.fence == fence

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
        """Ask all servers for the key."""
        claim, ticket = candidate.claim, candidate.ticket

        def question(store: RedisStore) -> Coroutine[Any, Any, Reply]:
            mine = claim._replace(process=store.process)
            return store.acquire(key, mine, room=room, ticket=ticket)

        tally = await self._tally(
            self._servers(), question, candidate, enough=lambda tally: tally.granted
        )
        candidate.fence = None  # One that a late notification has told of is over.
        candidate.holding = tally.holding
        candidate.waits(tally)
        return tally

    async def _split(
        self, key: str, candidate: Candidate, tally: Tally
    ) -> EngineUnavailable | None:
        """Make sure that a majority has the fence that the holder gets.

        Returns the reason if too few still have the lease: the vote must then be repeated.
        """
        level = tally.level
        if len(level) >= tally.majority:
            return None
        owner, fence = candidate.claim.owner, tally.fence
        raised = await self._tally(  # Those that have not answered yet may have let it in.
            self._servers() - level,
            lambda store: store.raise_fence(key, owner, fence),
            enough=lambda raised: len(level) + len(raised.holding) >= tally.majority,
        )
        agreed = len(level) + len(raised.holding) >= tally.majority
        return None if agreed else self._unavailable(raised)

    async def _holds_on(self, key: str, candidate: Candidate, tally: Tally) -> bool:
        """Give back what others have a better claim to; return whether some servers remain ours."""
        holding = tally.answers(Held)
        if not holding:
            return False
        claim, ticket = candidate.claim, candidate.ticket

        def question(store: RedisStore) -> Coroutine[Any, Any, Reply]:
            until = holding[self._stores.index(store)].until
            mine = claim._replace(process=store.process)
            return store.stand_back(key, mine, ticket=ticket, until=until)

        candidate.asks(holding)
        answers = await self._tally(holding, question)
        candidate.holding = answers.holding
        candidate.waits(answers)
        return bool(answers.holding)

    async def _repair(
        self, pulse: Pulse, candidate: Candidate, forgetful: Iterable[int], fence: int
    ) -> None:
        """Restore a lease on servers that have lost it, while a majority has it."""
        claim = candidate.claim._replace(ttl=pulse.ttl)

        def question(store: RedisStore) -> Coroutine[Any, Any, Reply]:
            mine = claim._replace(process=store.process)
            return store.acquire(pulse.key, mine, room=0, ticket=fence)

        repair = (pulse, -1)
        candidate.asked |= set(forgetful)
        candidate.under_way.add(repair)  # A release that does not wait for us has to know.
        if not candidate.over:
            await self._ask(forgetful, question, candidate)
        candidate.under_way.discard(repair)

    async def _answers(self, question: Question[T]) -> list[T]:
        """Return what the servers answer. Raises ``EngineUnavailable`` if no majority does."""
        replies: dict[int, Any] = await self._ask(self._servers(), question)
        answers = [each for each in replies.values() if not isinstance(each, EngineUnavailable)]
        if len(answers) <= len(self._stores) // 2:
            raise self._unavailable(Tally(len(self._stores), 0.0, replies))
        return answers

    async def _tally(
        self,
        servers: Iterable[int],
        question: Question[Reply],
        candidate: Candidate | None = None,
        *,
        enough: Callable[[Tally], bool] | None = None,
    ) -> Tally:
        sent, count = self._runtime.now(), len(self._stores)

        def decided(replies: dict[int, Any]) -> bool:
            return enough is not None and enough(Tally(count, sent, replies))

        return Tally(count, sent, await self._ask(servers, question, candidate, enough=decided))

    async def _ask(
        self,
        servers: Iterable[int],
        question: Question[T],
        candidate: Candidate | None = None,
        *,
        enough: Callable[[dict[int, Any]], bool] = lambda _replies: False,
    ) -> dict[int, T | EngineUnavailable]:
        """Return each server's answer, or only those that there are when there is enough.

        Servers that are known to be down are not asked. ``candidate`` is given if they remember it.
        """
        now, clocks, health = self._runtime.now, self._engine.clocks, self._engine.health
        down, sent, this = health.failures.copy(), now(), object()
        replies: dict[int, Any] = {server: down[server] for server in servers if server in down}
        asked = [server for server in servers if server not in down]

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

        if candidate:
            candidate.asks(asked)
            candidate.under_way.update([(this, server) for server in asked])
        await self._at_once([ask(server) for server in asked], lambda: enough(replies.copy()))
        late = [server for server in asked if server not in replies]
        if late and not enough(replies.copy()):
            for server in late:
                silent = EngineUnavailable(self._engine.names[server], "no answer yet")
                replies[server] = silent
                health.failed(server, silent, sent=sent)
        # In their order; and those that answer later change nothing.
        return {server: replies[server] for server in sorted(replies)}

    def _servers(self) -> set[int]:
        return set(range(len(self._stores)))

    def _known(self, reply: Reply | None, tally: Tally) -> Reply:
        if reply is None:
            raise self._unavailable(tally)
        return reply

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
