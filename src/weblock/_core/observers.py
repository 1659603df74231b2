"""The listeners for what happens to the leases of one ``Locks``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from ..events import Acquired, Answered, Event, Released
from ..keys import template_of

Listener = Callable[[Event], object]
"""Called with an event. It neither raises nor waits."""


class Observers:
    """Listeners, by the kind of event that they want.

    An event is built only ``if Kind in observers.wanted``. For what each request meets, there are
    flags, which cost even less. ``now`` is the clock of the runtime.
    """

    __slots__ = (
        "__weakref__",
        "_engine_fails",
        "engine",
        "heeds_answers",
        "now",
        "wanted",
        "wants_answers",
        "wants_leases",
    )

    heeds_answers: bool
    """Whether an answer of the engine matters: it has failed, or a listener wants all answers."""

    def __init__(self, engine: str, now: Callable[[], float]) -> None:
        self.engine = engine
        self.now = now
        self._engine_fails = self.heeds_answers = False
        self.want({})

    def want(self, wanted: Mapping[type[Event], Sequence[Listener]]) -> None:
        """Replace the listeners."""
        self.wanted = wanted
        self.wants_leases = Acquired in wanted or Released in wanted
        self.wants_answers = Answered in wanted
        self._heed()

    def engine_fails(self, *, fails: bool) -> None:
        """Record whether the last requests to the engine have failed."""
        self._engine_fails = fails
        self._heed()

    def _heed(self) -> None:
        # Until it is so: another thread may change one of the two meanwhile.
        while self.heeds_answers is not (heeds := self._engine_fails or self.wants_answers):
            self.heeds_answers = heeds

    def tell(self, event: Event) -> None:
        """Pass an event to the listeners that want it."""
        for listener in self.wanted.get(type(event), ()):
            listener(event)

    def about(self, name: str, label: str) -> dict[str, Any]:
        """Return the fields of a ``KeyEvent``, for a key as the engine knows it."""
        namespace, _, key = name.partition(":")
        template = template_of(name)
        return {
            "engine": self.engine,
            "namespace": namespace,
            "key": key,
            "template": template,
            "label": label,
        }


NOBODY: Final = Observers("", lambda: 0.0)
"""Observers for code in which nothing can listen."""
