"""The user with the least rights that do, as the documentation has it."""

from __future__ import annotations

import re
from pathlib import Path

from .single import Server

USER = "locks:secret"

_PAGE = Path(__file__).parents[2] / "docs" / "redis.md"


COMMANDS = {word[1:] for word in re.findall(r"(?<=[ `])\+[a-z|]+", _PAGE.read_text())}
"""Those that the page says a user needs."""


def grant_least_rights(server: Server, *more: str) -> None:
    """Creates the user as a reader of the page would, with ``more`` rules of a test's own."""
    found = re.search(
        r"^ACL SETUSER locks .*?(?=^```)", _PAGE.read_text(), re.DOTALL | re.MULTILINE
    )
    assert found, f"{_PAGE} no longer says how"
    server.command(*found[0].split(), *more)


def unknown(command: str) -> dict[str, str]:
    """The configuration of a server that does not know a command."""
    return {"rename_command": f'{command}" "'}  # Between the quotes that are put around a value.
