"""Faults of processes and of the engine, at random times until all is calm."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .client import Client
    from .schedule import Schedule


class Faults:
    """Plans the faults of a schedule, and lets them happen."""

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self._world = schedule.world
        self._truth = schedule.truth
        swarm = schedule.swarm
        self._plan(swarm.stops, self._stop_process)
        self._plan(swarm.crashes, self._kill_process)
        self._plan(swarm.closes, self._close_process)
        self._plan(swarm.engine_stops, self._stop_engine)
        self._plan(swarm.restarts, self._restart_engine)

    def _plan(self, count: int, fault: Callable[[], None]) -> None:
        for _ in range(count):
            self._world.after(self._world.random.random() * self._schedule.swarm.calm_at, fault)

    def _lasting(self, longest: float) -> float:
        """A random length of time that ends before all is calm."""
        left = self._schedule.swarm.calm_at - self._world.now
        return min(left, longest * self._world.random.random())

    def _some_client(self) -> Client | None:
        clients = [client for client in self._truth.clients if client.process.running]
        return self._world.random.choice(clients) if clients else None

    def _stop_process(self) -> None:
        client = self._some_client()
        if client is None:
            return
        self._truth.begin_fault("process stopped")
        self._world.note("stops", client.process.name)
        client.process.stop()
        lasting = self._lasting(2.5 * self._schedule.swarm.ttl)
        self._world.after(lasting, partial(self._resume_process, client))

    def _resume_process(self, client: Client) -> None:
        self._truth.end_fault("process stopped")
        self._world.note("resumes", client.process.name)
        client.process.resume()
        if not client.process.dead:
            self._truth.resumed(client)

    def _kill_process(self) -> None:
        client = self._some_client()
        if client is None:
            return
        self._world.note("FAULT kill", client.process.name)
        client.process.kill()
        self._truth.died(client)
        if self._schedule.swarm.deaths_known:
            self._schedule.network.tell_of_a_death()
        self._schedule.replace(client)

    def _close_process(self) -> None:
        client = self._some_client()
        if client is None:
            return
        self._world.note("closes", client.process.name)
        if any(belief.process is client.process for belief in self._truth.beliefs):
            self._truth.sometimes("closed while holding")
        client.keeper.close()
        self._schedule.replace(client)

    def _stop_engine(self) -> None:
        self._truth.begin_fault("engine stopped")
        self._schedule.engine.stop()
        self._world.after(self._lasting(2.0), self._resume_engine)

    def _resume_engine(self) -> None:
        self._truth.end_fault("engine stopped")
        self._schedule.engine.resume()

    def _restart_engine(self) -> None:
        self._truth.begin_fault("engine down")
        forget = self._schedule.swarm.amnesia
        self._schedule.engine.crash(forget=forget)
        self._world.after(self._lasting(1.0), self._start_engine)

    def _start_engine(self) -> None:
        self._truth.end_fault("engine down")
        self._schedule.engine.restart()
