"""Runs scripts where their keys live, for callers of both APIs.

Written once, as the core is: with the ``Links`` of the blocking API nothing here suspends. A request ends
with its replies, of which each may be an error reply, or it fails with redis-py's ``ConnectionError`` or
``TimeoutError``. Then it is unknown whether the server has executed it: see ``link``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial
from time import monotonic
from typing import Any, Final, TypeVar

from redis import exceptions

from ...errors import ConfigurationError, EngineUnavailable
from ..transport.failures import Unfit
from .asking import FAILURES
from .calls import MICRO, Call, Layout, packed
from .link import Link, Links, Outcome
from .scripts import (
    ACQUIRE,
    BEAT,
    FORMAT,
    KEEP_TEXT,
    LOOK,
    PROBE,
    RELEASE,
    RENEW,
    TRANSFER,
    WRITE,
)
from .servers import GRANT, examine, explained
from .settings import Address, Settings
from .topology import Nodes

EXAMINED_EVERY: Final = 1.0
"""Seconds after which a server is asked again whether it can keep locks: its settings may have changed."""

REDIRECTIONS: Final = 5
"""How often a call follows a cluster that moves its keys about."""

_BINDING: Final = (ACQUIRE, RENEW, BEAT, TRANSFER, WRITE, KEEP_TEXT)
"""Whose answer may be a lease, or a permanent mark, or that a text is kept."""

_OF_LOCK_ALONE: Final = (RENEW, RELEASE, LOOK)
"""What can run with the lock's own key, while a cluster moves its slot."""

_REPEATABLE: Final = (ACQUIRE, TRANSFER, LOOK)
"""What is repeated at once. A second release would be answered that there was nothing to release."""

MOVING: Final = (
    "its slot is being moved to another master, which grants keys when the move has ended"
)

T = TypeVar("T")

Admit = Callable[[str], None]
"""Decides on a server's run after we have connected to it. Raises ``Unfit``."""


class Wire:
    """The way to the servers, for one world."""

    def __init__(
        self,
        settings: Settings,
        layout: Layout,
        nodes: Nodes,
        links: Links,
        *,
        admit: Admit,
        now: Callable[[], float] = monotonic,
    ) -> None:
        self.links = links
        self._now = now
        self._admit = admit
        self._name = settings.name
        self._settings = settings
        self._recovery = settings.recovery
        self._where = settings.deployment.value
        self._layout = layout
        self._nodes = nodes
        self._replicated = bool(settings.min_replicas)
        self._known: set[str] = set()
        self._examine_at: defaultdict[Address, float] = defaultdict(float)
        """When a server is asked again whether it can keep locks, before it grants the next."""

    async def run(self, call: Call) -> Outcome:
        """Run one script. Raises ``EngineUnavailable``."""
        nodes, links = self._nodes, self.links
        if not self._replicated and nodes.ready():
            address, link = None, None
            permits: list[None] = []
            try:
                address = nodes.address_of(call.bucket)
                link = await links.take(address, permits, self._introduced)
                try:
                    if call.script is ACQUIRE and self._now() >= self._examine_at[address]:
                        await self._examined(link)
                    command = call.command(link.incarnation, self._recovery.micros, self._where)
                    reply = await link.ask(command)
                finally:
                    link.home.give_back(link)
            except FAILURES as error:
                if address:
                    nodes.doubt(address, error)
                # The connection may have been closed before it was used again.
                closed = link and type(error) is exceptions.ConnectionError
                repeatable = closed and call.script in _REPEATABLE
                if not repeatable or (call.may_repeat and not call.may_repeat()):
                    raise self._judged(error)  # noqa: B904 - it has its cause
            else:
                if not isinstance(reply, Exception):
                    return reply
            finally:
                if permits:
                    links.free.put(None)
        # It may have to be loaded, sent elsewhere, or copied to replicas.
        (reply,) = await self.run_each([call])
        return reply

    async def run_each(self, calls: Sequence[Call]) -> list[Outcome]:
        """Run scripts side by side, and return the answer of each. Raises ``EngineUnavailable``."""
        outcomes = await self.run_all(calls)
        for index in range(len(outcomes)):
            if isinstance(outcomes[index], Exception):
                raise outcomes.pop(index)  # It refers to this frame, which must not refer to it.
        return outcomes

    async def run_all(self, calls: Sequence[Call]) -> list[Outcome]:
        """Run scripts side by side, and return the answer of each, or its ``EngineUnavailable``."""
        late = exceptions.TimeoutError("no connection in time")
        pending = list(range(len(calls)))
        outcomes: dict[int, Outcome] = dict.fromkeys(pending, late)

        async def run_at(address: Address, part: list[int]) -> None:
            some, beside = [calls[index] for index in part], len(parts) > 1
            replies = await self._exchange(address, some, beside=beside)
            for index, reply in zip(part, replies, strict=True):
                outcomes[index] = await self._followed(calls[index], reply, address, beside=beside)

        for _ in range(REDIRECTIONS):
            parts: dict[Address, list[int]] = {}
            try:
                await self._ready()
            except FAILURES as error:
                outcomes |= dict.fromkeys(pending, error)
                break
            for index in pending:
                try:
                    parts.setdefault(self._nodes.address_of(calls[index].bucket), []).append(index)
                except FAILURES as error:
                    self._nodes.doubt()
                    outcomes[index] = error
            works = [run_at(*part) for part in parts.items()]
            if len(works) == 1:
                await works[0]
            elif works:
                await self.links.together(works)
            pending = [i for i in pending if type(outcomes[i]) is exceptions.MovedError]
            if not pending:
                break
        return [self._judged(outcome) for outcome in outcomes.values()]

    async def clock(self) -> float:
        """Return what the clock of the only server shows. Raises ``EngineUnavailable``."""
        (address,) = await self._masters()
        seconds, rest = await self._asked(address, packed("TIME"))
        return (MICRO * int(seconds) + int(rest)) / MICRO

    async def scan(self, pattern: str) -> AsyncIterator[list[str]]:
        """The names of the keys that match, in parts, from all servers."""
        for address in await self._masters():
            cursor = "0"
            while True:
                command = packed("SCAN", cursor, "MATCH", pattern, "COUNT", "1000")
                reply = await self._asked(address, command)
                cursor, names = reply[0].decode(), reply[1]
                yield [name.decode(errors="replace") for name in names]
                if cursor == "0":
                    break

    async def _ready(self) -> None:
        """Find out where the servers are, unless that is known."""
        if not self._nodes.ready():
            await self.links.aside(self._nodes.refresh)

    async def _masters(self) -> Sequence[Address]:
        try:
            await self._ready()
            return self._nodes.masters()
        except FAILURES as error:
            raise self._judged(error) from error

    async def _asked(self, address: Address, command: bytes) -> Any:
        reply = self._judged(await self._on_link(address, lambda link: link.ask(command)))
        if isinstance(reply, Exception):
            raise reply
        return reply

    async def _exchange(
        self,
        address: Address,
        calls: Sequence[Call],
        *,
        asking: bool = False,
        beside: bool = False,
    ) -> list[Outcome]:
        """The replies to all calls at one server, or for all of them why there are none."""
        work = partial(self._replies, calls=calls, asking=asking)
        replies = await self._on_link(address, work, beside=beside)
        return [replies] * len(calls) if isinstance(replies, Exception) else replies

    async def _on_link(
        self, address: Address, work: Callable[[Link[Any]], Awaitable[T]], *, beside: bool = False
    ) -> T | Exception:
        """Return the result of ``work`` on a connection to a server, or why there is none."""
        permits: list[None] = []
        try:
            link = await self.links.take(address, permits, self._introduced, beside=beside)
            try:
                return await work(link)
            finally:
                link.home.give_back(link)
        except FAILURES as error:
            self._nodes.doubt(address, error)
            return error
        finally:
            if permits:
                self.links.free.put(None)

    async def _replies(
        self, link: Link[Any], *, calls: Sequence[Call], asking: bool
    ) -> list[Outcome]:
        grants = any(call.script is ACQUIRE for call in calls)
        if grants and self._now() >= self._examine_at[link.address]:
            await self._examined(link)
        facts = link.incarnation, self._recovery.micros, "asking" if asking else self._where
        binding = any(call.script in _BINDING for call in calls)
        sent = partial(self._sent, link, asking=asking, binding=binding)
        outcomes = await sent([call.command(*facts) for call in calls])
        unknown = [i for i, reply in enumerate(outcomes) if type(reply) is exceptions.NoScriptError]
        if unknown:
            whole = [calls[index].command(*facts, whole=True) for index in unknown]
            for index, reply in zip(unknown, await sent(whole), strict=True):
                outcomes[index] = reply
        if any(type(reply) is exceptions.ReadOnlyError for reply in outcomes):
            link.discard()
            self._nodes.doubt()
        return outcomes

    async def _sent(
        self, link: Link[Any], commands: Sequence[bytes], *, asking: bool, binding: bool
    ) -> list[Outcome]:
        if asking:
            commands = [part for command in commands for part in (packed("ASKING"), command)]
        least = self._settings.min_replicas if binding else 0
        if least:  # One wait covers all that was written on this connection before.
            patience = round(self._settings.timeout * 1000 / 2)
            commands = [*commands, packed("WAIT", least, patience)]
        replies = await link.exchange(commands)
        copies = replies.pop() if least else 0
        if asking:
            replies = replies[1::2]
        if isinstance(copies, Exception):
            return [copies] * len(replies)
        if copies >= least:
            return replies
        # A lease that too few replicas have is none.
        few = Unfit(
            f"{copies} of at least {least} replicas acknowledged (min_replicas={least}):"
            " bring the others back, or ask for fewer"
        )
        return [reply if isinstance(reply, Exception) else few for reply in replies]

    async def _followed(
        self, call: Call, reply: Outcome, address: Address, *, beside: bool
    ) -> Outcome:
        """Go where a cluster says that a key is, or may be already."""
        if self._where != "cluster":  # What is no cluster sends our credentials nowhere.
            return reply
        torn = isinstance(reply, exceptions.ResponseError) and "non local key" in str(reply)
        if type(reply) is exceptions.MovedError:
            self._nodes.moved(call.bucket, _sent_to(reply, address))
        elif torn or type(reply) in (exceptions.AskError, exceptions.TryAgainError):
            if len(call.keys) > 1:
                if call.script not in _OF_LOCK_ALONE:
                    return Unfit(MOVING)
                call = Call(call.script, call.bucket, call.keys[:1], call.args)
                (reply,) = await self._exchange(address, [call], beside=beside)
            if type(reply) is exceptions.AskError:
                target = _sent_to(reply, address)
                (reply,) = await self._exchange(target, [call], asking=True, beside=beside)
        return reply

    async def _introduced(self, link: Link[Any]) -> None:
        """Find out on a new connection whether its server can keep locks, and lets our user do so."""
        try:
            link.incarnation = run = await self._examined(link)
            self._admit(run)
            channel = self._layout.channel("probe")
            here = [] if run in self._known else self._nodes.buckets_at(link.address)
            for bucket in here:
                probe = Call(PROBE, bucket, (self._layout.probe(bucket),), (channel,))
                refused = await link.ask(probe.command("", "0", self._where, whole=True))
                if isinstance(refused, exceptions.AskError):
                    continue  # It is just being moved, so nothing can be tried in it.
                if isinstance(refused, Exception):
                    raise refused
                if refused:
                    commands = ", ".join(command.decode() for command in refused)
                    raise Unfit(
                        f"its user has no right to run {commands} on keys and channels that start"
                        f" with {self._layout.prefix}, or the server does not have it: {GRANT}"
                    )
                self._known.add(run)
                break
        except BaseException:
            link.discard()
            raise

    async def _examined(self, link: Link[Any]) -> str:
        """Find out whether a server can keep locks, or still can; return its run. Raises ``Unfit`` if not.

        Then each caller asks again until it can. Leases that are held are renewed and released as ever.
        """
        # One caller asks for all: the others continue until its answer has come.
        self._examine_at[link.address], run = self._now() + EXAMINED_EVERY, ""
        try:
            info = await link.ask(packed("INFO"))
            if isinstance(info, Exception):
                raise info
            run = examine(info, self._settings)
        finally:
            if not run:
                self._examine_at[link.address] = 0.0
        return run

    def _judged(self, outcome: Outcome) -> Outcome:
        if not isinstance(outcome, Exception) or isinstance(outcome, EngineUnavailable):
            return outcome
        _mark, found, other = str(outcome).partition("WEBLOCKFORMAT ")
        if found:
            return ConfigurationError(
                f"{self._name} has locks in the format {other!r:.20}, and this version of weblock"
                f" reads and writes the format {FORMAT!r}: stop all that lock here for the longest"
                f" ttl, and delete the keys that start with {self._layout.prefix}:",
                code="other_format",
            )
        unavailable = EngineUnavailable(self._name, explained(outcome))
        unavailable.__cause__ = None if isinstance(outcome, Unfit) else outcome
        return unavailable


def _sent_to(reply: exceptions.AskError, address: Address) -> Address:
    """Return where a redirection leads; without a host, to the server that sent it."""
    return Address(reply.host or address.host, reply.port)
