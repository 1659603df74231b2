"""The Lua scripts: one file for each operation, behind what all of them share."""

from __future__ import annotations

import hashlib
from importlib.resources import files
from typing import Final, NamedTuple

from ..._core.table import HANDOFF, PLACE, SEEN

FORMAT: Final = "3"
"""The version of the layout, as ``head.lua`` writes it."""


class Script(NamedTuple):
    """A script's text, and the name under which the server remembers it."""

    name: str
    text: str
    sha: str


def script(name: str) -> Script:
    """Return the script of one operation."""
    return _script(name, "\n".join((constants(name), *map(source, files_of(name)))))


def _script(name: str, whole: str) -> Script:
    return Script(name, whole, hashlib.sha1(whole.encode(), usedforsecurity=False).hexdigest())


def files_of(name: str) -> tuple[str, ...]:
    """Return the files of an operation, in their order.

    The usual case comes before the prelude, so that its functions need not be made for it.
    """
    usual = {"acquire": ("usual", "free"), "release": ("usual", "last")}.get(name, ())
    return ("head", *usual, "prelude", name)


def source(name: str) -> str:
    """Return the text of one file."""
    return (files(__package__) / "lua" / f"{name}.lua").read_text()


def constants(name: str) -> str:
    """Return what stands before the files of an operation."""
    essential = str(name in _ESSENTIAL).lower()
    times = f"{HANDOFF * 1e6:.0f}, {PLACE * 1e6:.0f}, {SEEN}"
    return f"local HANDOFF, PLACE, SEEN = {times}\nlocal ESSENTIAL = {essential}"


_ESSENTIAL: Final = {"renew", "beat", "release", "force_release", "transfer", "look"}
"""What must work on a server whose memory is full."""

ACQUIRE: Final = script("acquire")
RENEW: Final = script("renew")
"""Heartbeats of holders."""
BEAT: Final = script("beat")
"""Heartbeats of waiters."""
RELEASE: Final = script("release")
FORCE_RELEASE: Final = script("force_release")
ASK_RELEASE: Final = script("ask_release")
TRANSFER: Final = script("transfer")
LOOK: Final = script("look")
WAIT_BEHIND: Final = script("wait_behind")
RAISE_FENCE: Final = script("raise_fence")
BEGIN: Final = script("begin")
READ: Final = _script("read", source("command"))
WRITE: Final = _script("write", source("command"))
"""One command on a mark or a text."""
KEEP_TEXT: Final = _script("keep_text", source("keep_text"))
GROUP: Final = _script("group", source("group"))
PROBE: Final = Script("probe", source("probe"), "")
