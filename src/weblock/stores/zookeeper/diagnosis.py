"""What ``weblock doctor`` tells of an ensemble, besides what it finds when it locks a key."""

from __future__ import annotations

import queue
import re
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

from kazoo.exceptions import KazooException

from ..findings import Finding, several, unreachable, warning

if TYPE_CHECKING:
    from . import Settings
    from .session import Session


def diagnose(session: Session, settings: Settings) -> Iterator[Finding]:
    """Return what is found on the server of the session, and of the ensemble."""
    arrived: queue.SimpleQueue[object] = queue.SimpleQueue()
    session.ready.rawlink(arrived.put)
    with suppress(queue.Empty):
        arrived.get(timeout=settings.timeout)
    try:
        session.ready.get(block=False)
    except (KazooException, OSError, session.client.handler.timeout_exception) as error:
        yield unreachable(error, f"no server answers ({type(error).__name__})")
        return
    try:
        told = session.client.command(b"srvr")
    except (KazooException, OSError):
        told = ""
    version, mode = re.search(r"version: ([\w.]+)", told), re.search(r"Mode: (\w+)", told)
    text = "It does not tell its version (4lw.commands.whitelist has no srvr)."
    if version and mode:
        text = f"It is ZooKeeper {version[1]}, and this server is a {mode[1]}."
    yield Finding("version", text)
    count = len(settings.hosts)
    text = f"The URL names {several(count, 'server')}."
    remedy = "Name all servers of an ensemble of three or more, of which one may fail."
    yield Finding("ensemble", text) if count >= 3 else warning("ensemble", text, remedy)
    yield Finding(
        "session",
        f"The keys of a process that dies are free after {settings.session_timeout:g} s"
        " (session_timeout), if the servers agree to that.",
    )
