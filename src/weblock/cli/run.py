"""``weblock run KEY -- command``: holds a key while a command runs, as ``flock(1)`` does on one machine."""

from __future__ import annotations

import json
import logging
import os
import queue
import signal
import socket
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, Final

import click

from .. import AlreadyHeld, ConfigurationError, HoldOptions, Lease, LeaseLost, Locks, LockTimeout
from .._adapting import leave
from .._core.table import SHARED
from .._options import LONGEST
from .._platform.logs import printable
from ..operating import duration
from .app import Session, command, pass_session
from .codes import Code
from .group import Group
from .output import warn

PASSED_ON: Final = ("HUP", "INT", "QUIT", "TERM", "USR1", "USR2", "ALRM")
"""Signals that the command gets when we do."""

HELD_ENV: Final = "WEBLOCK_RUN_HOLDS"
"""The environment variable in which a ``weblock run`` inside another finds what those outside hold."""

LOST: Final = 0
"""What stands for the loss of the lease, among the numbers of signals."""


@command("run")
@click.argument("key")
@click.argument("arguments", metavar="-- COMMAND [ARGUMENT]...", nargs=-1, required=True)
@click.option("--wait", type=float, help="Seconds to wait for the key; without end, unless given.")
@click.option(
    "--skip-if-busy", is_flag=True, help="Exit with 0 if the key is busy, at once or after --wait."
)
@click.option(
    "--ttl",
    type=float,
    default=30.0,
    show_default=True,
    help="Seconds that the lease lasts when this machine has died.",
)
@click.option(
    "--kill-after",
    type=float,
    default=5.0,
    show_default=True,
    help="Seconds from SIGTERM to SIGKILL, when the lease is ending.",
)
@click.option("--max-hold", type=float, help="Seconds that the command may run.")
@click.option(
    "--at-least",
    type=float,
    default=0.0,
    help="Seconds that KEY stays locked, also if the command ends before.",
)
@click.option("--limit", type=int, help="How many may hold KEY together; 1, unless given.")
@click.option("--shared", is_flag=True, help="Hold KEY with any number of others that share it.")
@click.option("--label", help="What others see of the holder. [default: host:process command]")
@click.option(
    "--fence-env",
    default="WEBLOCK_FENCE",
    show_default=True,
    metavar="NAME",
    help="The environment variable in which the command finds its fencing token.",
)
@pass_session
def run_command(
    session: Session,
    key: str,
    arguments: Sequence[str],
    *,
    wait: float | None,
    skip_if_busy: bool,
    ttl: float,
    kill_after: float,
    max_hold: float | None,
    at_least: float,
    limit: int | None,
    shared: bool,
    label: str | None,
    fence_env: str,
) -> None:
    """Holds KEY while it runs a command, so that no other process holds it meanwhile.

    With --limit 3, up to three hold it together. With --shared, any number of those that share it do,
    but none beside an exclusive holder: many readers, one writer.

    It exits with the command's code, or with 128 and the number of the signal that ended it; with 75
    if the key was not free in time, 69 if the engine does not answer, 76 if the lease was lost, 126 or
    127 if the command cannot be run. Signals are passed on to all processes of the command.

    When the lease is ending and cannot be renewed, the command gets SIGTERM --kill-after seconds
    before, and SIGKILL just before it ends, so that it has ended before another gets the key. When the lease
    is taken away, it gets both then.

    With --at-least, a machine whose clock is late finds KEY busy, and does not run the command again.
    """
    _check(ttl, kill_after)
    _check_name(fence_env)
    label = label or f"{socket.gethostname()}:{os.getpid()} {Path(arguments[0]).name}"
    hold: HoldOptions = {"ttl": ttl, "max_hold": max_hold, "label": label}
    hold["wait"] = 0 if skip_if_busy and wait is None else wait
    if limit is not None:
        hold["limit"] = limit
    if shared:
        hold["shared"] = True
    report = Report(session, key)
    logs = logging.CRITICAL if session.json else logging.WARNING
    with session.locks(logs=logs) as locks, signals() as heard:
        _check_engine(locks)
        if at_least:
            _check_at_least(locks, at_least, max_hold)
        _refuse_own(locks, key, SHARED if shared else limit or 1)
        group = Group()
        try:
            lease = _acquire(locks, key, hold, max(ttl, at_least), heard)
            report.acquired(lease)
            run = Run(group, lease, heard, kill_after, report, at_least=at_least)
            code = run.until_it_ends(arguments, fence_env)
        except LockTimeout as busy:
            if not skip_if_busy:
                raise
            code = report.skipped(busy)
        except Interrupted as interrupted:
            code = report.interrupted(interrupted.number)
        finally:
            group.close()
    raise SystemExit(report.ended(code))


def _check(ttl: float, kill_after: float) -> None:
    if not hasattr(os, "posix_spawnp"):
        raise ConfigurationError("weblock run needs the process groups of Linux or macOS")
    if not 0 <= kill_after <= ttl / 2:
        raise ConfigurationError(
            f"--kill-after {kill_after:g} must be from 0 to half of the ttl, which is {ttl:g} s:"
            " a lease is renewed after a third of its ttl, and may be ending from --kill-after on."
            " Raise --ttl"
        )


def _check_name(fence_env: str) -> None:
    if not fence_env or "=" in fence_env:
        raise ConfigurationError(
            f"--fence-env {fence_env!r:.80} must be the name of an environment variable, such as"
            " WEBLOCK_FENCE"
        )


def _check_engine(locks: Locks) -> None:
    if locks.scope == "process":
        raise ConfigurationError(
            f"{locks.engine} locks inside one process, and excludes no other command: name file:// for"
            " one machine, redis:// for several, or noop:// to lock nothing"
        )


def _check_at_least(locks: Locks, at_least: float, max_hold: float | None) -> None:
    limit = LONGEST if max_hold is None else max_hold
    if not 0 < at_least <= limit:
        raise ConfigurationError(
            f"--at-least {at_least:g} must be more than 0, and not more than --max-hold"
        )
    if locks.scope == "host":
        raise ConfigurationError(
            f"{locks.engine} frees what a process held as soon as it ends, so --at-least cannot keep a"
            " key locked there: name an engine that several machines share, such as redis://"
        )


def _held() -> dict[str, int]:
    """Return the fences of the keys that our parent processes hold while we run."""
    try:
        held = json.loads(os.environ.get(HELD_ENV, "{}"))
    except ValueError:
        return {}
    return held if isinstance(held, dict) else {}


def _refuse_own(locks: Locks, key: str, limit: int) -> None:
    """Raise ``AlreadyHeld`` for a key that a parent process holds until we have ended."""
    held = _held()
    info = locks.inspect(key) if key in held else None
    for holder in info.holders if info else ():
        if holder.fence == held[key]:
            raise AlreadyHeld(key, upgrade=limit < (holder.limit or SHARED))


class Interrupted(BaseException):
    """A signal came while we waited for the key."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


class Heard:
    """The signals that came, and the loss of the lease, in their order."""

    def __init__(self) -> None:
        # In C, so that a signal's handler may put something there at any time.
        self._events: queue.SimpleQueue[int | tuple[int]] = queue.SimpleQueue()
        self.interrupts = True
        """Whether a signal is raised, since it interrupts the waiting."""

    def signal(self, number: int, _frame: FrameType | None) -> None:
        """Hear a signal; for ``signal.signal``."""
        if self.interrupts:
            raise Interrupted(number)
        self._events.put(number)

    def lost(self) -> None:
        """Hear that the lease is lost."""
        self._events.put(LOST)

    def ended(self, status: int) -> None:
        """Hear that the command has ended."""
        self._events.put((status,))

    def next(self, timeout: float) -> int | tuple[int] | None:
        """Return a signal, ``LOST``, the command's wait status in a tuple, or ``None``."""
        try:
            return self._events.get(timeout=max(0.0, timeout))
        except queue.Empty:
            return None


@contextmanager
def signals() -> Generator[Heard]:
    """Hear the signals that a command should get; not those that our caller ignores (nohup)."""
    heard = Heard()
    before: dict[int, Any] = {}
    for name in PASSED_ON:
        number = getattr(signal, f"SIG{name}")
        if signal.getsignal(number) is not signal.SIG_IGN:
            before[number] = signal.signal(number, heard.signal)
    try:
        yield heard
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _acquire(locks: Locks, key: str, hold: HoldOptions, ttl: float, heard: Heard) -> Lease:
    lease = locks.acquire(key, **hold)
    heard.interrupts = False
    try:
        # A lease that was handed over is short until its holder confirms it, and would seem to be ending.
        lease.extend(max(0.0, ttl - lease.remaining()))
    except BaseException:
        lease.release()
        raise
    lease.on_lost(heard.lost)
    return lease


class Run:
    """One command, from its start to its end, and the lease that it runs under."""

    def __init__(
        self,
        group: Group,
        lease: Lease,
        heard: Heard,
        kill_after: float,
        report: Report,
        *,
        at_least: float,
    ) -> None:
        self._group = group
        self._lease = lease
        self._heard = heard
        self._kill_after = kill_after
        self._report = report
        self._taken_until = time.monotonic() + at_least
        self._kill_at: float | None = None
        """When the command is killed that has been told to end."""

    def until_it_ends(self, arguments: Sequence[str], fence_env: str) -> int:
        """Run the command, release the lease, and return the exit code."""
        held = json.dumps(_held() | {self._lease.key: self._lease.fence})
        env = {
            **os.environ,
            fence_env: str(self._lease.fence),
            "WEBLOCK_KEY": self._lease.key,
            HELD_ENV: held,
        }
        try:
            try:
                self._tend()
                self._group.start(arguments, env, self._heard.ended)
            except OSError as error:
                return self._report.not_started(arguments[0], error)
            code = self._attend()
        finally:
            lost = self._release()
        if lost or self._kill_at is not None:
            return self._report.lost(lost)
        if code == Code.SIGNALLED + signal.SIGKILL and self._group.is_overdue:
            return self._report.hung()
        return code

    def _attend(self) -> int:
        """Pass on signals, and end the command with the lease."""
        while True:
            event = self._heard.next(self._tend())
            match event:
                case (status,):
                    code = os.waitstatus_to_exitcode(status)
                    return code if code >= 0 else Code.SIGNALLED - code
                case 0:  # LOST
                    self._end()
                case int():
                    self._group.signal(event)
                case None:
                    pass  # It is time to look again.

    def _tend(self) -> float:
        """Do what is due, and return after how many seconds to look again."""
        left, now = self._lease.remaining(), time.monotonic()
        if self._kill_at is not None:
            if now >= self._kill_at:
                self._group.signal(signal.SIGKILL)
                return 1.0
            return self._kill_at - now
        if left <= self._kill_after:
            self._end()
            return left
        self._group.lives_until(left)
        # Renewed or not, the watchdog must know before the end that it knows of.
        return (left - self._kill_after) * 0.9 + 0.01

    def _end(self) -> None:
        """Tell the command to end, once; it is killed before another may have the key, or soon."""
        if self._kill_at is None:
            left = self._lease.remaining()
            # A little before the end, for what is killed needs a moment to be gone.
            in_time = 0.9 * min(left, self._kill_after) or self._kill_after
            self._kill_at = time.monotonic() + in_time
            self._report.ending(self._lease)
            self._group.signal(signal.SIGTERM)
            self._group.signal(signal.SIGCONT)  # One that is stopped could not end.

    def _release(self) -> LeaseLost | None:
        try:
            if time.monotonic() < self._taken_until:
                leave(self._lease)
            self._lease.release()
        except LeaseLost as lost:
            return lost
        return None


class Report:
    """Writes to standard error, which the command uses, too: as little as possible."""

    def __init__(self, session: Session, key: str) -> None:
        self._session = session
        self._facts: dict[str, Any] = {"key": key, "outcome": "ran"}
        self._began = time.monotonic()

    def acquired(self, lease: Lease) -> None:
        """The key is held: what follows is the command's time."""
        now = time.monotonic()
        self._facts |= {"fence": lease.fence, "waited": round(now - self._began, 3)}
        self._began = now

    def skipped(self, busy: LockTimeout) -> int:
        """The key was busy, and that is no error."""
        self._say("skipped", f"skipped: {busy}")
        return 0

    def interrupted(self, number: int) -> int:
        """A signal came before the key was free."""
        self._facts["outcome"] = "interrupted"
        return Code.SIGNALLED + number

    def not_started(self, name: str, error: OSError) -> int:
        """The command cannot be started; the codes are those of a shell."""
        self._say("not started", f"{name} cannot be run: {error.strerror}")
        missing = isinstance(error, FileNotFoundError)
        return Code.NOT_FOUND if missing else Code.NOT_EXECUTABLE

    def ending(self, lease: Lease) -> None:
        """The command is asked to end, because the lease ends."""
        left = lease.remaining()
        when = f"ends in {duration(left)} and was not renewed" if left else "was lost"
        self._say("lost", f"the lease of {lease.key!r} {when}: the command is being stopped")

    def lost(self, lost: LeaseLost | None) -> int:
        """The command has ended because its lease was lost, or without knowing that it was."""
        self._facts["outcome"] = "lost"
        if lost:
            self._say("lost", str(lost))
        return Code.LOST

    def hung(self) -> int:
        """The watchdog has killed the command because this process had not told it of a renewal."""
        self._say("lost", "weblock itself stood still, and the command was killed in time")
        return Code.LOST

    def ended(self, code: int) -> int:
        """Report how the run ended, for ``--json``."""
        if self._session.json:
            if "fence" in self._facts:
                self._facts["held_for"] = round(time.monotonic() - self._began, 3)
            warn(json.dumps(self._facts | {"exit_code": code}))
        return code

    def _say(self, outcome: str, text: str) -> None:
        self._facts["outcome"] = outcome
        if not self._session.json:
            warn(f"weblock: {printable(text)}")
