"""What must hold of a quorum; each property has the name that it has with one server."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from weblock._core.holding import Holding
from weblock._core.keeping import BEAT
from weblock._core.ports import Reply
from weblock._core.table import HANDOFF, Busy, Held
from weblock.errors import LeaseLost, WeblockError
from weblock.stores.redis.asking import LONGEST_KNOCK

from .attempts import Attempt
from .client import Client
from .engine import Acquire, Refresh, Release, Request
from .process import Process
from .properties import SLACK, Honest, Live, Mutex, NoLeak, Property, ToldInTime
from .quorum_servers import Quorum
from .swarm import Swarm
from .truth import Belief, Truth
from .world import World

ROUNDS: Final = 6
"""How many more round trips a call may take than with one server: several servers, several rounds."""

APART: Final = 0.4
"""By how many seconds two servers' clocks may differ."""


class QuorumTruth(Truth):
    """Everything that is so of several servers. ``minor`` faults, of a minority, excuse nothing."""

    engine: Any

    def __init__(self, world: World, swarm: Swarm, quorum: Quorum, *, minor: bool) -> None:
        super().__init__(world, swarm, quorum)  # type: ignore[arg-type]
        self.quorum = quorum
        self.minor = minor
        self.well = quorum.servers
        """Those whose faults, if any, are excuses."""
        self.wants: dict[str, str] = {}
        """The key that an owner wants."""
        self.touched = True
        """Whether anything has happened since the last look that bears on a lease."""

        self.solid: set[str] = set()
        """Owners whose leases all had that were not at fault."""

    def disturb(self, what: str, lasting: float) -> None:
        """One that has failed is left alone for a while."""
        super().disturb(what, lasting + LONGEST_KNOCK)

    # From the servers.

    def forgot(self) -> None:
        self.touched = True
        self.epoch += 1
        self.forgot_at = self.world.now
        if self.beliefs:
            self.sometimes("engine forgot leases")

    # From the network and the stores.

    def sent(self, process: Process, request: Request) -> None:
        if isinstance(request, Acquire):
            self.wants[request.claim.owner] = request.key
        super().sent(process, request)

    def reply_lost(self, request: Request, replies: list[Reply]) -> None:
        if isinstance(request, Acquire) and isinstance(replies[0].answer, Held):
            self.sometimes("reply lost after a grant")

    def answered(self, request: Request, replies: list[Reply]) -> None:
        self.touched = True
        if isinstance(request, Acquire) and isinstance(replies[0].answer, Busy):
            self.busy.add(request.claim.owner)

    # From the clients.

    def believes(self, client: Client, holding: Holding) -> None:
        self.touched = True
        self.served.add(holding.owner)
        belief = Belief(holding, self.by_owner[holding.owner], self.epoch)
        self.beliefs.append(belief)
        holders = [server.holder(holding.key) for server in self.well]
        if all(found and found[0] == holding.owner for found in holders):
            self.solid.add(holding.owner)
        for each in self.properties:
            each.believed(belief)

    def waits_for_minor_faults(self) -> float:
        """How much longer a call may take for a server that hangs."""
        return 4 * self.swarm.op_timeout if self.minor else 0.0


class QuorumProperty(Property):
    """One that knows that there are several servers."""

    truth: QuorumTruth

    def __init__(self, truth: Truth) -> None:
        super().__init__(truth)
        assert isinstance(truth, QuorumTruth)
        self.quorum = truth.quorum


class Fences(QuorumProperty):
    """Fences increase in the order in which leases begin, over any sequence of majorities.

    A majority has a lease's fence when its holder learns of it, but for those who have forgotten it.
    """

    name = "P2 fence"

    def __init__(self, truth: Truth) -> None:
        super().__init__(truth)
        self._last: dict[str, int] = {}

    def believed(self, belief: Belief) -> None:
        holding = belief.holding
        last = self._last.get(holding.key, 0)
        if holding.fence <= last:
            self.fail(f"{belief} came after fence {last}")
        self._last[holding.key] = holding.fence
        level = self.quorum.forgot_since(belief.attempt.started_at)
        for server in self.quorum.servers:
            found = server.holder(holding.key)
            level += found is not None and found[0] == holding.owner and found[2] >= holding.fence
        # One whose lease there has ended meanwhile has no deadline left either.
        if level < self.quorum.majority and holding.held(belief.process.now()):
            self.fail(f"{belief} has a fence that only {level} servers have")


class DeadlineFirst(QuorumProperty):
    """Until its holder's deadline, a majority keeps a lease, or recovers from having forgotten it."""

    name = "P7 deadline first"

    def after_event(self) -> None:
        if not self.truth.touched:
            return
        self.truth.touched = False
        for belief in self.truth.beliefs:
            holding = belief.holding
            if holding.held(belief.process.now()):
                deadline = belief.process.true_time(holding.deadline)
                keeping = sum(self._keeps(server, holding, deadline) for server in self._servers)
                if keeping < self.quorum.majority:
                    self.fail(f"{belief} counts on its lease until {deadline}: {keeping} keep it")

    @property
    def _servers(self) -> Any:
        return self.quorum.servers

    def _keeps(self, server: Any, holding: Holding, deadline: float) -> bool:
        if server.lost_at + self.quorum.recovery / 1.01 >= deadline:
            return True
        found = server.holder(holding.key)
        return found is not None and found[0] == holding.owner and found[1] >= deadline


class LeavesNothing(QuorumProperty):
    """An attempt that ended leaves nothing on any server, and nothing is renewed for it."""

    name = "P6 cancelled"

    def __init__(self, truth: Truth) -> None:
        super().__init__(truth)
        pause_of_a_debt = 0.51
        self.at_once = 2 * self.round_trips
        if (
            truth.minor
        ):  # The keeper releases what is pending one by one, and waits for a silent server once.
            self.at_once += truth.swarm.op_timeout
        self.bound = self.at_once + truth.swarm.op_timeout + pause_of_a_debt

    def sent(self, process: Process, request: Request) -> None:
        if isinstance(request, Refresh):
            for pulse in request.pulses:
                attempt = self.truth.by_owner[pulse.owner]
                if attempt.ended_at is not None:
                    self.fail(f"{process.name} sent {pulse} for {attempt.name}, which has ended")
        elif isinstance(request, Release):
            self.truth.sometimes("released")

    def audit(self) -> None:
        for server in self.truth.well:
            for key, owner in server.owners():
                attempt = self.truth.by_owner[owner]
                if self._should_be_clean(attempt):
                    self.fail(
                        f"{attempt.name} has ended, and left {owner} on {key} at {server.number}"
                    )

    def _should_be_clean(self, attempt: Any) -> bool:
        if attempt.ended_at is None or attempt.process_dead or attempt.client.keeper.is_closed:
            return False
        if attempt.started_at <= self.truth.forgot_at:
            return False  # The mark that would refuse its late request may be forgotten too.
        gave_up = self.world.now - attempt.ended_at >= attempt.plan.terms.ttl / 1.01
        calm = self.truth.disturbed_until < attempt.started_at
        bound = self.at_once if calm else self.bound
        return not gave_up and self.undisturbed_for(attempt.ended_at) > bound


class WakeUp(QuorumProperty):
    """A key that nobody has is had by somebody who waits for it, in bounded time."""

    name = "P4 wake-up"

    def __init__(self, truth: Truth) -> None:
        super().__init__(truth)
        self.bound = BEAT * 1.01 + HANDOFF + ROUNDS * self.round_trips
        self._busy_at: dict[str, float] = {}

    def audit(self) -> None:
        for key in {*self.truth.wants.values()}:
            if self._is_busy(key):
                self._busy_at[key] = self.world.now
        for owner, key in self.truth.wants.items():
            if self.truth.is_asking(owner):
                since = max(self._busy_at.get(key, 0.0), self.truth.by_owner[owner].started_at)
                if self.undisturbed_for(since) > self.bound + self.truth.waits_for_minor_faults():
                    self.fail(f"{key} is free, and {owner} waits for it in vain")

    def _is_busy(self, key: str) -> bool:
        if self.quorum.recovering(self.world.now) > len(self.quorum.servers) - self.quorum.majority:
            return True
        if any(belief.holding.key == key for belief in self.truth.beliefs):
            return True
        holders = [found[0] for each in self.quorum.servers if (found := each.holder(key))]
        if any(self.truth.by_owner[owner].over for owner in holders):
            return True
        return any(holders.count(owner) >= self.quorum.majority for owner in holders)


class InTurn(QuorumProperty):
    """Nobody holds a key before one that came earlier, whatever the clocks of both show.

    Servers say who came earlier, whose clocks differ a little.
    """

    name = "P5 fifo"

    def __init__(self, truth: Truth) -> None:
        super().__init__(truth)
        self.bound = APART + ROUNDS * self.round_trips
        self._came_at: dict[str, float] = {}

    def sent(self, process: Process, request: Request) -> None:
        if isinstance(request, Acquire):
            self._came_at.setdefault(request.claim.owner, self.world.now)

    def believed(self, belief: Belief) -> None:
        holding = belief.holding
        key, came_at = holding.key, self._came_at[holding.owner]
        for owner, earlier in self._came_at.items():
            if earlier + self.bound < came_at and self._waits(owner, key, earlier):
                self.fail(f"{belief} passed {owner}, which came {came_at - earlier:.3f} s before")

    def _waits(self, owner: str, key: str, since: float) -> bool:
        return (
            self.truth.wants[owner] == key
            and self.truth.is_asking(owner)
            and owner not in self.truth.busy
            and self.truth.disturbed_until < since
        )


class QuorumLive(Live):
    """The same as of one server, if more slowly."""

    def __init__(self, truth: Truth) -> None:
        super().__init__(truth)
        assert isinstance(truth, QuorumTruth)
        self.round_trips = ROUNDS * self.round_trips + truth.waits_for_minor_faults()
        self._solid = truth.solid

    def lost(self, attempt: Attempt, loss: LeaseLost) -> None:
        if self._solid.issuperset(attempt.owners):
            super().lost(attempt, loss)

    def released(
        self,
        attempt: Attempt,
        holdings: Sequence[Holding],
        had_lost: Sequence[Holding],
        loss: LeaseLost | None,
    ) -> None:
        if loss and not had_lost:
            self.lost(attempt, loss)


class QuorumHonest(Honest):
    """The same, where nobody else has got some of the servers that are not at fault."""

    truth: QuorumTruth

    def refused(self, attempt: Attempt, error: WeblockError, after: float) -> None:
        for key in attempt.plan.keys:
            holders = [found[0] for each in self.truth.well if (found := each.holder(key))]
            if self.truth.minor and not set(attempt.owners).issuperset(holders):
                return
        super().refused(attempt, error, after)


class QuorumNoLeak(NoLeak):
    """Nothing is left on any server, nor in what a process remembers of its acquisitions."""

    truth: QuorumTruth

    def at_end(self) -> None:
        for server in self.truth.quorum.servers:
            if left := list(server.owners()):
                self.fail(f"{left} are left at {server.number}")
        for client in self.truth.clients:
            engine: Any = client.engine  # type: ignore[attr-defined]
            now = client.process.now()
            left = [
                owner
                for owner, acquisition in engine.acquisitions.items()
                if acquisition.forgotten_at > now
            ]
            if left and not client.process.dead and not client.keeper.is_closed:
                self.fail(f"{left} are remembered in {client.process.name}")
        super().at_end()


PROPERTIES: Final[tuple[type[Property], ...]] = (
    Mutex,
    Fences,
    WakeUp,
    InTurn,
    LeavesNothing,
    DeadlineFirst,
    ToldInTime,
    QuorumLive,
    QuorumNoLeak,
    QuorumHonest,
)

__all__ = ["PROPERTIES", "SLACK", "QuorumTruth"]
