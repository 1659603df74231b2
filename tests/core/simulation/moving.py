"""Leases that move on, in the simulator: givers, takers and tokens that are delivered twice.

A schedule has processes with clocks of their own, a network that is late, loses and repeats, and
processes that are stopped or killed. After every event, at most one process may believe in a lease.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, replace
from functools import partial
from random import Random
from typing import Any, Final

from tests.support.tokens import facts_of, sealed
from weblock._core import moving
from weblock._core.holding import Holding, Status, Terms
from weblock._core.moving import OnItsWay
from weblock.errors import WeblockError

from .client import Client
from .engine import EngineServer
from .network import Network
from .process import Process, Task
from .swarm import Swarm
from .world import World

KEYS: Final = ("ns:a", "ns:b")
HOPS: Final = 3
"""How often a lease moves on, at most."""

LATEST: Final = 400.0
"""Seconds after which everything must have come to its end."""


class Deaf:
    """Is told what becomes of messages, and needs none of it."""

    def __getattr__(self, _name: str) -> Any:
        return lambda *_args, **_kwargs: None


@dataclass
class Belief:
    process: Process
    holding: Holding


class MovingSchedule:
    """Everything that one seed decides; ``run`` raises ``Violation``."""

    def __init__(self, seed: int) -> None:
        self._random = random = Random(seed)
        # Nobody is stopped or killed by the swarm's own faults, which are for another schedule.
        self.swarm = swarm = replace(Swarm.drawn(random), multiplexed=False)
        self.calm = random.random() < 0.2
        if self.calm:
            quiet = dict.fromkeys(("late", "lost_requests", "lost_replies", "duplicates"), 0.0)
            self.swarm = swarm = replace(swarm, **quiet)
        self.world = World(random)
        self.world.most_events = 100_000
        self.world.after_event = self._check
        self.counts: Counter[str] = Counter()
        self._network = Network(self.world, swarm)
        self._dead: set[str] = set()
        self._engine = EngineServer(
            self.world,
            granularity=swarm.granularity,
            alive=lambda process: not (swarm.deaths_known and process in self._dead),
            notify=self._network.notify,
        )
        self._network.connect(self._engine, Deaf())
        self._planned = 0
        self._tasks: list[Task] = []
        self._beliefs: list[Belief] = []
        self._fences: dict[str, int] = {}
        self._takers: Counter[str] = Counter()
        self._clients = [self._client(number) for number in range(3)]
        self._terms = Terms(
            swarm.ttl, None, renew=True, max_waiters=9, label="", drift=max(swarm.drift, 0.01)
        )
        for _ in range(random.randint(2, 5)):
            self._later(random.random() * swarm.spread, self._request, random.sample(KEYS, 1))
        self._later(random.random(), self._request, list(KEYS))
        if not self.calm:
            for _ in range(random.randint(0, 3)):
                self.world.after(random.random() * 5, self._disturb)

    def run(self) -> None:
        """Run it to its end; what is left then must be nothing."""
        try:
            self.world.after(5.0, partial(setattr, self._network, "faulty", False))
            while self._goes_on() and self.world.now < LATEST:
                self.world.run(self.world.now + 1.0)
            if self._goes_on():
                self.world.fail("M4 ends", "something goes on and on")
            self.world.raise_violation()
        finally:
            for client in self._clients:
                client.process.close()

    # What the clients tell.

    def new_owner(self, owner: str, task: Task | None) -> None:
        """Nothing depends on it."""

    def believes(self, client: Client, holding: Holding) -> None:
        """A process has a lease from now on; ``_kept`` compares the fence with what it should be."""
        self._beliefs.append(Belief(client.process, holding))

    # What happens.

    def _client(self, number: int) -> Client:
        swarm, random = self.swarm, self._random
        rate = 1 + swarm.drift * random.choice([-1.0, 1.0, random.uniform(-1, 1)])
        process = Process(self.world, f"p{number}", rate=rate, offset=random.uniform(0, 100))
        return Client(process, self._network, swarm, self)

    def _goes_on(self) -> bool:
        now = self._engine.now()
        grants = [state.grant for state in self._engine.states.values()]
        return (
            self._planned > 0
            or any(not task.done and not task.process.dead for task in self._tasks)
            or any(grant and now < grant.until for grant in grants)
        )

    def _later(self, delay: float, work: Any, *args: Any) -> None:
        self._planned += 1
        self.world.after(delay, partial(self._start, work, *args))

    def _start(self, work: Any, *args: Any) -> None:
        client = self._random.choice([each for each in self._clients if not each.process.dead])
        self._planned -= 1
        self._tasks.append(client.process.spawn(work(client, *args), work.__name__))

    def _disturb(self) -> None:
        random = self._random
        living = [each for each in self._clients if not each.process.dead]
        process = random.choice(living).process
        if len(living) > 1 and random.random() < 0.4:
            process.kill()
            self._dead.add(process.name)
            self._beliefs = [each for each in self._beliefs if each.process is not process]
        else:
            process.stop()
            self.world.after(random.random() * 2 * self.swarm.ttl, process.resume)

    async def _request(self, client: Client, keys: list[str]) -> None:
        try:
            hands = await client.locker.acquire(keys, self._terms_of_one(), None)
        except WeblockError:
            return
        for holding in hands:
            self._rises(holding)
        await self._section(client, hands, HOPS)

    def _terms_of_one(self) -> Terms:
        return replace(self._terms, renew=self.calm or self._random.random() < 0.6)

    async def _section(self, client: Client, hands: Any, hops: int) -> None:
        """Work for a while, and then release the lease or hand it over."""
        random, locker = self._random, client.locker
        try:
            await client.runtime.sleep(random.random() * self.swarm.section)
            if random.random() < 0.3:
                for holding in hands:
                    await locker.extend(holding, 3 * self.swarm.ttl)
                await client.runtime.sleep(random.random() * 3 * self.swarm.ttl)
            if hops and random.random() < 0.8:
                way = random.choice([0.5, 2.0, 10.0]) * self.swarm.ttl
                token = await moving.hand_over(locker, hands, way)
                self.counts["handed over"] += 1
                self._send(token, way, hops - 1)
            else:
                await locker.release(hands)
        except WeblockError as error:
            self.counts["lost or in doubt"] += 1
            locker.release_later(hands)
            if self.calm:
                self.world.fail("M5 live", f"nothing was in the way, and yet the {error}")

    def _send(self, token: str, way: float, hops: int) -> None:
        """Deliver a token as a broker does: to any process, late, once, twice or never."""
        random = self._random
        deliveries = 2 if self.calm else random.choice([0, 1, 2, 2, 3])
        most = 0.3 * self.swarm.ttl if self.calm else 1.5 * way
        late = random.random() * most
        if random.random() < 0.5:  # Before any other: nobody has taken the lease over yet.
            self._later(random.random() * late, self._forgery, token)
        for _ in range(deliveries):
            together = random.random() < 0.5
            delay = (
                late + random.random() * self.swarm.delay if together else random.random() * most
            )
            self._later(delay, self._job, token, hops, deliveries)

    async def _job(self, client: Client, token: str, hops: int, deliveries: int) -> None:
        leases = moving.leases_in(token)
        try:
            hands = await moving.take_over(client.locker, leases, self._terms_of_one())
        except WeblockError as error:
            self.counts[f"refused: {type(error).__name__}"] += 1
        else:
            self._kept(token, leases, hands)
            await self._section(client, hands, hops)
        if self.calm and deliveries == self.counts[token] + 1 and not self._takers[token]:
            self.world.fail("M5 live", "nobody got a lease, although nothing was in the way")
        self.counts[token] += 1

    async def _forgery(self, client: Client, token: str) -> None:
        """Try a token in which one fact is wrong. Neither the lease nor the true token may change."""
        secret, (key, fence, limit), *others = facts_of(token)
        wrong = self._random.choice([(key, fence + 1, limit), (key, fence, limit + 1)])
        forged = sealed(json.dumps([secret, wrong, *others]))
        try:
            await moving.take_over(client.locker, moving.leases_in(forged), self._terms_of_one())
        except WeblockError:
            self.counts["forgery rejected"] += 1
        else:
            self.world.fail("M7 forgery", f"{forged} was taken over")

    # What must hold.

    def _rises(self, holding: Holding) -> None:
        if holding.fence <= self._fences.get(holding.key, 0):
            self.world.fail("M2 fences", f"{holding.key} has got fence {holding.fence} again")
        self._fences[holding.key] = holding.fence

    def _kept(self, token: str, leases: list[OnItsWay], hands: list[Holding]) -> None:
        self.counts["taken over"] += 1
        self._takers[token] += 1
        if self._takers[token] > 1:
            self.world.fail("M3 one taker", "two have got the lease of one token")
        if [each.fence for each in hands] != [each.fence for each in leases]:
            self.world.fail("M2 fences", f"{leases} has become {[each.fence for each in hands]}")

    def _check(self) -> None:
        held: dict[str, Belief] = {}
        self._beliefs = [each for each in self._beliefs if each.holding.status is Status.HELD]
        for belief in self._beliefs:
            if not belief.holding.held(belief.process.now()):
                continue
            self._is_covered(belief.process, belief.holding)
            another = held.setdefault(belief.holding.key, belief)
            if another is not belief:
                owners = another.holding.owner, belief.holding.owner
                self.world.fail("M1 one holder", f"{owners} hold {belief.holding.key}")

    def _is_covered(self, process: Process, holding: Holding) -> None:
        """A holder relies on its lease for no longer than the engine has it."""
        grant = self._engine.state(holding.key).grant
        covered = (
            grant is not None
            and grant.claim.owner == holding.owner
            and process.true_time(holding.deadline) <= self._engine.true_time(grant.until)
        )
        if not covered:
            self.world.fail("M6 covered", f"{holding.owner} relies on more than {grant}")


def run_seed(seed: int) -> Counter[str]:
    """Run the schedule of a seed, and return what has happened in it. Raises ``Violation``."""
    schedule = MovingSchedule(seed)
    schedule.run()
    return schedule.counts
