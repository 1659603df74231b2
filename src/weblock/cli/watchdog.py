"""Kills the process group that it leads when weblock has died, or hangs until its lease has ended.

``run`` starts it as a program of its own, before the command, which then joins its group. It reads
from its standard input, line by line, at which time of ``time.monotonic`` the lease ends. Nothing
of weblock is imported here, so that it starts quickly and has no threads.
"""

from __future__ import annotations

import os
import select
import signal
import time
from typing import Final, NoReturn

IGNORED: Final = ("HUP", "INT", "QUIT", "TERM", "TSTP", "TTIN", "TTOU", "USR1", "USR2", "ALRM")
"""Signals that are meant for the command, in the same group."""


def main() -> NoReturn:
    """Wait for the end of the lease, or of standard input, and kill the group then."""
    for name in IGNORED:
        signal.signal(getattr(signal, f"SIG{name}"), signal.SIG_IGN)
    os.write(1, b"\n")  # Ready.
    ends = None
    while ends is None or ends > time.monotonic():
        readable, _, _ = select.select([0], [], [], ends and max(0.0, ends - time.monotonic()))
        if readable:
            told = os.read(0, 4096)
            if not told:
                break
            ends = float(told.split()[-1])
    os.killpg(0, signal.SIGKILL)
    raise SystemExit  # Which it does not come to.


if __name__ == "__main__":
    main()
