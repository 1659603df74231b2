"""``weblock run KEY -- command``: holds a key while a command runs, as ``flock(1)`` does on one machine."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import queue
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, Final

import click

from .. import ConfigurationError, Lease, LeaseLost, Locks, LockTimeout
from .._adapting import key_space_of, leave
from .._options import LONGEST
from .._platform.logs import printable
from ..operating import duration
from . import Code
from .app import Session, command, in_options, pass_session, warn

PASSED_ON: Final = ("HUP", "INT", "QUIT", "TERM", "USR1", "USR2", "ALRM")
"""Signals that the command gets when we do."""

TTL: Final = 30.0

KILL_AFTER: Final = 5.0

HELD_ENV: Final = "WEBLOCK_RUN_HOLDS"
"""The environment variable in which a ``weblock run`` inside another finds what those outside hold."""

LOST: Final = 0
"""What stands for the loss of the lease, among the numbers of signals."""


@command("run")
@click.argument("key")
@click.argument("arguments", metavar="-- COMMAND [ARGUMENT]...", nargs=-1, required=True)
@click.option(
    "--wait",
    type=click.FloatRange(0, LONGEST),
    help="Seconds to wait for the key; by default, there is no limit.",
)
@click.option(
    "--skip-if-busy", is_flag=True, help="Exit with 0 if the key is busy, at once or after --wait."
)
@click.option(
    "--ttl",
    type=click.FloatRange(0.1, LONGEST),
    help="Seconds that the lease lasts when this machine has died; 30, or the URL's recovery= if that is"
    " shorter.",
)
@click.option(
    "--kill-after",
    type=click.FloatRange(0),
    help=(
        "Seconds from SIGTERM to SIGKILL, when the lease is ending; 5, or half of --ttl if that is"
        " shorter."
    ),
)
@click.option(
    "--max-hold", type=click.FloatRange(0.1, LONGEST), help="Seconds that the command may run."
)
@click.option(
    "--at-least",
    type=click.FloatRange(0),
    default=0.0,
    help="Seconds that KEY stays locked, even if the command ends earlier.",
)
@click.option(
    "--limit",
    type=click.IntRange(1),
    help="How many holders KEY can have at the same time; 1 by default.",
)
@click.option(
    "--shared", is_flag=True, help="Hold KEY together with any number of other --shared holders."
)
@click.option(
    "--label", help="The name of the holder for other callers. [default: host:process command]"
)
@pass_session
def run_command(
    session: Session,
    /,
    key: str,
    arguments: Sequence[str],
    *,
    skip_if_busy: bool,
    kill_after: float | None,
    at_least: float,
    **given: Any,
) -> None:
    """Holds KEY while it runs a command, so that no other process can hold it.

    With --limit 3, up to three hold it together. With --shared, any number of those that share it do,
    but none beside an exclusive holder: many readers, one writer.

    It exits with the command's code, or with 128 and the number of the signal that ended it; with 75
    if the key was not free in time, 69 if the engine does not answer, 76 if the lease was lost, 126 or
    127 if the command cannot be run. Signals are passed on to all processes of the command.

    When the lease is ending and cannot be renewed, the command gets SIGTERM --kill-after seconds
    before, and SIGKILL just before it ends, so that it has ended before another gets the key. When the lease
    is taken away, it gets both then.

    With --at-least, a machine whose clock is late finds KEY busy, and does not run the command again.

    The command finds KEY in WEBLOCK_KEY, and its fencing token in WEBLOCK_FENCE.
    """
    hold: Any = {name: value for name, value in given.items() if value is not None}
    hold.setdefault("wait", 0 if skip_if_busy else None)
    hold["label"] = given["label"] or (
        f"{socket.gethostname()}:{os.getpid()} {Path(arguments[0]).name}"
    )
    with session.locks(logs=logging.CRITICAL if session.json else logging.WARNING) as locks:
        hold.setdefault("ttl", TTL)
        if recovery := key_space_of(locks).engine.recovery:
            recovery.cover(hold["ttl"])
            if given["ttl"] is None and not recovery.covers(TTL):
                hold["ttl"] = recovery.seconds
        if kill_after is None:
            kill_after = min(KILL_AFTER, hold["ttl"] / 2)
        _check(locks, hold, kill_after, at_least)
        held = _held()
        info = locks.inspect(key) if key in held else None
        if any(holder.fence == held[key] for holder in (info.holders if info else ())):
            raise ConfigurationError(
                f"an outer weblock run holds {key!r} until this one has ended, so this one would"
                " wait forever: lock another key here, or run the command without weblock run"
            )
        run = Run(key, kill_after, at_least, in_json=session.json)
        try:
            code = run.hold_and_work(locks, hold, arguments)
        except LockTimeout as busy:
            if not skip_if_busy:
                raise
            code = run.ends("skipped", f"skipped: {in_options(busy.for_operators, run_command)}", 0)
        except Interrupted as interrupted:
            code = run.ends("interrupted", "", Code.SIGNALLED + interrupted.args[0])
        finally:
            run.close()
    if session.json:
        warn(json.dumps(run.facts | {"exit_code": code}))
    raise SystemExit(code)


def _check(locks: Locks, hold: Mapping[str, Any], kill_after: float, at_least: float) -> None:
    """Raise ``ConfigurationError`` for what cannot work, before anything is locked or run."""
    if not hasattr(os, "posix_spawnp"):
        raise ConfigurationError("weblock run needs the process groups of Linux or macOS")
    if kill_after > hold["ttl"] / 2:
        raise ConfigurationError(
            f"--kill-after {kill_after:g} is more than half of --ttl {hold['ttl']:g}: a lease is"
            " renewed after a third of its ttl, and may be ending from --kill-after on. Raise"
            " --ttl"
        )
    if locks.scope == "process":
        raise ConfigurationError(
            f"{locks.engine} locks inside one process only, and excludes no other command: use"
            " file:// for one machine, redis:// for several, or noop:// to lock nothing",
            code="unsuitable_engine",
        )
    if at_least > hold.get("max_hold", LONGEST):
        raise ConfigurationError(f"--at-least {at_least:g} must not be more than --max-hold")
    if at_least and locks.scope == "host":
        raise ConfigurationError(
            f"{locks.engine} frees what a process held as soon as it ends, so --at-least cannot"
            " keep a key locked there: use an engine that several machines share, such as redis://",
            code="unsuitable_engine",
        )


def _held() -> dict[str, int]:
    """Return the fences of the keys that our parent processes hold while we run."""
    try:
        held = json.loads(os.environ.get(HELD_ENV, "{}"))
    except ValueError:
        return {}
    return held if isinstance(held, dict) else {}


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


class Interrupted(BaseException):
    """A signal, the argument, came while we waited for the key."""


class Run:
    """One command, from the wait for its key to the release of the lease that it runs under."""

    def __init__(self, key: str, kill_after: float, at_least: float, *, in_json: bool) -> None:
        self.facts: dict[str, Any] = {"key": key, "outcome": "ran"}
        """What ``--json`` says at the end."""
        self._key = key
        self._kill_after = kill_after
        self._at_least = at_least
        self._in_json = in_json
        self._lease: Lease | None = None
        self._kill_at: float | None = None
        """When the command is killed that has been told to end."""
        # Signals, the loss of the lease, and the command's wait status in a tuple. The queue is in C, so that a
        # signal's handler may put something there at any time.
        self._heard: queue.SimpleQueue[int | tuple[int]] = queue.SimpleQueue()
        self._handlers: dict[int, Any] = {}
        self._group = Group()

    def _hear(self, number: int, _frame: FrameType | None) -> None:
        if self._lease is None:
            raise Interrupted(number)  # The waiting ends.
        self._heard.put(number)

    def close(self) -> None:
        """End all but what the command has left running."""
        self._group.close()
        for number, handler in list(self._handlers.items()):
            signal.signal(number, handler)

    def ends(self, outcome: str, text: str, code: int) -> int:
        """Note how the run ends, say it, and return the exit code.

        The command uses standard error, too: as little as possible is said there.
        """
        self.facts["outcome"] = outcome
        if text and not self._in_json:
            warn(f"weblock: {printable(text)}")
        return code

    def hold_and_work(self, locks: Locks, hold: Any, arguments: Sequence[str]) -> int:
        """Acquire the key, run the command, release the key, and return the exit code."""
        asked = time.monotonic()
        for number in (getattr(signal, f"SIG{name}") for name in PASSED_ON):
            if signal.getsignal(number) is not signal.SIG_IGN:  # Our caller may ignore it (nohup).
                self._handlers[number] = signal.signal(number, self._hear)
        self._lease = lease = locks.acquire(self._key, **hold)
        try:
            # A lease that was handed over is short until its holder confirms it, and would seem to be ending.
            lease.extend(max(0.0, max(hold["ttl"], self._at_least) - lease.remaining()))
        except BaseException:
            lease.release()
            raise
        lease.on_lost(lambda: self._heard.put(LOST))
        began = time.monotonic()
        self.facts |= {"fence": lease.fence, "waited": round(began - asked, 3)}
        env = {
            **os.environ,
            "WEBLOCK_FENCE": str(lease.fence),
            "WEBLOCK_KEY": lease.key,
            HELD_ENV: json.dumps(_held() | {lease.key: lease.fence}),
        }
        lost = None
        try:
            self._tend(lease)
            try:
                self._group.start(arguments, env, lambda status: self._heard.put((status,)))
            except (OSError, ValueError) as error:  # ``ValueError`` for an empty name.
                text = f"{arguments[0]} cannot be run: {error.args[-1]}"
                missing = isinstance(error, FileNotFoundError)
                shell = Code.NOT_FOUND if missing else Code.NOT_EXECUTABLE
                return self.ends("not started", text, shell)
            code = self._attend(lease)
        finally:
            try:
                if time.monotonic() < began + self._at_least:
                    leave(lease)
                lease.release()
            except LeaseLost as error:
                lost = error
            self.facts["held_for"] = round(time.monotonic() - began, 3)
        if lost or self._kill_at is not None:
            return self.ends("lost", str(lost or ""), Code.LOST)
        if code == Code.SIGNALLED + signal.SIGKILL and time.monotonic() >= self._group.killed_at:
            text = "weblock itself was paused, and the command was killed in time"
            return self.ends("lost", text, Code.LOST)
        return code

    def _attend(self, lease: Lease) -> int:
        """Pass on signals, end the command with the lease, and return its exit code."""
        while True:
            try:
                event = self._heard.get(timeout=max(0.0, self._tend(lease)))
            except queue.Empty:
                continue
            if isinstance(event, tuple):
                code = os.waitstatus_to_exitcode(event[0])
                return code if code >= 0 else Code.SIGNALLED - code
            if event == LOST:
                self._end(lease)
            else:
                self._group.signal(event)

    def _tend(self, lease: Lease) -> float:
        """Do what is due, and return after how many seconds to look again."""
        left, now = lease.remaining(), time.monotonic()
        if self._kill_at is not None:
            if now >= self._kill_at:
                self._group.signal(signal.SIGKILL)
                return 1.0
            return self._kill_at - now
        if left <= self._kill_after:
            self._end(lease)
            return left
        self._group.lives_until(left)
        # Renewed or not, the watchdog must know before the end that it knows of.
        return (left - self._kill_after) * 0.9 + 0.01

    def _end(self, lease: Lease) -> None:
        """Tell the command to end, once; it is killed before another may have the key, or soon."""
        if self._kill_at is None:
            left = lease.remaining()
            # A little before the end, for what is killed needs a moment to be gone.
            in_time = 0.9 * min(left, self._kill_after) or self._kill_after
            self._kill_at = time.monotonic() + in_time
            when = f"ends in {duration(left)} and was not renewed" if left else "was lost"
            text = f"the lease of {lease.key!r} {when}: the command is being stopped"
            self.ends("lost", text, Code.LOST)
            self._group.signal(signal.SIGTERM)
            self._group.signal(signal.SIGCONT)  # One that is stopped could not end.
