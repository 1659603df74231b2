"""Looking on and taking by force, in the simulator: what a holder that hangs makes of it."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from unittest.mock import Mock

import pytest

from weblock._core.holding import Terms
from weblock._core.table import Released
from weblock.errors import LeaseLost

from .simulation.client import Client
from .simulation.engine import EngineServer
from .simulation.network import Network
from .simulation.process import Process
from .simulation.swarm import Swarm
from .simulation.world import World

TERMS = Terms(ttl=10.0, max_hold=None, renew=True, max_waiters=10, label="")
CALM = replace(
    Swarm.drawn(Random(1)),
    **dict.fromkeys(("late", "lost_requests", "lost_replies", "lost_rings", "duplicates"), 0.0),
    delay=0.005,
)


class Scene:
    """Three processes and an engine, between which nothing is lost."""

    def __init__(self) -> None:
        self.world = World(Random(1))
        self.network = Network(self.world, CALM)
        engine = EngineServer(
            self.world, granularity=0.0, alive=lambda _process: True, ring=self.network.ring
        )
        self.network.connect(engine, Mock())
        self.holder, self.waiter, self.operator = map(
            self._client, ("holder", "waiter", "operator")
        )

    def _client(self, name: str) -> Client:
        process = Process(self.world, name, rate=1.0, offset=0.0)
        return Client(process, self.network, CALM, Mock())

    def does(self, client: Client, work) -> None:
        """Has a process do something, and gives it half a second."""
        client.process.spawn(work, "work")
        self.world.run(self.world.now + 0.5)


def labelled(label: str) -> Terms:
    """Terms under a name."""
    return replace(TERMS, label=label)


def test_a_holder_that_hangs_loses_its_lease_by_force() -> None:
    """The waiter gets the key at once; the holder, when it goes on, is told at its renewal."""
    scene = Scene()
    hands, got, seen = {}, {}, []

    async def acquire(client: Client) -> None:
        name = client.process.name
        hands[name] = await client.locker.acquire(("ns:key",), labelled(name), None)
        (got[name],) = hands[name]

    async def force() -> None:
        store = scene.operator.locker.store
        seen.extend([await store.names("ns:", 10), await store.names("other:", 10)])
        seen.append((await store.look("ns:key")).state)
        seen.append((await store.force_release("ns:key")).answer)

    scene.does(scene.holder, acquire(scene.holder))
    scene.does(scene.waiter, acquire(scene.waiter))
    scene.holder.process.stop()
    assert list(got) == ["holder"]
    scene.does(scene.operator, force())
    assert seen[:2] == [["ns:key"], []]
    assert seen[2].grant.claim.label == "holder"
    assert [place.claim.label for place in seen[2].queue] == ["waiter"]
    assert seen[3] == Released()
    assert list(got) == ["holder", "waiter"]
    assert got["waiter"].fence > got["holder"].fence

    renewal = got["holder"].due - scene.holder.process.now()
    scene.holder.process.resume()
    scene.world.run(scene.world.now + renewal + 0.5)
    assert got["holder"].reason == "taken"
    with pytest.raises(LeaseLost, match=f"fence {got['holder'].fence}"):
        got["holder"].check(scene.holder.process.now())
    assert got["waiter"].held(scene.waiter.process.now())
