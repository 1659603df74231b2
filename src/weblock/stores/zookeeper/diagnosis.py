"""What there is to know of a ZooKeeper ensemble that keeps leases."""

from __future__ import annotations

import re
from collections.abc import Iterator

from kazoo.exceptions import KazooException

from ..findings import Finding, problem, warning
from .session import Session
from .settings import Settings


def diagnose(session: Session, settings: Settings) -> Iterator[Finding]:
    """Return what is found on the server of the session, and of the ensemble."""
    try:
        session.ready.get(timeout=settings.timeout)
    except (KazooException, OSError, session.client.handler.timeout_exception) as error:
        remedy = "Start it, or check the addresses and the network between it and here."
        yield problem("reachable", f"No server answers ({type(error).__name__}).", remedy)
        return
    yield _server(session)
    yield _ensemble(settings)
    yield Finding(
        "session",
        f"The keys of a process that dies are free after {settings.session_timeout:g} s"
        " (session_timeout), if the servers agree to that.",
    )


def _server(session: Session) -> Finding:
    try:
        text = session.client.command(b"srvr")
    except (KazooException, OSError):
        text = ""
    version = re.search(r"version: ([\w.]+)", text)
    mode = re.search(r"Mode: (\w+)", text)
    if not (version and mode):
        return Finding(
            "version", "It does not tell its version (4lw.commands.whitelist has no srvr)."
        )
    return Finding("version", f"It is ZooKeeper {version[1]}, and this server is a {mode[1]}.")


def _ensemble(settings: Settings) -> Finding:
    count = len(settings.hosts)
    text = f"The URL names {count} server{'' if count == 1 else 's'}."
    if count >= 3:
        return Finding("ensemble", text)
    remedy = "Name all servers of an ensemble of three or more, of which one may fail."
    return warning("ensemble", text, remedy)
