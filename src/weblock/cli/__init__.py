"""``weblock``: the command line for operators. See docs/command-line.md."""

from __future__ import annotations

import contextlib
import enum
import errno
import os
import sys
from typing import Final

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
    OUTPUT = 74
    """The output cannot be written."""
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
    for name in ("stdin", "stdout", "stderr"):
        # A stream that is closed, as by ``2>&-``, takes whatever is written. Else a file or a socket
        # that is opened later would get its number.
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "r" if name == "stdin" else "w"))  # noqa: SIM115, PTH123
    try:
        require("the command line", "cli")
    except ConfigurationError as error:
        # Not 1, which is an answer: of ``show``, that the key is free.
        print(f"weblock: {error}", file=sys.stderr)  # noqa: T201 - what would write it is missing
        sys.exit(Code.USAGE)
    from .app import app

    try:
        app(prog_name="weblock")
    except OSError as error:
        if error.errno not in _ABOUT_OUTPUT:
            raise
        with contextlib.suppress(OSError):
            print(f"weblock: the output cannot be written: {error.strerror}", file=sys.stderr)  # noqa: T201
        sys.exit(Code.OUTPUT)


_ABOUT_OUTPUT: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF)
"""What writing to a file that is full, a terminal that is gone, or a file that is open for reading ends with."""
