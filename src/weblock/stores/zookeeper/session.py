"""The transport: one kazoo client for a process, and how callers wait for what it receives.

Requests take effect in the order in which they were sent. A release therefore undoes an acquire that
was sent before it, even if no caller waits for the answer to that any more, and no renewal overtakes
an extension, which would take back what its holder was promised.

kazoo guards its results by a ``threading.Condition``, which is written in Python. An exception that a
signal handler raises inside of it leaves it locked for good, and then the thread that receives all
answers waits forever. Here the lock is entered and left in C, and a caller waits for a message.
"""

from __future__ import annotations

import atexit
import contextlib
import queue
import socket
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from kazoo.client import KazooClient
from kazoo.handlers import utils
from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.protocol.states import KazooState, KeeperState
from kazoo.security import CREATOR_ALL_ACL

from ..._core.ports import CheckAgain, Mailbox
from ..._platform.forks import close_in_children
from ..._platform.threads import background_thread
from .. import marks
from ..transport.sending import taken_out
from .nodes import LEASE, VERSION, name_of_key

if TYPE_CHECKING:
    from . import Settings

_CLOSING: Final = 5.0
"""Seconds to wait for the servers to confirm the end of a session."""

_RLock: Any = type(threading.RLock())


class _Condition(_RLock):  # type: ignore[misc]
    """What kazoo uses of a condition: it notifies those that wait."""

    def __init__(self) -> None:
        super().__init__()
        self.mailboxes: list[Mailbox] = []

    def notify_all(self) -> None:
        for mailbox in taken_out(self.mailboxes):
            mailbox.put(CheckAgain())


class AsyncResult(utils.AsyncResult):  # type: ignore[misc]
    """The result of one request, or why there is none."""

    def __init__(self, handler: Handler) -> None:
        condition = _Condition()
        self._mailboxes = condition.mailboxes
        super().__init__(handler, lambda: condition, handler.timeout_exception)

    async def answer(self, new_mailbox: Callable[[], Mailbox], timeout: float) -> Any:
        """Wait for the result: the thread that stores it puts a message into a mailbox. Raises kazoo's errors."""
        if not self.ready():
            mailbox = new_mailbox()
            self._mailboxes.append(mailbox)
            try:
                if not self.ready():  # Perhaps it has arrived before the mailbox was there.
                    await mailbox.heard(timeout)
            finally:
                with contextlib.suppress(ValueError):
                    self._mailboxes.remove(mailbox)
        return self.get(block=False)


class _Queue(queue.SimpleQueue[Any]):
    """A queue of callbacks. kazoo tells it of each that is done, and never waits for that."""

    def task_done(self) -> None:
        """Do nothing."""


class Handler(SequentialThreadingHandler):  # type: ignore[misc]
    """kazoo's threads and sockets, with the results and queues of this module."""

    queue_impl = _Queue

    def __init__(self) -> None:
        super().__init__()
        self._connections: list[socket.socket] = []

    def start(self) -> None:
        super().start()
        # A forked child would wait at its end for threads that run in its parent.
        atexit.unregister(self.stop)

    def async_result(self) -> AsyncResult:
        return AsyncResult(self)

    def create_connection(self, *args: Any, **options: Any) -> socket.socket:
        connection: socket.socket = super().create_connection(*args, **options)
        close_in_children(connection)
        self._connections = [
            connection,
            *(each for each in self._connections if each.fileno() >= 0),
        ]
        return connection

    def create_socket_pair(self) -> tuple[socket.socket, socket.socket]:
        read, write = super().create_socket_pair()
        close_in_children(read)
        close_in_children(write)
        return read, write

    def hang_up(self) -> None:
        """End a connection whose server does not answer, so that kazoo looks for another. Any thread may.

        kazoo notices that by its own pings only, which it does not send while requests are under way.
        It has no other way that leaves the session.
        """
        for connection in self._connections:
            with contextlib.suppress(OSError):  # It was closed meanwhile.
                connection.shutdown(socket.SHUT_RDWR)


class Session:
    """kazoo's client, which reconnects by itself, and starts anew when its session has expired."""

    def __init__(self, settings: Settings) -> None:
        self._root = root = settings.root
        self.keys, self.marks, self.sessions = f"{root}/keys", f"{root}/marks", f"{root}/sessions"
        """The nodes above all others."""
        self.client = self._new_client(settings)
        self.ready: AsyncResult = self.client.handler.async_result()
        """What is there while there is a connection."""
        self.checked = False
        """Whether the nodes have the format of this version of weblock."""
        self.ended = False
        """Whether kazoo has given the session up, as it does where it fails itself."""
        self.client.add_listener(self._changed)
        try:
            self.client.start_async()
        except (RuntimeError, OSError):  # Perhaps one part had a thread, and another had none.
            with contextlib.suppress(AttributeError):  # It expects to have begun.
                self._close()
            raise

    @property
    def name(self) -> str:
        """Return the name of the session in our nodes."""
        client_id = self.client.client_id
        return f"{(client_id[0] or 0) % 2**64:x}" if client_id else "none"

    def key(self, key: str) -> Key:
        """Return the node of a key."""
        return Key(self, f"{self.keys}/{name_of_key(key)}")

    def marks_of(self, key: str) -> str:
        """Return the node that has the marks of a key, and of some others, below it."""
        return f"{self.marks}/{marks.hash_of(key)[:3]}"

    def sign_of(self, session: str) -> str:
        """Return the node that is there while a session lives."""
        return f"{self.sessions}/{session}"

    def prepare(self) -> list[AsyncResult]:
        """Create the nodes above all others, and our sign of life.

        On a new connection these writes come first. A server that lags behind then has to catch up before
        it answers a read, so that one shows what requests without an answer have made.
        """
        create, parts = self.client.create_async, self._root.split("/")
        above = ["/".join(parts[:end]) for end in range(2, len(parts) + 1)]
        created = [create(path) for path in (*above, self.marks, self.sessions)]
        sign_of_life = create(self.sign_of(self.name), ephemeral=True)
        return [*created, create(self.keys, VERSION), sign_of_life]

    def close(self, *, patience: float = _CLOSING) -> None:
        """End the session, and with it our places. A server that hangs is not waited for."""
        thread = background_thread(self._close, "weblock-closing")
        try:
            thread.start()
        except RuntimeError:  # The machine has no more threads.
            self._close()
        else:
            thread.join(patience)

    def _new_client(self, settings: Settings) -> KazooClient:
        credentials = settings.credentials
        return KazooClient(
            ",".join(settings.hosts),
            timeout=settings.session_timeout,
            handler=Handler(),
            connection_retry={"max_tries": -1, "delay": 0.05, "backoff": 2, "max_delay": 1.0},
            auth_data=[("digest", credentials)] if credentials else None,
            default_acl=CREATOR_ALL_ACL if credentials else None,
        )

    def _close(self) -> None:
        self.client.stop()
        self.client.close()

    def _changed(self, state: KazooState) -> None:
        """Handle a change of state. Runs in kazoo's thread, which must not wait."""
        if state == KazooState.CONNECTED:
            self.prepare()
            self.ready.set(self)
            return
        if self.ready.ready():
            self.ready = self.client.handler.async_result()
        # A session that has expired is begun anew by kazoo; nothing follows on a closed one.
        self.ended = self.client.client_state == KeeperState.CLOSED


class Key(NamedTuple):
    """The node of a key, in the session that asks about it."""

    session: Session
    node: str

    def path(self, name: str) -> str:
        return f"{self.node}/{name}"

    def lease_of(self, owner: str) -> str:
        return f"{self.node}/{LEASE}{owner}"
