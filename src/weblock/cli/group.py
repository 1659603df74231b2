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
from collections.abc import Callable, Generator, Mapping, Sequence
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
        self._terminal = _Terminal(self._watchdog.pid)
        self._signals: tuple[int, int] | None = None
        """A pipe that gets the number of each signal. Python's own handlers run in the main thread
        alone, which might not wake up when another thread gets a signal."""
        self._command = 0
        self._lives_until = float("inf")

    def start(
        self, command: Sequence[str], env: Mapping[str, str], ended: Callable[[int], None]
    ) -> None:
        """Start the command; ``ended`` is called from a thread, once, with its wait status.

        Where it is stopped at our terminal (Ctrl-Z), so are we. Raises ``OSError`` for a command that
        cannot be started.
        """
        assert self._watchdog.stdout
        self._watchdog.stdout.read(1)
        if self._terminal.ours:
            self._signals = os.pipe()
            os.set_blocking(self._signals[0], False)
            os.set_blocking(self._signals[1], False)
            signal.set_wakeup_fd(self._signals[1], warn_on_full_buffer=False)
            signal.signal(signal.SIGCONT, lambda *_: None)
            self._terminal.lend()
        try:
            self._command = os.posix_spawnp(
                command[0],
                list(command),
                env,
                setpgroup=self._watchdog.pid,
                setsigdef=[getattr(signal, f"SIG{name}") for name in RESTORED],
            )
        except OSError:
            self._terminal.take_back()
            raise
        threading.Thread(target=self._wait, args=(ended,), daemon=True).start()

    def _wait(self, ended: Callable[[int], None]) -> None:
        options = os.WUNTRACED if self._terminal.ours else 0
        while True:
            _, status = os.waitpid(self._command, options)
            if not os.WIFSTOPPED(status):
                ended(status)
                return
            self._stop_too()
            self.signal(signal.SIGCONT)

    def _stop_too(self) -> None:
        """Stop our own group, as the shell that watches it expects, until the shell continues it."""
        assert self._signals
        self._heard()
        os.killpg(0, signal.SIGSTOP)
        # Which may take effect while this thread goes on for a moment.
        while signal.SIGCONT not in self._heard():
            select.select([self._signals[0]], [], [])
        if self._terminal.is_given_to_us():
            self._terminal.lend()

    def _heard(self) -> bytes:
        """The numbers of the signals that have come since the last call."""
        assert self._signals
        try:
            return os.read(self._signals[0], 4096)
        except BlockingIOError:
            return b""

    def signal(self, number: int) -> None:
        """Send a signal to all processes of the group, except that the watchdog ignores most."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._watchdog.pid, number)

    def lives_until(self, seconds: float) -> None:
        """Let the watchdog kill the group in so many seconds, unless it gets a later time."""
        assert self._watchdog.stdin
        self._lives_until = time.monotonic() + seconds
        with contextlib.suppress(BrokenPipeError):  # The group has been killed.
            self._watchdog.stdin.write(b"%f\n" % self._lives_until)
            self._watchdog.stdin.flush()

    @property
    def is_overdue(self) -> bool:
        """Return whether the watchdog's deadline has passed: then it has killed the group."""
        return time.monotonic() >= self._lives_until

    def close(self) -> None:
        """End the watchdog. What the command has left running in the group goes on."""
        self._watchdog.kill()
        self._watchdog.communicate()
        self._terminal.take_back()
        if self._signals:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCONT, signal.SIG_DFL)


class _Terminal:
    """Our controlling terminal, if we are in its foreground: the command is there in our place."""

    def __init__(self, group: int) -> None:
        self._group = group
        self._file: int | None = None
        with contextlib.suppress(OSError):
            self._file = os.open("/dev/tty", os.O_RDWR | os.O_CLOEXEC)
        if self._file is not None and not self.is_given_to_us():
            os.close(self._file)
            self._file = None

    @property
    def ours(self) -> bool:
        return self._file is not None

    def is_given_to_us(self) -> bool:
        """Return whether we are in the foreground: with ``fg``, but not with ``bg``."""
        try:
            return self._file is not None and os.tcgetpgrp(self._file) == os.getpgrp()
        except OSError:
            return False

    def lend(self) -> None:
        """Bring the command's group to the foreground, where it can read and gets Ctrl-C."""
        self._give_to(self._group)

    def take_back(self) -> None:
        """Bring our own group to the foreground, if the command is there: not after ``bg``."""
        with contextlib.suppress(OSError):
            if self._file is not None and os.tcgetpgrp(self._file) == self._group:
                self._give_to(os.getpgrp())

    def _give_to(self, group: int) -> None:
        if self._file is None:
            return
        with _ignored(signal.SIGTTOU), contextlib.suppress(OSError):
            os.tcsetpgrp(self._file, group)


@contextlib.contextmanager
def _ignored(number: int) -> Generator[None]:
    """Block a signal in this thread: one in the background gets SIGTTOU when it changes that."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [number])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
