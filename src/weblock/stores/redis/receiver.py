"""The thread that receives notifications for the blocking API: one subscription for all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from redis import exceptions

from ..._core.ports import Ask, Switchboard
from ..._platform.logs import logger
from ..transport.listener import Listener
from .blocking import BlockingLink
from .calls import packed
from .failures import NOT_RUNG, explained
from .rings import ring_waiter
from .settings import Address

LISTENED_IN: Final = 5.0
"""Seconds of silence after which a subscription is checked."""

_PING: Final = packed("PING")

REFUSED_PAUSE: Final = 60.0


class Receiver:
    """Listens on one channel, from when the first caller waits."""

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
        self._serves = serves
        self._trusted = trusted
        self._on_quiet = on_quiet
        self._listener = Listener(connect, self._hear, lost=(exceptions.RedisError,))
        self.listen = self._listener.start
        self.close = self._listener.close

    def move(self) -> None:
        """Make the thread listen elsewhere, if its server is no longer one of ours."""
        link = self._listener.connection
        if link and not self._serves(link.address):
            self._listener.hang_up()

    def _hear(self, link: BlockingLink) -> None:
        link.send(packed("SUBSCRIBE", self.channel))
        asked = False
        while not self._listener.ended.is_set():
            messages = link.heard()
            if not messages and asked:
                raise exceptions.TimeoutError("the subscription is silent")
            asked = not messages
            if asked:
                self._on_quiet()
                link.send(_PING)
            for message in messages:
                match message:
                    case exceptions.NoPermissionError():
                        logger.warning(NOT_RUNG, explained(message))
                        link.discard()
                        self._listener.ended.wait(REFUSED_PAUSE)
                        return
                    case Exception():
                        raise message
                    case [b"message", _, payload]:
                        ring_waiter(self._switchboard, payload, trusted=self._trusted)
                    case [b"subscribe", *_]:  # A notification may have been lost before.
                        self._switchboard.ring_all(Ask())
