"""The thread that notifies the waiters of this process: one connection that listens for all.

Behind a pooler that gives a connection away after each transaction nobody can listen. Then the
thread asks at intervals which of the waiters have been granted their key.
"""

from __future__ import annotations

import json
import random
import re
import secrets
import threading
from collections.abc import Callable
from functools import partial
from typing import Final

import psycopg

from ..._core.ports import Ask, Grasp, Switchboard
from ..._platform.greenlets import do_at_home
from ..._platform.logs import logger
from ..._platform.threads import BackgroundThread
from .blocking import BlockingLink
from .failures import explained
from .rows import granted_in
from .settings import Settings
from .statements import PING, Statement, Statements

POLL: Final = 0.25
"""Seconds between two looks where nobody can listen."""

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
        statements: Statements,
        switchboard: Switchboard,
        connect: Callable[[], BlockingLink],
    ) -> None:
        self._settings = settings
        self._statements = statements
        self._switchboard = switchboard
        self._connect = connect
        self._thread = BackgroundThread("weblock-receiver", self._run)
        self._ended = threading.Event()
        self._told = False
        self.channel = f"weblock_{secrets.token_hex(8)}"
        self._link: BlockingLink | None = None
        self._waiters: dict[str, str] = {}

    def watch(self, key: str, owner: str) -> None:
        """Notify a waiter when it has been granted the key."""
        if do_at_home(partial(self.watch, key, owner)):
            return
        self._waiters[owner] = key
        if not self._ended.is_set():
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
                    self._poll(link)
                else:
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
                self._forget_others()
                link.ask(PING)

    def _poll(self, link: BlockingLink) -> None:
        if not self._told:
            self._told = True
            logger.warning(
                "%s is reached through a pooler, where LISTEN does not work: waiters are notified"
                " within %g s. For faster hand-overs, give the address of the server itself",
                self._settings.name,
                POLL,
            )
        while not self._ended.wait(POLL * (0.75 + random.random() / 2)):
            self._forget_others()
            keys = json.dumps(sorted(set(self._waiters.values())))
            for granted, listed in link.ask(self._statements.granted, keys, self.channel):
                if granted:
                    self._ring(granted.decode())
                for owner, grasp in granted_in(listed or b"", self.channel):
                    self._ring(payload_of(owner, grasp))

    def _forget_others(self) -> None:
        """Forget those that do not wait any more."""
        for owner in tuple(self._waiters):
            if owner not in self._switchboard.bells:
                self._waiters.pop(owner, None)

    def _ring(self, payload: str) -> None:
        """Tell a waiter. What the server's clock does not explain makes it ask."""
        if parts := _PAYLOAD.fullmatch(payload):
            fence, until = int(parts[2]), float(parts[3])
            plausible = fence <= until * 1e6 + AHEAD
            self._switchboard.ring(parts[1], Grasp(fence, until) if plausible else Ask())
        else:
            logger.debug("dropped a notification that is none of ours")
