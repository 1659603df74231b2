"""Management commands: ``weblock``, and ``LockedCommand`` for those of which one process at a time runs one."""

from __future__ import annotations

import os
import signal
import threading
from typing import Any, ClassVar, Final, Literal

from django.core.management.base import BaseCommand, CommandError

from ...._options import Duration, HoldOptions
from ...._platform.logs import printable
from ....errors import (
    AlreadyHeld,
    ConfigurationError,
    EngineUnavailable,
    LeaseLost,
    LockTimeout,
    WeblockError,
)
from ....keys import KeyTemplate
from ..database import is_locked
from ..settings import locks
from ..view_lock import DEFAULT

_CODES: Final[dict[type[WeblockError], int]] = {
    LockTimeout: 75,
    EngineUnavailable: 69,
    LeaseLost: 76,
    ConfigurationError: 2,
    AlreadyHeld: 2,
}
"""The exit codes of ``weblock run``, too."""


class LockedCommand(BaseCommand):
    """The base class of a management command that runs under a lock.

    The lock is held from before the system checks until the command has ended, under a lease that is
    renewed meanwhile. A command whose key is busy, whose engine does not answer or whose lease was lost
    ends with 75, 69 or 76.
    """

    lock: str
    """The key, which may name options of the command: ``"import:{supplier}"``."""
    lock_alias: str = DEFAULT
    """The alias in ``WEBLOCK`` whose engine and options are used."""
    lock_options: ClassVar[HoldOptions] = {}
    """Override those of the alias: ``{"wait": None}`` waits without limit."""
    on_busy: Literal["wait", "skip"] = "wait"
    """``"skip"`` says on standard error that the key is busy, and ends with 0."""
    at_least: Duration | None = None
    """For how many seconds the key stays taken, also if the command ends before: see ``Locks.run``.

    With ``file://`` it is free when the process ends, and the command warns of it.
    """

    def run_from_argv(self, argv: list[str]) -> None:
        """Run the command that the process was started for. SIGTERM ends it as before, after its release."""
        if threading.current_thread() is not threading.main_thread() or (
            signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
        ):
            super().run_from_argv(argv)
            return
        asked_to_end, pid = False, os.getpid()

        def end(*_signal: object) -> None:
            nonlocal asked_to_end
            if os.getpid() == pid:
                asked_to_end = True
                raise SystemExit
            signal.signal(signal.SIGTERM, signal.SIG_DFL)  # A child that the command has forked.
            signal.raise_signal(signal.SIGTERM)

        signal.signal(signal.SIGTERM, end)
        try:
            super().run_from_argv(argv)
        finally:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            if asked_to_end:
                signal.raise_signal(signal.SIGTERM)

    def execute(self, *args: Any, **options: Any) -> str | None:
        """Run the command, and return what it returns, while it holds its key."""
        template = KeyTemplate.parse(self.lock)
        if missing := [name for name in template.names if options.get(name) is None]:
            raise CommandError(
                f"the lock {self.lock!r} of this command needs the option {missing[0]!r}, which was not"
                " given or does not exist: give it, or a default in add_arguments",
                returncode=_CODES[ConfigurationError],
            )
        key = template.fill(options)
        ran = False

        def work() -> str | None:
            nonlocal ran
            ran = True
            token = is_locked.set(True)
            try:
                done: str | None = super(LockedCommand, self).execute(*args, **options)
            finally:
                is_locked.reset(token)
            return done

        hold, own = self.lock_options.copy(), locks[self.lock_alias]
        if self.at_least is not None and own.scope == "host":
            self.stderr.write(
                f"warning: {own.engine} frees what a process held as soon as it ends, so at_least cannot"
                " keep a key locked there: use an engine that several machines share, such as redis://"
            )
        try:
            result = own.run(key, work, on_busy=self.on_busy, at_least=self.at_least, **hold)
        except WeblockError as error:
            codes = [code for kind, code in _CODES.items() if isinstance(error, kind)]
            if not codes or (ran and not isinstance(error, LeaseLost)):
                raise
            raise CommandError(printable(error.for_operators), returncode=codes[0]) from error
        if not ran:
            self.stderr.write(f"skipped: {printable(key)} is busy")
        return result
