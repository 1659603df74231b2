"""What the engines with a server have in common."""

from __future__ import annotations

from typing import Protocol

from ..._core.ports import CheckAgain, Engine, Recovery, Switchboard
from ..._platform.forks import reset_after_fork


class Settings(Protocol):
    """How to reach a server, and how to lock there."""

    @property
    def name(self) -> str:
        """The URL, without secrets and options."""

    @property
    def recovery(self) -> Recovery: ...


class ServerEngine(Engine):
    """The leases on a server, as this process sees them. Its ``after_fork`` also opens what it needs."""

    scope = "cluster"

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.name = settings.name
        self.recovery = settings.recovery
        self.after_fork()
        reset_after_fork(self)

    def after_fork(self) -> None:
        """Begin with nothing open."""
        self.switchboard = Switchboard()

    def close(self) -> None:
        """End all connections. Callers that still wait here are notified."""
        self.switchboard.notify_all(CheckAgain())
