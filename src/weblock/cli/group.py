"""A command in a process group of its own, which ends with the weblock that has started it."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

WATCHDOG: Final = Path(__file__).with_name("watchdog.py")

RESTORED: Final = ("PIPE", "XFSZ", "TTOU")
"""Signals that Python or we ignore, and that the command finds as usual."""


class Group:
    """The process group of one command. A watchdog leads it, so it is there as long as we are."""

    def __init__(self) -> None:
        self._watchdog = subprocess.Popen(  # noqa: S603 - a program of our own
            [sys.executable, "-I", "-S", str(WATCHDOG)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            process_group=0,
        )
        self._command = 0
        self.killed_at = float("inf")
        """When the watchdog kills the group, by the monotonic clock."""
        self._terminal: int | None = None
        """Our controlling terminal, if we are in its foreground: the command is there in our place."""
        with contextlib.suppress(OSError):
            terminal = os.open("/dev/tty", os.O_RDWR | os.O_CLOEXEC)
            if os.tcgetpgrp(terminal) == os.getpgrp():
                self._terminal = terminal
        self._signals = -1
        """The end of a pipe that gets the number of each signal. Python's own handlers run in the main thread
        alone, which might not wake up when another thread gets a signal."""

    def start(
        self, command: Sequence[str], env: Mapping[str, str], ended: Callable[[int], None]
    ) -> None:
        """Start the command; ``ended`` is called from a thread, once, with its wait status.

        Where it is stopped at our terminal (Ctrl-Z), so are we. Raises ``OSError`` for a command that
        cannot be started.
        """
        assert self._watchdog.stdout
        self._watchdog.stdout.read(1)
        if self._terminal is not None:
            self._signals, written = os.pipe()
            os.set_blocking(self._signals, False)
            os.set_blocking(written, False)
            signal.set_wakeup_fd(written, warn_on_full_buffer=False)
            signal.signal(signal.SIGCONT, lambda *_: None)
            self._pass_terminal(os.getpgrp(), self._watchdog.pid)
        try:
            self._command = os.posix_spawnp(
                command[0],
                list(command),
                env,
                setpgroup=self._watchdog.pid,
                setsigdef=[getattr(signal, f"SIG{name}") for name in RESTORED],
            )
        except OSError:
            self._pass_terminal(self._watchdog.pid, os.getpgrp())
            raise
        threading.Thread(target=self._wait, args=(ended,), daemon=True).start()

    def _wait(self, ended: Callable[[int], None]) -> None:
        options = 0 if self._terminal is None else os.WUNTRACED
        while True:
            _, status = os.waitpid(self._command, options)
            if not os.WIFSTOPPED(status):
                ended(status)
                return
            # Stop our own group, as the shell that watches it expects, until the shell continues it.
            self._heard()
            os.killpg(0, signal.SIGSTOP)
            # Which may take effect while this thread goes on for a moment.
            while signal.SIGCONT not in self._heard():
                select.select([self._signals], [], [])
            self._pass_terminal(os.getpgrp(), self._watchdog.pid)  # With fg, but not with bg.
            self.signal(signal.SIGCONT)

    def _heard(self) -> bytes:
        """The numbers of the signals that have come since the last call."""
        try:
            return os.read(self._signals, 4096)
        except BlockingIOError:
            return b""

    def signal(self, number: int) -> None:
        """Send a signal to all processes of the group, except that the watchdog ignores most."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._watchdog.pid, number)

    def lives_until(self, seconds: float) -> None:
        """Let the watchdog kill the group in so many seconds, unless it gets a later time."""
        assert self._watchdog.stdin
        self.killed_at = time.monotonic() + seconds
        with contextlib.suppress(BrokenPipeError):  # The group has been killed.
            self._watchdog.stdin.write(b"%f\n" % self.killed_at)
            self._watchdog.stdin.flush()

    def close(self) -> None:
        """End the watchdog. What the command has left running in the group goes on."""
        self._watchdog.kill()
        self._watchdog.communicate()
        self._pass_terminal(self._watchdog.pid, os.getpgrp())
        if self._signals >= 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCONT, signal.SIG_DFL)

    def _pass_terminal(self, one: int, other: int) -> None:
        """Bring the other group to the terminal's foreground, where it can read and gets Ctrl-C, if one is there."""
        if self._terminal is None:
            return
        # A process in the background gets SIGTTOU when it changes that.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTTOU])
        with contextlib.suppress(OSError):
            if os.tcgetpgrp(self._terminal) == one:
                os.tcsetpgrp(self._terminal, other)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
