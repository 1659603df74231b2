"""Notifications: what is published to a waiter's process when its turn has come.

The blocking API has a thread that receives them, on one subscription for all waiters; each event loop
receives its own on the link that it asks on (``aio``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from redis import exceptions

from ..._core.ports import Ask, Switchboard
from ..._platform.logs import logger
from ..transport.listener import Listener, from_notification
from .calls import packed
from .servers import explained
from .settings import Address

if TYPE_CHECKING:
    from .blocking import BlockingLink

NOT_RUNG: Final = "those who wait for locks cannot be rung, and look once a second instead: %s"

LISTENED_IN: Final = 5.0
"""Seconds of silence after which a subscription is checked."""

REFUSED_PAUSE: Final = 60.0


class Bell(NamedTuple):
    """How the waiters of a thread or a loop are rung."""

    channel: str
    switchboard: Switchboard
    serves: Callable[[Address], bool]
    """Returns whether a server publishes what its waiters need."""
    trusted: bool = True
    """Whether a notification is a lease. Where that counts only with replicas, the waiter has to ask."""

    def pass_on(self, pushed: Any) -> None:
        """Pass on what a subscription has received.

        What is no notification is dropped: any client with the right to publish may send it.
        """
        match pushed:
            case [b"message", _, bytes() as payload]:
                if found := from_notification(payload.decode(errors="replace")):
                    owner, message = found
                    self.switchboard.ring(owner, message if self.trusted else Ask())
            case [b"subscribe", *_]:  # A notification may have been lost before.
                self.switchboard.ring_all(Ask())


class Receiver:
    """Listens on one channel, from when the first caller waits."""

    def __init__(
        self, bell: Bell, connect: Callable[[], BlockingLink], on_quiet: Callable[[], None]
    ) -> None:
        self.bell = bell
        self._on_quiet = on_quiet
        self._listener = Listener(connect, self._hear, lost=(exceptions.RedisError,))
        self.listen = self._listener.start
        self.close = self._listener.close

    def move(self) -> None:
        """Make the thread listen elsewhere, if its server is no longer one of ours."""
        link = self._listener.connection
        if link and not self.bell.serves(link.address):
            self._listener.hang_up()

    def _hear(self, link: BlockingLink) -> None:
        link.send(packed("SUBSCRIBE", self.bell.channel))
        asked = False
        while not self._listener.ended.is_set():
            messages = link.heard()
            if not messages and asked:
                raise exceptions.TimeoutError("the subscription is silent")
            asked = not messages
            if asked:
                self._on_quiet()
                link.send(packed("PING"))
            for message in messages:
                if isinstance(message, exceptions.NoPermissionError):
                    logger.warning(NOT_RUNG, explained(message))
                    link.discard()
                    self._listener.ended.wait(REFUSED_PAUSE)
                    return
                if isinstance(message, Exception):
                    raise message
                self.bell.pass_on(message)
