"""The truth: what the engine did, what each process believes, and what has become of whom.

It hears of everything, keeps what the properties need, and asks them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from weblock._core.holding import Holding, Status
from weblock._core.ports import Reply
from weblock._core.table import Busy, Gone, Held
from weblock.errors import LeaseLost, WeblockError

from . import sometimes
from .engine import Acquire, Change, EngineServer, Refresh, Release, Request
from .process import Process, Task
from .swarm import Swarm
from .world import World

if TYPE_CHECKING:
    from .attempts import Attempt
    from .client import Client
    from .properties import Property


class Issued(NamedTuple):
    """A fence that the engine gave at ``now``, after it had lost its memory ``epoch`` times."""

    owner: str
    epoch: int
    now: float


class Belief:
    """A lease that a process believes to have."""

    __slots__ = ("attempt", "deadline", "epoch", "grant", "holding", "process", "refuted_at")

    def __init__(self, holding: Holding, attempt: Attempt, epoch: int) -> None:
        self.holding = holding
        self.attempt = attempt
        self.process = attempt.client.process
        self.epoch = epoch
        self.deadline = holding.deadline
        self.grant: object = None
        self.refuted_at: float | None = None

    def __str__(self) -> str:
        holding = self.holding
        return f"{self.attempt.name} ({holding.owner}, fence {holding.fence} of {holding.key})"


class Truth:
    """Everything that is so, whoever knows it."""

    def __init__(self, world: World, swarm: Swarm, engine: EngineServer) -> None:
        self.world = world
        self.swarm = swarm
        self.engine = engine
        self.epoch = 0
        self.forgot_at = -1.0
        self.counts: Counter[str] = Counter()
        self.clients: list[Client] = []
        self.attempts: dict[str, Attempt] = {}
        self.by_owner: dict[str, Attempt] = {}
        self.beliefs: list[Belief] = []
        self.issued: dict[tuple[str, int], Issued] = {}
        self.handed: set[tuple[str, int]] = set()
        self.served: set[str] = set()
        self.cleaned: set[str] = set()
        self.denied: set[str] = set()
        self._releases: Counter[str] = Counter()
        self.busy: set[str] = set()
        self.rings_lost: set[str] = set()
        self.dead: set[str] = set()
        self.open_faults = 0
        self._disturbed_until = 0.0
        self.properties: list[Property] = []

    def add(self, properties: Sequence[Property]) -> None:
        self.properties = list(properties)
        self._after_event = _overriding(properties, "after_event")
        self._applied = _overriding(properties, "applied")
        self._audit = _overriding(properties, "audit")
        self._sent = _overriding(properties, "sent")
        self._answered = _overriding(properties, "answered")

    # What is so at this moment.

    @property
    def disturbed_until(self) -> float:
        """When the last fault ended that may excuse a delay; now, while one lasts."""
        return self.world.now if self.open_faults else self._disturbed_until

    def alive(self, process: str) -> bool:
        """What the engine knows of a process's death."""
        return not (self.swarm.deaths_known and process in self.dead)

    def is_asking(self, owner: str) -> bool:
        attempt = self.by_owner.get(owner)
        return (
            attempt is not None
            and attempt.ended_at is None
            and attempt.client.process.running
            and not attempt.client.keeper.is_closed
            and owner not in self.served
        )

    def is_lost(self, attempt: Attempt) -> bool:
        return any(
            belief.attempt is attempt and not belief.holding.held(belief.process.now())
            for belief in self.beliefs
        ) or not any(belief.attempt is attempt for belief in self.beliefs)

    def sometimes(self, what: str) -> None:
        self.counts[what] += 1

    # From the world.

    def after_event(self) -> None:
        if not self.beliefs:
            return
        for check in self._after_event:
            check()
        for belief in self.beliefs:
            if belief.holding.status is not Status.HELD:
                held = [each for each in self.beliefs if each.holding.status is Status.HELD]
                self.beliefs = held
                return

    def audit(self) -> None:
        for check in self._audit:
            check()

    def at_end(self) -> None:
        for each in self.properties:
            each.at_end()

    def disturb(self, what: str, lasting: float) -> None:
        self.counts[what] += 1
        self._disturbed_until = max(self._disturbed_until, self.world.now + lasting)

    def begin_fault(self, what: str) -> None:
        self.open_faults += 1
        self.world.note("FAULT", what)
        self.disturb(what, 0.0)

    def end_fault(self, what: str) -> None:
        self.open_faults -= 1
        self.world.note("END OF FAULT", what)
        # A request that met the fault may be waited for a little longer.
        self.disturb(f"end: {what}", self.swarm.op_timeout)

    def died(self, client: Client) -> None:
        """A process was killed: its beliefs die with it, its leases stay in the engine."""
        self.dead.add(client.process.name)
        self.disturb("process killed", 0.0)
        held = [each for each in self.beliefs if each.process is client.process]
        if held:
            self.sometimes("holder killed")
        self.beliefs = [each for each in self.beliefs if each.process is not client.process]

    def resumed(self, client: Client) -> None:
        now = client.process.now()
        for belief in self.beliefs:
            if belief.process is client.process and now >= belief.holding.deadline:
                self.sometimes("lease expired while its holder was stopped")

    # From the engine.

    def applied(self, change: Change) -> None:
        key = change.key
        for granted in change.granted:
            issued = Issued(granted.claim.owner, self.epoch, change.now)
            self.issued.setdefault((key, granted.fence), issued)
        sometimes.of_change(self, change)
        for check in self._applied:
            check(change)
        for grant in change.granted:
            self.handed.add((key, grant.fence))
        for grant in change.after.grants:
            if grant.claim.owner == change.owner:
                self.handed.discard((key, grant.fence))

    def forgot(self) -> None:
        self.epoch += 1
        self.forgot_at = self.world.now
        if self.beliefs:
            self.sometimes("engine forgot leases")
        for each in self.properties:
            each.forgot()

    # From the network.

    def sent(self, process: Process, request: Request) -> None:
        if isinstance(request, Release):
            self._releases[request.owner] += 1
        for check in self._sent:
            check(process, request)

    def reply_lost(self, request: Request, replies: list[Reply]) -> None:
        if isinstance(request, Acquire) and isinstance(replies[0].answer, Held):
            self.sometimes("reply lost after a grant")

    def notification_lost(self, owner: str) -> None:
        self.sometimes("notification lost")
        self.rings_lost.add(owner)

    def answered(self, request: Request, replies: list[Reply]) -> None:
        for check in self._answered:
            check(request, replies)
        if isinstance(request, Release):
            self.cleaned.add(request.owner)
            # One that is repeated, because no answer came, may well find nothing.
            if isinstance(replies[0].answer, Gone) and self._releases[request.owner] == 1:
                self.denied.add(request.owner)
        elif isinstance(request, Acquire):
            if isinstance(replies[0].answer, Busy):
                self.busy.add(request.claim.owner)
        elif isinstance(request, Refresh):
            for pulse, reply in zip(request.pulses, replies, strict=True):
                if isinstance(reply.answer, Gone):
                    self._refuted(pulse.owner, reply.now)

    def _refuted(self, owner: str, now: float) -> None:
        for belief in self.beliefs:
            holding = belief.holding
            if holding.owner == owner and now > self.issued[holding.key, holding.fence].now:
                belief.refuted_at = self.world.now
                self.sometimes("renewal answered Gone")

    # From the clients.

    def new_owner(self, owner: str, task: Task | None) -> None:
        assert task is not None
        attempt = self.attempts[task.name]
        attempt.owners.append(owner)
        self.by_owner[owner] = attempt

    def believes(self, client: Client, holding: Holding) -> None:
        attempt = self.by_owner[holding.owner]
        issued = self.issued.get((holding.key, holding.fence))
        if issued is None or issued.owner != holding.owner:
            self.world.fail(
                "P11 honest", f"{attempt.name} holds fence {holding.fence}, which is {issued}"
            )
            return
        self.served.add(holding.owner)
        belief = Belief(holding, attempt, issued.epoch)
        self.beliefs.append(belief)
        for each in self.properties:
            each.believed(belief)

    # From the attempts.

    def got(self, attempt: Attempt, holdings: Sequence[Holding]) -> None:
        for each in self.properties:
            each.got(attempt, holdings)

    def refused(self, attempt: Attempt, error: WeblockError, after: float) -> None:
        self.sometimes(f"attempt got {type(error).__name__}")
        for each in self.properties:
            each.refused(attempt, error, after)

    def checked(self, attempt: Attempt, holdings: Sequence[Holding]) -> None:
        for each in self.properties:
            each.checked(attempt, holdings)

    def lost(self, attempt: Attempt, loss: LeaseLost) -> None:
        self.sometimes(f"lease lost: {loss.reason}")
        for each in self.properties:
            each.lost(attempt, loss)

    def cancelled(self, attempt: Attempt) -> None:
        sometimes.of_cancellation(self, attempt)

    def released(
        self,
        attempt: Attempt,
        holdings: Sequence[Holding],
        had_lost: Sequence[Holding],
        loss: LeaseLost | None,
    ) -> None:
        for each in self.properties:
            each.released(attempt, holdings, had_lost, loss)

    def ended(self, attempt: Attempt) -> None:
        for each in self.properties:
            each.ended(attempt)


def _overriding(properties: Sequence[Property], hook: str) -> list[Callable[..., None]]:
    """The hooks of those that listen to it: most do not, and this is asked for every event."""
    base = vars(type(properties[0]).__mro__[-2])[hook]
    return [getattr(each, hook) for each in properties if getattr(type(each), hook) is not base]
