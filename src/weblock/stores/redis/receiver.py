"""The thread that receives notifications for the blocking face: one subscription for all."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from typing import Any, Final

from redis import exceptions

from ..._core.ports import Ask, Switchboard
from ..._platform.logs import Repeats, logger
from ..._platform.threads import BackgroundThread
from .blocking import BlockingLink
from .calls import packed
from .failures import NOT_RUNG, explained
from .rings import ring_waiter
from .settings import Address

LISTENED_IN: Final = 5.0
"""Seconds of silence after which a subscription is checked."""

_PING: Final = packed("PING")

LONGEST_PAUSE: Final = 2.0

REFUSED_PAUSE: Final = 60.0


class Receiver:
    """Listens on one channel, from when the first caller waits.

    Whenever it has (re)subscribed, all waiters ask again: a notification may have been lost before.
    """

    def __init__(
        self,
        channel: str,
        switchboard: Switchboard,
        connect: Callable[[], BlockingLink],
        serves: Callable[[Address], bool],
        *,
        trusted: bool,
        on_quiet: Callable[[], None],
    ) -> None:
        self.channel = channel
        self._switchboard = switchboard
        self._connect = connect
        self._serves = serves
        self._trusted = trusted
        self._on_quiet = on_quiet
        self._thread = BackgroundThread("weblock-receiver", self._run)
        self._ended = threading.Event()
        self._link: BlockingLink | None = None

    def listen(self) -> None:
        """Start listening, if that has not been done."""
        if not self._ended.is_set():
            self._thread.start()

    def close(self, timeout: float = 1.0) -> None:
        self._ended.set()
        if link := self._link:
            link.discard()
        self._thread.join(timeout)

    def move(self) -> None:
        """Make the thread listen elsewhere, if its server is no longer one of ours."""
        link = self._link
        if link and not self._serves(link.address):
            link.discard()

    def _run(self) -> None:
        pause, failures = 0.05, Repeats()
        while not self._ended.is_set():
            try:
                self._subscribe()
                pause = 0.05
                self._hear()
            except exceptions.NoPermissionError as error:
                logger.warning(NOT_RUNG, explained(error))
                pause = REFUSED_PAUSE
            except (exceptions.RedisError, OSError) as error:
                logger.debug("the weblock receiver lost its connection: %s", error)
            except Exception:
                # If it has ended, it was closed while it was in use.
                if not self._ended.is_set() and (times := failures.count()):
                    logger.exception(
                        "the weblock receiver failed, and goes on (failure %d in a row)", times
                    )
            finally:
                if self._link:
                    self._link.discard()
            self._ended.wait(pause * (0.5 + random.random() / 2))
            pause = min(max(LONGEST_PAUSE, pause), 2 * pause)

    def _subscribe(self) -> None:
        self._link = link = self._connect()
        if self._ended.is_set():  # It was closed before there was anything to discard.
            return
        link.send(packed("SUBSCRIBE", self.channel))

    def _hear(self) -> None:
        link, asked = self._link, False
        while link is not None and not self._ended.is_set():
            if messages := link.heard():
                asked = False
                for message in messages:
                    self._heard(message)
            elif asked:
                raise exceptions.TimeoutError("the subscription is silent")
            else:
                self._on_quiet()
                link.send(_PING)
                asked = True

    def _heard(self, message: Any) -> None:
        if isinstance(message, Exception):
            raise message
        match message:
            case [b"message", _, payload]:
                ring_waiter(self._switchboard, payload, trusted=self._trusted)
            case [b"subscribe", *_]:
                self._switchboard.ring_all(Ask())
