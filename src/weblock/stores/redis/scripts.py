"""The Lua scripts: one file for each operation, behind what all of them share."""

from __future__ import annotations

import hashlib
from importlib.resources import files
from typing import Final, NamedTuple

from ..._core.table import HANDOFF, PLACE, SEEN


class Script(NamedTuple):
    """A script's text, and the name under which the server remembers it."""

    name: str
    text: str
    sha: str


def script(name: str) -> Script:
    """Return the script of one operation."""
    whole = "\n".join((_CONSTANTS, *map(source, files_of(name))))
    return Script(name, whole, hashlib.sha1(whole.encode(), usedforsecurity=False).hexdigest())


def files_of(name: str) -> tuple[str, ...]:
    """Return the files of an operation, in their order.

    The usual cases come before the prelude, so that its functions need not be made for them.
    """
    shown = ("shown",) if name in {"look", "alone"} else ()
    general = "refresh" if name == "renew" else name
    return ("head", *_USUAL.get(name, ("writing",)), "prelude", *shown, general)


def source(name: str) -> str:
    """Return the text of one file."""
    return (files(__package__) / "lua" / f"{name}.lua").read_text()


_USUAL: Final = {
    "acquire": ("glance", "writing", "grant"),
    "release": ("put_down", "glance", "writing", "hand_over"),
    "renew": ("glance", "writing", "renew"),
}

_CONSTANTS: Final = f"local HANDOFF, PLACE, SEEN = {HANDOFF * 1e6:.0f}, {PLACE * 1e6:.0f}, {SEEN}"

ACQUIRE: Final = script("acquire")
REFRESH: Final = script("refresh")
RENEW: Final = script("renew")
"""``REFRESH`` for a few leases with a limit, of which a key may have many."""
RELEASE: Final = script("release")
FORCE_RELEASE: Final = script("force_release")
ASK_RELEASE: Final = script("ask_release")
TRANSFER: Final = script("transfer")
LOOK: Final = script("look")
MARK: Final = script("mark")
MARKED: Final = script("marked")
STAND_BACK: Final = script("stand_back")
RAISE_FENCE: Final = script("raise_fence")
BEGIN: Final = script("begin")
ALONE: Final = script("alone")
PROBE: Final = Script("probe", source("probe"), "")
