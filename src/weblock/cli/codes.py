"""Exit codes, for scripts. From 64 on they are those of BSD's ``sysexits.h``."""

from __future__ import annotations

import enum


class Code(enum.IntEnum):
    """The exit codes of a command, besides 0 and what ``run`` passes on from the command that it ran."""

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
