"""Connections to the server. Each serves one request at a time, and is kept for the next."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Protocol

from ..._platform.forks import close_in_children
from ..._platform.polling import READABLE, new_poll
from ..._platform.turns import taken_out
from ...errors import EngineUnavailable
from .server import refuse_unfit
from .settings import Settings

IDLE: Final = 32
"""How many unused connections are kept open at most."""

LATELY: Final = 0.1
"""Seconds in which a caller does not wait again for a server that has just not answered."""

_SILENT: Final = "it did not answer in time"


class Value(bytes):
    """The contents of an item, and the number that memcached keeps beside them."""

    flags = 0


class Client(Protocol):
    """The part of the driver's client that we use."""

    sock: socket.socket

    def stats(self, *args: str) -> Mapping[bytes, Any]: ...

    def get_many(self, keys: Sequence[str]) -> dict[str, bytes]: ...

    def gets_many(self, keys: Sequence[str]) -> dict[str, tuple[Value, bytes]]: ...

    def add(self, key: str, value: bytes, expire: int = 0, *, noreply: bool) -> bool: ...

    def set(self, key: str, value: bytes, expire: int = 0, *, noreply: bool) -> bool: ...

    def delete(self, key: str, *, noreply: bool) -> bool: ...

    def cas(
        self, key: str, value: bytes, cas: bytes, expire: int, *, flags: int = 0
    ) -> bool | None: ...

    def close(self) -> None: ...


class _WithFlags:
    """How the driver passes contents on: as they are, and with their number when they are read."""

    def serialize(self, _item: str, contents: bytes) -> tuple[bytes, int]:
        return contents, 0

    def deserialize(self, _item: str, contents: bytes, flags: int) -> Value:
        value = Value(contents)
        value.flags = flags
        return value


class Connections:
    """The connections of one process."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._name = settings.name
        self._idle: list[Client] = []
        self._silent_at = -LATELY
        self._closed = False

    @contextlib.contextmanager
    def one(self) -> Iterator[Client]:
        """Yield a connection for one request.

        Raises ``EngineUnavailable`` for whatever goes wrong meanwhile.
        """
        from pymemcache.exceptions import MemcacheError

        if time.monotonic() - self._silent_at < LATELY:
            raise EngineUnavailable(self._name, _SILENT)
        client = None
        try:
            client = self._kept() or self.opened()
            yield client
        except EngineUnavailable:
            raise
        except (MemcacheError, OSError) as error:
            if isinstance(error, TimeoutError):
                self._silent_at = time.monotonic()
            raise EngineUnavailable(self._name, _explained(error)) from error
        else:
            if len(self._idle) >= IDLE:
                return
            # First: one that is in use again must not be closed here.
            unused, client = client, None
            self._idle.append(unused)
            if self._closed:
                self.close()
        finally:
            if client:
                client.close()

    def opened(self) -> Client:
        """Return a new connection, to a server that can keep locks."""
        from pymemcache.client import base

        if self._closed:
            raise EngineUnavailable(self._name, "it was closed")
        host, port, timeout = self._settings.host, self._settings.port, self._settings.timeout
        client: Client = base.Client(
            (host, port),
            connect_timeout=timeout,
            timeout=timeout,
            no_delay=True,
            serde=_WithFlags(),
        )
        try:
            refuse_unfit(client, self._settings)
        except BaseException:
            client.close()
            raise
        close_in_children(client.sock)
        return client

    def close(self) -> None:
        self._closed = True
        for client in taken_out(self._idle):
            client.close()

    def _kept(self) -> Client | None:
        """Return an open connection; one with unexpected data has ended."""
        while self._idle:
            try:
                client = self._idle.pop()
            except IndexError:  # Another thread was quicker.
                return None
            poll = new_poll()
            poll.register(client.sock, READABLE)
            if not poll.poll(0):
                return client
            client.close()
        return None


def _explained(error: Exception) -> str:
    """Return the reason of an error, with the remedy if there is one."""
    text = str(error.args[0], errors="replace") if _is_bytes(error) else str(error)
    if "out of memory" in text:
        return "its memory is full, and it takes and renews no leases: raise -m"
    if "too large" in text:
        return "too many wait for one key: lower max_waiters, or raise -I"
    if isinstance(error, TimeoutError):
        return _SILENT
    return text or type(error).__name__


def _is_bytes(error: Exception) -> bool:
    return bool(error.args) and isinstance(error.args[0], bytes)
