"""Items as the cells that ``CellStore`` works on, and waiters' bells."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from ..._core.ports import Grasp, Runtime
from ...errors import EngineUnavailable
from ..cells import Done, Transition
from .items import Items

if TYPE_CHECKING:
    from . import MemcachedEngine

T = TypeVar("T")


class ItemCells:
    """The items, for one runtime."""

    def __init__(self, engine: MemcachedEngine, runtime: Runtime) -> None:
        self._threads = engine.threads
        self._runtime = runtime
        self._items = Items(engine, runtime)

    async def update(self, key: str, transition: Transition, *, patience: float) -> Done:
        return await self._do(partial(self._items.update, key, transition, patience))

    async def update_many(
        self, changes: Mapping[str, Transition], *, patience: float
    ) -> dict[str, Done | EngineUnavailable]:
        return await self._do(partial(self._items.update_many, changes, patience))

    async def names(self, prefix: str, *, patience: float) -> list[str]:
        return await self._do(partial(self._items.keys, prefix, patience))

    async def mark(self, key: str, keep: float | None) -> None:
        await self._do(partial(self._items.put_note, key, keep))

    async def marked(self, key: str) -> bool:
        return await self._do(partial(self._items.has_note, key))

    async def _do(self, work: Callable[[], T]) -> T:
        return await self._threads.do(self._runtime, work)


class LookoutBells:
    """Notifies waiters of this process; those of other processes poll."""

    def __init__(self, engine: MemcachedEngine, runtime: Runtime) -> None:
        self._engine = engine
        self._runtime = runtime

    @property
    def process(self) -> str:
        return self._engine.observer.process

    def ring(self, process: str, owner: str, grasp: Grasp) -> None:
        if process == self.process:
            self._engine.switchboard.ring(owner, grasp)

    def watch(self, key: str, owner: str, ahead: Sequence[str], *, first: bool) -> None:
        self._engine.lookout.attend(key, self._runtime)

    def close_up(self, process: str, owner: str) -> None:
        pass  # The lookout sees whatever happens to the key.
