"""The thread that notifies the waiters of this process: one connection that listens for all.

A pooler that gives a connection away after each transaction makes LISTEN useless. Behind one, waiters
learn with their next heartbeat that they have been granted their key.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from typing import Final

import psycopg

from ..._core.ports import CheckAgain, Switchboard
from ..._platform.logs import logger
from ..cells import LocalBells
from ..transport.listener import Listener, from_notification
from .links import BlockingLink
from .settings import Settings
from .statements import PING

LISTENED_IN: Final = 5.0
"""Seconds of silence after which a connection is asked whether it lives."""


class Receiver(LocalBells):
    """The bells of PostgreSQL. It listens on one channel, from when the first caller waits.

    Waiters of this process are notified directly; those of others with the row that they get.
    """

    def __init__(
        self, settings: Settings, switchboard: Switchboard, connect: Callable[[], BlockingLink]
    ) -> None:
        self._settings = settings
        super().__init__(switchboard)
        self._listener = Listener(connect, self._hear, lost=(psycopg.Error,))
        self.process = f"weblock_{secrets.token_hex(8)}"
        self.close = self._listener.close

    def watch(self, key: str, owner: str, ahead: Sequence[str], *, first: bool) -> None:
        self._listener.start()

    def _hear(self, link: BlockingLink) -> None:
        ended = self._listener.ended
        if link.pooled:
            ended.set()
            logger.warning(
                "%s is reached through a pooler, where LISTEN does not work: a waiter gets a key up to a"
                " second after its release. For faster hand-overs, give the address of the server itself",
                self._settings.name,
            )
            return
        link.ask(f'LISTEN "{self.process}"'.encode())
        self._switchboard.ring_all(CheckAgain())  # A notification may have been lost before.
        while not ended.is_set():
            heard = False
            for payload in link.heard(LISTENED_IN):
                heard = True
                if found := from_notification(payload):
                    self._switchboard.ring(*found)
            if not heard:
                link.ask(PING)
