"""Objects that heed forks, in a child."""

from __future__ import annotations

import os
import sys

from tests.support.forks import fork
from weblock._platform.forks import reset_after_fork


class Heeding:
    """Writes down that it was called; equal to all others, so that nothing can be hashed."""

    def __init__(self, name: bytes, called: int, error: Exception | None = None) -> None:
        self.name = name
        self.called = called
        self.error = error

    def after_fork(self) -> None:
        os.write(self.called, self.name)
        if self.error:
            raise self.error

    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = None  # type: ignore[assignment]


def test_each_is_called_once_in_the_order_of_their_coming(monkeypatch) -> None:
    """One that fails or was forgotten keeps none of the others from being called."""
    monkeypatch.setattr(sys, "unraisablehook", lambda _error: None)
    called, end = os.pipe()
    first = Heeding(b"1", end)
    failing = Heeding(b"2", end, ValueError("a failure"))
    forgotten = Heeding(b"3", end)
    last = Heeding(b"4", end)
    for each in (first, failing, forgotten, last, first):
        reset_after_fork(each)
    del forgotten, each
    child = fork()
    if not child:
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(called, 100) == b"124"
    os.close(called)
    os.close(end)
