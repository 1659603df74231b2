"""``weblock``: the command line for operators. See docs/command-line.md."""

from __future__ import annotations

import enum
import sys

from .._requirements import require
from ..errors import ConfigurationError


class Code(enum.IntEnum):
    """The exit codes of a command, besides 0 and what ``run`` passes on from the command that it ran.

    From 64 on they are those of BSD's ``sysexits.h``.
    """

    NO = 1
    """The answer is no: the key is free, nothing was released, a check failed, no rule matches."""
    USAGE = 2
    """An option, a URL or a key cannot work."""
    UNAVAILABLE = 69
    """The engine did not answer, or cannot serve."""
    BUSY = 75
    """The key was not free in time."""
    LOST = 76
    """The lease was lost while the command ran, and the command was killed."""
    NOT_EXECUTABLE = 126
    NOT_FOUND = 127
    SIGNALLED = 128
    """Plus the number of the signal."""


def main() -> None:
    """Run the command that the process's arguments name, and exit with its code."""
    try:
        require("the command line", "cli")
    except ConfigurationError as error:
        # Not 1, which is an answer: of ``show``, that the key is free.
        print(f"weblock: {error}", file=sys.stderr)  # noqa: T201 - what would write it is missing
        sys.exit(Code.USAGE)
    from .app import app

    app(prog_name="weblock")
