"""Runs scripts where their keys live, whichever world the caller is of.

Written once, as the core is: on ``Links`` of the blocking world nothing here suspends.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Final, Protocol

from redis import exceptions

from ...errors import EngineUnavailable
from .calls import Call, Layout, micros, packed
from .nodes import Nodes
from .scripts import ACQUIRE, MARK, PROBE, REFRESH
from .servers import GRANT, Server, Unfit, examine, explained
from .settings import Address, Settings

REDIRECTIONS: Final = 5
"""How often a call follows a cluster that moves its keys about."""

Outcome = Any
"""What a script returned, or the exception that says why it did not."""


class Link(Protocol):
    """A connection to one server, used by one caller at a time or by many at once."""

    address: Address
    server: Server

    async def exchange(self, commands: Sequence[bytes]) -> list[Any]:
        """Sends commands in one go, and returns their replies; an error reply is an exception.

        Raises redis-py's ``ConnectionError`` or ``TimeoutError``; then the link is of no more use.
        """

    def discard(self) -> None:
        """Ends the connection, and with it all that is under way on it."""


class Links(Protocol):
    """The links of one world."""

    @property
    def process(self) -> str:
        """The channel on which the waiters here are rung."""

    def take(self, address: Address, introduce: Introduce) -> Awaitable[Link]: ...

    def give_back(self, link: Link) -> None: ...

    def listen(self) -> None:
        """Sees to it that rings are heard, from now on."""

    def aside(self, work: Callable[[], None]) -> Awaitable[None]:
        """Does something that blocks, without keeping others waiting."""

    def tidy(self) -> None:
        """Ends connections that were needed only for a rush. May be called from any thread."""

    def close(self) -> None: ...

    def abandon(self) -> None:
        """Closes the copies that a forked child has inherited; the parent's stay as they are."""


class Introduce(Protocol):
    """What is to be said and asked on a new connection."""

    async def __call__(self, link: Link) -> None: ...


Admit = Callable[[Server], None]
"""Has the last word on a server that we have connected to. Raises ``Unfit``."""


class Wire:
    """The way to the servers, for one world."""

    def __init__(
        self, settings: Settings, layout: Layout, nodes: Nodes, links: Links, *, admit: Admit
    ) -> None:
        self.links = links
        self._admit = admit
        self._name = settings.name
        self._settings = settings
        self._layout = layout
        self._nodes = nodes
        self._longest = micros(settings.recovery)
        self._known: set[str] = set()

    async def run(self, call: Call) -> Outcome:
        """Runs one script. Raises ``EngineUnavailable``."""
        if self._settings.min_replicas or self._nodes.stale:
            (outcome,) = await self.run_all([call])
        else:
            outcome = await self._run_plainly(call)
        if isinstance(outcome, Exception):
            raise self._judged(outcome)
        return outcome

    async def run_all(self, calls: Sequence[Call]) -> list[Outcome]:
        """Runs scripts side by side: what each returned, or ``EngineUnavailable``."""
        outcomes: list[Outcome] = [None] * len(calls)
        pending = list(range(len(calls)))
        for _ in range(REDIRECTIONS):
            for address, part in (await self._by_address(calls, pending, outcomes)).items():
                replies = await self._exchange(address, [calls[index] for index in part])
                for index, reply in zip(part, replies, strict=True):
                    outcomes[index] = await self._followed(calls[index], reply)
            pending = [index for index in pending if _moved(outcomes[index])]
            if not pending:
                break
            self._nodes.doubt()
        return [self._judged(outcome) for outcome in outcomes]

    async def _run_plainly(self, call: Call) -> Outcome:
        """What nearly every call needs. One that the server refuses is asked again, with all else."""
        nodes = self._nodes
        try:
            link = await self.links.take(nodes.address_of(call.bucket), self._introduced)
            try:
                command = call.by_name(link.server.run, self._longest, nodes.peers)
                (reply,) = await link.exchange([command])
            finally:
                self.links.give_back(link)
        except (exceptions.RedisError, Unfit, OSError) as error:
            nodes.doubt()
            return error
        if isinstance(reply, exceptions.ResponseError):
            (reply,) = await self.run_all([call])
        return reply

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

    async def _masters(self) -> Sequence[Address]:
        if self._nodes.stale:
            try:
                await self.links.aside(self._nodes.refresh)
            except (exceptions.RedisError, Unfit, OSError) as error:
                raise self._judged(error) from error
        return sorted({self._nodes.address_of(b) for b in range(self._layout.buckets)})

    async def _asked(self, address: Address, command: bytes) -> Any:
        try:
            link = await self.links.take(address, self._introduced)
            try:
                (reply,) = await link.exchange([command])
            finally:
                self.links.give_back(link)
        except (exceptions.RedisError, Unfit, OSError) as error:
            self._nodes.doubt()
            reply = error
        judged = self._judged(reply)
        if isinstance(judged, EngineUnavailable):
            raise judged
        return judged

    async def _by_address(
        self, calls: Sequence[Call], pending: Sequence[int], outcomes: list[Outcome]
    ) -> dict[Address, list[int]]:
        """Where each pending call goes; for one that can go nowhere, why."""
        parts: dict[Address, list[int]] = {}
        if self._nodes.stale:
            try:
                await self.links.aside(self._nodes.refresh)
            except (exceptions.RedisError, Unfit, OSError) as error:
                for index in pending:
                    outcomes[index] = error
                return parts
        for index in pending:
            try:
                parts.setdefault(self._nodes.address_of(calls[index].bucket), []).append(index)
            except Unfit as error:
                self._nodes.doubt()
                outcomes[index] = error
        return parts

    async def _exchange(
        self, address: Address, calls: Sequence[Call], *, asking: bool = False
    ) -> list[Outcome]:
        """The replies to all calls at one server, or for all of them why there are none."""
        try:
            link = await self.links.take(address, self._introduced)
        except (exceptions.RedisError, Unfit, OSError) as error:
            self._nodes.doubt()
            return [error] * len(calls)
        try:
            return await self._replies(link, calls, asking=asking)
        except exceptions.RedisError as error:
            self._nodes.doubt()
            return [error] * len(calls)
        finally:
            self.links.give_back(link)

    async def _replies(self, link: Link, calls: Sequence[Call], *, asking: bool) -> list[Outcome]:
        run, longest, peers = link.server.run, self._longest, self._nodes.peers
        sent = partial(self._sent, link, asking=asking, binding=any(map(_binds, calls)))
        outcomes = await sent([call.by_name(run, longest, peers) for call in calls])
        unknown = [
            index for index, reply in enumerate(outcomes) if type(reply) is exceptions.NoScriptError
        ]
        if unknown:
            whole = [calls[index].whole(run, longest, peers) for index in unknown]
            for index, reply in zip(unknown, await sent(whole), strict=True):
                outcomes[index] = reply
        if any(type(reply) is exceptions.ReadOnlyError for reply in outcomes):
            link.discard()
        return outcomes

    async def _sent(
        self, link: Link, commands: Sequence[bytes], *, asking: bool, binding: bool
    ) -> list[Outcome]:
        if asking:
            commands = [part for command in commands for part in (_ASKING, command)]
            return (await link.exchange(commands))[1::2]
        replicas = self._settings.min_replicas
        if not replicas or not binding:
            return await link.exchange(commands)
        # One wait covers all that was written on this connection before.
        patience = round(self._settings.timeout * 1000 / 2)
        wait = packed("WAIT", replicas, patience)
        *replies, acknowledged = await link.exchange([*commands, wait])
        return [self._acknowledged(reply, acknowledged) for reply in replies]

    def _acknowledged(self, reply: Outcome, acknowledged: Outcome) -> Outcome:
        """A lease that too few replicas have is none."""
        if isinstance(acknowledged, Exception):
            return acknowledged
        least = self._settings.min_replicas
        if acknowledged >= least or isinstance(reply, Exception):
            return reply
        return Unfit(
            f"{acknowledged} of at least {least} replicas acknowledged (min_replicas={least}):"
            " bring the others back, or ask for fewer"
        )

    async def _followed(self, call: Call, reply: Outcome) -> Outcome:
        """Goes where a cluster that is moving a key says that it may be already."""
        if type(reply) is not exceptions.AskError:
            return reply
        (reply,) = await self._exchange(Address(reply.host, reply.port), [call], asking=True)
        return reply

    async def _introduced(self, link: Link) -> None:
        """Finds out on a new connection whether its server will do."""
        (info,) = await link.exchange([_INFO])
        if isinstance(info, Exception):
            raise info
        link.server = examine(info, self._settings)
        self._admit(link.server)
        if link.server.run in self._known:
            return
        await self._probe(link)

    async def _probe(self, link: Link) -> None:
        """Tries on a server that is new to us whether its user may do what we need."""
        buckets = range(self._layout.buckets)
        here = [each for each in buckets if self._nodes.address_of(each) == link.address]
        if not here:  # It is just being handed its first.
            return
        bucket = here[0]
        channel = self._layout.channel("probe")
        probe = Call(PROBE, bucket, (self._layout.probe(bucket),), (channel,))
        (refused,) = await link.exchange([probe.whole("", "0", "")])
        if isinstance(refused, Exception):
            raise refused
        if refused:
            commands = ", ".join(command.decode() for command in refused)
            raise Unfit(
                f"its user may not run {commands} on keys and channels that start with"
                f" {self._layout.prefix}: {GRANT}"
            )
        self._known.add(link.server.run)

    def _judged(self, outcome: Outcome) -> Outcome:
        if not isinstance(outcome, Exception) or isinstance(outcome, EngineUnavailable):
            return outcome
        unavailable = EngineUnavailable(self._name, explained(outcome))
        unavailable.__cause__ = None if isinstance(outcome, Unfit) else outcome
        return unavailable


def _binds(call: Call) -> bool:
    """Whether its answer may be a lease, or that something is done for good."""
    return call.script in (ACQUIRE, REFRESH, MARK)


def _moved(outcome: Outcome) -> bool:
    return type(outcome) is exceptions.MovedError


_INFO: Final = packed("INFO")
_ASKING: Final = packed("ASKING")
