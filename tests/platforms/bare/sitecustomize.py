"""Takes from Python what it does not have on Windows, before anything else can see it.

Python runs the module of this name that ``PYTHONPATH`` leads to whenever it starts, also in the
processes that a test starts.
"""

import _socket
import os
import select
import sys
import time

for name in ("fcntl", "grp", "pwd", "resource"):
    sys.modules[name] = None  # type: ignore[assignment] - to import it raises ImportError

for module, names in {
    _socket: ("AF_UNIX", "socketpair"),
    os: ("fork", "register_at_fork", "posix_fallocate"),
    select: ("poll", "epoll"),
    time: ("CLOCK_BOOTTIME", "CLOCK_MONOTONIC", "clock_gettime", "clock_gettime_ns"),
}.items():
    for name in names:
        if hasattr(module, name):
            delattr(module, name)

assert "socket" not in sys.modules, "socket has been imported with all that it had"
