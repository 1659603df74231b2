"""The lock protocol on a majority of independent servers."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Sequence
from operator import attrgetter, methodcaller
from typing import TYPE_CHECKING, Any, Final

from ..._core.ports import Look, Pulse, Reply, Runtime, Store, Unfinished
from ..._core.table import Asked, Busy, Claim, Gone, Held, Released, Waiting
from ...errors import ConfigurationError, EngineUnavailable
from ..redis.calls import MICRO, Unknown
from ..redis.store import RedisStore
from ..transport.failures import spread
from ..transport.sending import Send
from .acquisition import LATEST, Acquisition, Votes

if TYPE_CHECKING:
    from . import QuorumEngine

PAUSES: Final = (0.002, 0.005, 0.01, 0.02)
"""The longest pauses, in seconds, before a caller without a majority asks again."""

Question = Callable[[RedisStore], Coroutine[Any, Any, Any]]


class QuorumStore(Store):
    """A store on several Redis stores: it asks all, and follows the majority."""

    process = ""  # Each server notifies this process on a channel of its own.

    def __init__(
        self,
        engine: QuorumEngine,
        runtime: Runtime,
        stores: Sequence[RedisStore],
        send: Send,
    ) -> None:
        self._engine = engine
        self._runtime = runtime
        self._stores = stores
        self._all = frozenset(range(len(stores)))
        self._send = send

    async def acquire(self, key: str, claim: Claim, *, room: int) -> Reply:
        acquisition = self._engine.acquisition(claim, self._runtime.now())
        if not acquisition.ticket:
            # The servers' time in microseconds. All answers tell it, but the first caller has none.
            if not self._engine.clocks.known:
                await self._answers(RedisStore.clock)
            acquisition.ticket = round(self._engine.clocks.time(self._runtime.now()) * MICRO)
        ticket = acquisition.ticket
        for pause in (*PAUSES, 0.0):
            votes = await self._ask(
                self._all,
                lambda store: store.acquire(
                    key, claim, room=room, ticket=ticket, may_repeat=acquisition.may_repeat
                ),
                acquisition,
                enough=_granted,
            )
            acquisition.fence = None  # A fence that a late notification has told is over.
            acquisition.waits(votes)
            outcome, failure = self._known(votes.outcome(), votes), None
            match outcome.answer:
                case Held(fence=fence):
                    failure = await self._agree(key, claim.owner, fence, votes)
                    if failure is None:
                        acquisition.fence = fence
                        return outcome
                case Busy() as busy:
                    # Some servers may have granted what others refused.
                    elsewhere = bool(acquisition.asked.keys() - votes.answers(Busy).keys())
                    if not elsewhere:
                        self._engine.acquisitions.pop(claim.owner, None)
                    return Reply(busy._replace(elsewhere=elsewhere), outcome.now)
                case Waiting() if await self._wait_behind(key, acquisition, votes):
                    pass
                case _:
                    return outcome
            await self._runtime.sleep(spread(pause, self._runtime.jitter))
        if failure:
            raise failure
        return outcome

    async def _agree(
        self, key: str, owner: str, fence: int, votes: Votes
    ) -> EngineUnavailable | None:
        """Make sure that a majority has the fence that the holder gets.

        Returns the reason if too few still have the lease: the vote must then be repeated.
        """
        held = votes.answers(Held).items()
        level = {server for server, answer in held if answer.fence == fence}
        if len(level) >= votes.majority:
            return None
        raised = await self._ask(
            self._all - level,  # Servers that have not answered yet may have granted the lease.
            lambda store: store.raise_fence(key, owner, fence),
            enough=lambda raised: len(level) + len(raised.answers(Held)) >= votes.majority,
        )
        agreed = len(level) + len(raised.answers(Held)) >= votes.majority
        return None if agreed else self._unavailable(raised)

    async def _wait_behind(self, key: str, acquisition: Acquisition, votes: Votes) -> bool:
        """Give leases back to earlier waiters; return whether some servers still grant us the key."""
        held = votes.answers(Held)
        if not held:
            return False
        claim, ticket = acquisition.claim, acquisition.ticket
        until = {self._stores[server]: lease.until for server, lease in held.items()}
        votes = await self._ask(
            held,
            lambda store: store.wait_behind(key, claim, ticket=ticket, until=until[store]),
            acquisition,
        )
        acquisition.waits(votes)
        return bool(votes.answers(Held))

    async def refresh(self, pulses: Sequence[Pulse]) -> Sequence[Reply | EngineUnavailable]:
        def parts(together: Votes) -> list[Votes]:
            return [together.part(index) for index in range(len(pulses))]

        together = await self._ask(
            self._all,
            lambda store: _beat(store, pulses),
            enough=lambda together: all(each.granted for each in parts(together)),
        )
        outcomes: list[Reply | EngineUnavailable] = []
        for pulse, votes in zip(pulses, parts(together), strict=True):
            acquisition = self._engine.acquisitions.get(pulse.owner)
            fence = acquisition.fence if acquisition else None
            if acquisition:
                acquisition.asked_for(pulse.ttl, votes.sent)
                acquisition.waits(votes, still=True)
            if acquisition and votes.granted and fence and (forgetful := votes.answers(Gone)):
                await self._repair(pulse, acquisition, forgetful, fence)
            outcomes.append(votes.heartbeat(fence) or self._unavailable(votes))
        return outcomes

    async def _repair(
        self, pulse: Pulse, acquisition: Acquisition, forgetful: Iterable[int], fence: int
    ) -> None:
        """Restore a lease on servers that have lost it, while a majority has it."""
        claim = acquisition.claim._replace(ttl=pulse.ttl)
        await self._ask(
            forgetful,
            lambda store: store.acquire(
                pulse.key, claim, room=0, ticket=fence, may_repeat=acquisition.may_repeat
            ),
            acquisition,
        )

    async def release(self, key: str, owner: str, *, void: float = 0) -> Reply:
        acquisition = self._engine.acquisitions.get(owner)
        servers, late, longest = self._all, set[int](), void
        if acquisition:
            acquisition.over = True  # Before we look whether a repair is under way.
            # Servers that were never asked have nothing to release.
            servers = frozenset(list(acquisition.asked))
            late = {server for _, server in list(acquisition.under_way)}
            longest = max(void, 2 * acquisition.claim.ttl + LATEST)

        async def release(store: RedisStore) -> Reply:
            server = self._stores.index(store)
            if not acquisition or server not in late:
                return await store.release(key, owner, void=void)
            released = None
            if acquisition.asked[server] == 1:
                # What a server releases, it has granted: then its only request is not late.
                reply = await store.release(key, owner, void=void)
                released = reply if type(reply.answer) is Released else None
                if released and acquisition.asked[server] == 1:
                    return released
            reply = await store.release(key, owner, void=longest)  # Which rejects late requests.
            return released or reply

        votes = await self._ask(servers, release)
        released = votes.released()
        if not votes.silent:
            self._engine.acquisitions.pop(owner, None)
            return released or Reply(Gone(), votes.sent)
        if acquisition:
            # Those that may know of it are asked again later.
            for server in set(acquisition.asked) - set(votes.silent):
                del acquisition.asked[server]
        failure = self._unavailable(votes)
        raise Unfinished(failure.engine, failure.reason, released.answer) if released else failure

    async def transfer(self, key: str, owner: str, claim: Claim, *, fence: int) -> Reply:
        """Replace the owner on a majority. Of several claims for one lease, only one succeeds.

        All claims ask the servers in the same order, one server at a time, until one of them accepts.
        A claim that finds another claim on the way stops there. So the votes are not split: the claim
        that was first at the first server gets the others, too.
        """
        if giver := self._engine.acquisitions.get(owner):
            giver.over = True
        acquisition = self._engine.acquisition(claim, self._runtime.now())
        acquisition.fence = fence
        question = methodcaller("transfer", key, owner, claim, fence=fence)
        votes = None
        for server in self._engine.order:
            votes = await self._ask([server], question, acquisition, before=votes)
            if votes.answers(Held):
                break
            if server in votes.answers(Gone):
                looks = await self._ask([server], lambda store: store.look(key))
                for look in looks.replies.values():
                    if (
                        isinstance(look, Look)
                        and (grant := look.state.grant)
                        and grant.fence == fence
                    ):
                        return Reply(Gone(), votes.sent)  # Another claim has the lease.
        assert votes
        others = self._all - votes.replies.keys()
        votes = await self._ask(others, question, acquisition, before=votes, enough=_granted)
        return self._known(votes.heartbeat(fence), votes)

    async def force_release(self, key: str) -> Reply:
        votes = await self._ask(self._all, lambda store: store.force_release(key))
        return self._known(votes.released(), votes)

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
        votes = await self._ask(self._all, question)
        if votes.answered < votes.majority:
            raise self._unavailable(votes)
        return [each for each in votes.replies.values() if not isinstance(each, EngineUnavailable)]

    async def _ask(
        self,
        servers: Iterable[int],
        question: Question,
        acquisition: Acquisition | None = None,
        *,
        before: Votes | None = None,
        enough: Callable[[Votes], bool] | None = None,
    ) -> Votes:
        """Return each server's answer, or only those that have come when they are ``enough``.

        Servers that are known to be down are not asked. ``acquisition`` is given if those that are asked
        will remember it; it is not when it is over. The answers are counted together with those ``before``.
        """
        now, clocks, health = self._runtime.now, self._engine.clocks, self._engine.health
        down, sent, this = health.failures.copy(), now(), object()
        replies: dict[int, Any] = {server: down[server] for server in servers if server in down}
        asked = [server for server in servers if server not in down]
        if acquisition:
            acquisition.asks(asked)
            acquisition.under_way.update([(this, server) for server in asked])
            if acquisition.over:  # A release that does not wait for us can see what is under way.
                asked = []

        def votes() -> Votes:
            found = {**before.replies, **replies} if before else replies.copy()
            began = before.sent if before else sent
            return Votes(len(self._stores), began, dict(sorted(found.items())))

        def is_enough() -> bool:
            return enough is not None and enough(votes())

        async def ask(server: int) -> None:
            try:
                answer = replies[server] = await question(self._stores[server])
            except (EngineUnavailable, ConfigurationError) as error:
                failure = error
                if isinstance(failure, ConfigurationError):
                    failure = EngineUnavailable(self._engine.names[server], failure.message)
                replies[server] = failure
                # Left out for a while, also if it is unfit; not if it answers and recovers.
                if not isinstance(failure.__cause__, Unknown):
                    health.failed(server, failure, sent=sent)
                return
            received = now()
            health.answered_at[server] = received
            if acquisition:
                acquisition.under_way.discard((this, server))
            if isinstance(answer, Reply):
                clocks.heard(server, answer.now, sent=sent, received=received)

        await self._send([ask(server) for server in asked], is_enough)
        late = [server for server in asked if server not in replies]
        if late and not is_enough():
            for server in late:
                silent = EngineUnavailable(self._engine.names[server], "no answer yet")
                replies[server] = silent
                health.failed(server, silent, sent=sent)
        return votes()  # Answers that come later change nothing.

    def _known(self, reply: Reply | None, votes: Votes) -> Reply:
        if reply is None:
            raise self._unavailable(votes)
        return reply

    def _unavailable(self, votes: Votes) -> EngineUnavailable:
        failures = [votes.replies[server] for server in votes.silent]
        said = (
            f"{len(self._stores) - len(failures)} of {len(self._stores)} servers answered, and"
            f" {votes.majority} must agree; {failures[0]}"
            if failures
            else "its servers answered differently each time: their votes are split"
        )
        unavailable = EngineUnavailable(self._engine.name, said)
        unavailable.__cause__ = failures[0] if failures else None
        return unavailable


_granted: Final[Callable[[Votes], bool]] = attrgetter("granted")


async def _beat(store: RedisStore, pulses: Sequence[Pulse]) -> Sequence[Reply | EngineUnavailable]:
    """Raise ``EngineUnavailable`` if no heartbeat was answered."""
    replies = await store.refresh(pulses)
    failures = [each for each in replies if isinstance(each, EngineUnavailable)]
    if failures and len(failures) == len(replies):
        raise failures[0]
    return replies
