"""Tells whether the client of a waiting request is still connected, where the server lets us see that.

WSGI has no message for it. But some servers put more into ``environ`` than it asks for: gunicorn and
Werkzeug the connection itself, waitress a function; and uWSGI has a module.
"""

from __future__ import annotations

import functools
import importlib
import select
import socket
import sys
from collections.abc import Callable
from typing import Any, Final
from wsgiref.types import WSGIEnvironment

from ..._platform.greenlets import patched_by
from ..kit import ClientGone

SOCKETS: Final = ("gunicorn.socket", "werkzeug.socket")
"""Where servers put the connection."""

_HUNG_UP: Final = getattr(select, "POLLRDHUP", 0)
"""Linux tells that the other side has closed, also when it has sent more than was read."""


def watch(environ: WSGIEnvironment) -> Callable[[], None] | None:
    """Return a function that raises ``ClientGone`` when the client has gone.

    Returns ``None`` where the server does not let us see that.
    """
    told: Callable[[], bool] | None = environ.get("waitress.client_disconnected")
    if told is None and _HUNG_UP and (descriptor := descriptor_of(environ)):
        told = functools.partial(_has_hung_up, descriptor)
    return functools.partial(_look, told) if told else None


def _look(is_gone: Callable[[], bool]) -> None:
    if is_gone():
        raise ClientGone


def descriptor_of(environ: WSGIEnvironment) -> Callable[[], int] | None:
    """Return a function that returns the descriptor of the connection; ``None`` where it is not shown."""
    for name in SOCKETS:
        connection = environ.get(name)
        if isinstance(connection, socket.socket):
            return connection.fileno
    uwsgi: Any = sys.modules.get("uwsgi")
    if uwsgi is not None and hasattr(uwsgi, "connection_fd"):
        number: int = uwsgi.connection_fd()  # Of the request that this thread serves.
        return lambda: number
    return None


def _has_hung_up(descriptor: Callable[[], int]) -> bool:
    """Asks the kernel, and reads nothing: what the client has sent is for the application."""
    number = descriptor()
    if number < 0:
        return True
    new_poll = select.poll
    if patched_by() == "gevent":  # Its own knows nothing of this event.
        new_poll = importlib.import_module("gevent.monkey").get_original("select", "poll")
    poll = new_poll()
    poll.register(number, _HUNG_UP)
    return bool(poll.poll(0))
