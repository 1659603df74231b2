"""Notes the events that locks tell, in the order in which they happen."""

from __future__ import annotations

from typing import TypeVar

from weblock import Observer
from weblock.events import Event

E = TypeVar("E", bound=Event)


class Heard(list[Event]):
    """The events of the locks that were given its ``observer``."""

    def __init__(self) -> None:
        super().__init__()
        self.observer = Observer(self.append, immediate=True)

    def of(self, kind: type[E]) -> list[E]:
        return [event for event in self if isinstance(event, kind)]

    @property
    def names(self) -> list[str]:
        return [event.name for event in self]
