"""The master that Sentinels name."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection
from typing import Final

from redis import exceptions

from ..transport.unfit import Unfit
from .asking import Connect, Lookup, Poll, asked, opened
from .settings import Address, Settings

ASK_EVERY: Final = 0.5
"""Seconds after which the Sentinels are asked again who is the master."""

STALE: Final = 1.0
"""Seconds after which Sentinels' answers are not used before they are asked again."""

SILENT_FOR: Final = 10.0
"""Seconds for which a Sentinel that did not answer is left alone."""

GRACE: Final = 0.2
"""Seconds that the other Sentinels have to answer when one has."""

Named = tuple[int, Address]
"""A master, and the number of the failover that made it one."""


class SentinelNodes:
    """The master that the Sentinels name; of several, that of the latest failover.

    A master that was replaced by hand goes on serving for seconds, until its Sentinels reconfigure
    it. So the Sentinels are asked repeatedly while locks are in use, side by side and in the
    background; the new master waits for that (``SWITCH`` in ``prelude.lua``). The last answer of a
    Sentinel counts until it gives another or no longer answers, so a late answer counts, too.
    """

    def __init__(self, settings: Settings, ask: Connect, on_change: Callable[[], object]) -> None:
        self._settings = settings
        self._ask = ask
        self._on_change = on_change
        self._guard = threading.Lock()
        self._said: dict[Address, Named] = {}
        self._master: Address | None = None
        self._silent_until: dict[Address, float] = {}
        self._lookup = Lookup(self._look, every=ASK_EVERY, stale=STALE)
        self.ready = self._lookup.ready
        self.refresh = self._lookup.refresh

    def address_of(self, bucket: int) -> Address:
        assert self._master is not None
        return self._master

    def listen_at(self) -> Address:
        return self.address_of(0)

    def serves(self, address: Address) -> bool:
        return address == self._master

    def moved(self, bucket: int, address: Address) -> None:
        """Do nothing: only a cluster's servers redirect."""

    def doubt(self, address: Address | None = None, error: Exception | None = None) -> None:
        self._lookup.doubt()

    def close(self) -> None:
        """Do nothing: each lookup ends soon."""

    def _look(self) -> bool:
        before = self._master
        silent = {each for each in self._settings.addresses if each in self._silent_until}
        loud = [each for each in self._settings.addresses if each not in silent]
        self._ask_the_silent(silent)
        poll = Poll(self._master_named_by)
        poll.ask_all(loud if loud or before else silent)
        poll.wait(lambda: bool(poll.answers), None if before is None else GRACE)
        poll.wait(lambda: False, GRACE)
        for each in loud:
            if each not in poll.heard:
                self._falls_silent(each)
        if self._master is None:
            service = self._settings.service
            if poll.answers:
                raise Unfit(
                    f"the Sentinels know no master called {service!r}: write the name of one into the"
                    " URL, as their command SENTINEL MASTERS lists them"
                )
            raise Unfit(
                f"no Sentinel of {self._settings.name} answers, to name the master {service!r}"
            )
        return before != self._master

    def _ask_the_silent(self, silent: Collection[Address]) -> None:
        """Ask Sentinels again that were silent for long. No caller waits for them."""
        now, poll = time.monotonic(), Poll(self._master_named_by)
        for each in silent:
            if now >= self._silent_until.get(each, 0.0):
                self._falls_silent(each)
                poll.ask(each)

    def _master_named_by(self, sentinel: Address) -> bool:
        """Ask one Sentinel, and return whether it knows a master of that name."""
        try:
            with opened(self._ask(sentinel)) as connection:
                reply = asked(connection, "SENTINEL", "MASTER", self._settings.service)
        except exceptions.ResponseError:
            self._hears(sentinel, None)
            return False
        except exceptions.RedisError:
            self._falls_silent(sentinel)
            self._hears(sentinel, None)
            raise
        facts = {
            key.decode(): value.decode() for key, value in zip(reply[::2], reply[1::2], strict=True)
        }
        self._silent_until.pop(sentinel, None)
        master = Address(facts["ip"], int(facts["port"]))
        self._hears(sentinel, (int(facts["config-epoch"]), master))
        return True

    def _hears(self, sentinel: Address, named: Named | None) -> None:
        with self._guard:
            self._said.pop(sentinel, None)
            if named:
                self._said[sentinel] = named
            before = self._master
            if self._said:
                self._master = max(self._said.values())[1]
            changed = before is not None and before != self._master
        if changed:
            self._on_change()

    def _falls_silent(self, sentinel: Address) -> None:
        self._silent_until[sentinel] = time.monotonic() + SILENT_FOR
