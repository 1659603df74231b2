"""The thread that notifies the waiters of this process: one connection that listens for all.

A pooler that gives a connection away after each transaction makes LISTEN useless. Behind one, waiters
learn with their next heartbeat that they have been granted their key.
"""

from __future__ import annotations

import random
import re
import secrets
import threading
from collections.abc import Callable
from typing import Final

import psycopg

from ..._core.ports import Ask, Grasp, Switchboard
from ..._platform.logs import logger
from ..._platform.threads import BackgroundThread
from .blocking import BlockingLink
from .failures import explained
from .settings import Settings
from .statements import PING, Statement

LISTENED_IN: Final = 5.0
"""Seconds of silence after which a connection is asked whether it lives."""

LONGEST_PAUSE: Final = 2.0

AHEAD: Final = 1_000_000
"""By how many microseconds a fence may be ahead of the server's clock."""

_PAYLOAD: Final = re.compile(r"([!-~]{1,200}) ([0-9]{1,18}) ([0-9]{1,12}\.?[0-9]{0,9})")


def payload_of(owner: str, grasp: Grasp) -> str:
    """Return what a process is notified of: one of its waiters has the lease now."""
    return f"{owner} {grasp.fence} {grasp.until:f}"


class Receiver:
    """Listens on one channel, from when the first caller waits.

    Whenever it has begun to listen, all waiters ask again: a notification may have been lost before.
    """

    def __init__(
        self,
        settings: Settings,
        switchboard: Switchboard,
        connect: Callable[[], BlockingLink],
    ) -> None:
        self._settings = settings
        self._switchboard = switchboard
        self._connect = connect
        self._thread = BackgroundThread("weblock-receiver", self._run)
        self._ended = threading.Event()
        self.channel = f"weblock_{secrets.token_hex(8)}"
        self._link: BlockingLink | None = None
        self._pooled = False

    def start(self) -> None:
        """Listen from now on."""
        if not self._pooled and not self._ended.is_set():
            self._thread.start()

    def close(self, timeout: float = 1.0) -> None:
        self._ended.set()
        if link := self._link:
            link.wake()
        self._thread.join(timeout)

    def _run(self) -> None:
        pause = 0.05
        while not self._ended.is_set():
            try:
                self._link = link = self._connect()
                if self._ended.is_set():  # It was closed before there was anything to wake.
                    return
                pause = 0.05
                if link.dialogue.pooled:
                    self._pooled = True
                    logger.warning(
                        "%s is reached through a pooler, where LISTEN does not work: a waiter gets a key"
                        " up to a second after its release. For faster hand-overs, give the address of"
                        " the server itself",
                        self._settings.name,
                    )
                    return
                self._listen(link)
            except (psycopg.Error, TimeoutError, OSError) as error:
                if not self._ended.is_set():
                    reason = explained(self._settings, error)
                    logger.debug("the weblock receiver lost its connection: %s", reason)
            finally:
                if self._link:
                    self._link.close()
            self._ended.wait(pause * (0.5 + random.random() / 2))
            pause = min(LONGEST_PAUSE, 2 * pause)

    def _listen(self, link: BlockingLink) -> None:
        link.ask(Statement(f'LISTEN "{self.channel}"'))
        self._switchboard.ring_all(Ask())
        while not self._ended.is_set():
            heard = link.heard(LISTENED_IN)
            for _channel, payload in heard:
                self._ring(payload)
            if not heard:
                link.ask(PING)

    def _ring(self, payload: str) -> None:
        """Tell a waiter. What the server's clock does not explain makes it ask."""
        if parts := _PAYLOAD.fullmatch(payload):
            fence, until = int(parts[2]), float(parts[3])
            plausible = fence <= until * 1e6 + AHEAD
            self._switchboard.ring(parts[1], Grasp(fence, until) if plausible else Ask())
        else:
            logger.debug("dropped a notification that is none of ours")
