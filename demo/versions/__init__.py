"""The bounded create in five versions, as articles walk through them, and in one line of weblock.

Each is a module that can be read by itself: ``none``, ``get_then_set``, ``set_nx``, ``redlock``,
``careful_redlock`` and ``one_line``. All run in the same replicas, on the same Redis servers, and get
the same requests.
"""

from __future__ import annotations

import os
from typing import Final, NamedTuple

SERVERS: Final = os.environ.get("DEMO_SERVERS", "redis://127.0.0.1:6379").split(",")
"""The Redis servers. Who wants just one takes the first."""

TTL: Final = 1.0
"""Seconds that every version's lock lasts. Articles take 10, and nobody wants to watch for so long."""


class Version(NamedTuple):
    """One way to write it: the module that has it, and what it is called."""

    name: str
    title: str
    says: str
    """What is wrong with it, or right."""


VERSIONS: Final = (
    Version("none", "1 no lock", "all count before anybody has added"),
    Version(
        "get_then_set",
        "2 GET, then SET",
        "two GETs before a SET, work that outlasts the ttl, and a DEL of others' locks",
    ),
    Version("set_nx", "3 SET NX + Lua", "work that outlasts the ttl is not alone any more"),
    Version("redlock", "4 Redlock", "three servers agree, and their ttl ends together"),
    Version(
        "careful_redlock",
        "5 careful Redlock",
        "with retries and a drift allowance, it waits politely; the ttl ends all the same",
    ),
    Version(
        "one_line",
        "6 weblock",
        "one line: renewed while its holder works, and a queue for the rest",
    ),
)
