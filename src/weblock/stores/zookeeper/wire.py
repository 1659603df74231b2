"""What is asked of the servers, what there is below the nodes of keys, and what a process remembers of it."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Container, Hashable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from kazoo.exceptions import (
    AuthFailedError,
    BadVersionError,
    NoAuthError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    RolledBackError,
    RuntimeInconsistency,
)
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.protocol.states import KeeperState

from ..._core.holding import DRIFT
from ..._core.ports import Reply, Runtime
from ..._core.table import HANDOFF, Answer
from ...errors import ConfigurationError, EngineUnavailable
from ..transport.failures import Meanings, explained
from .nodes import LEASE, VERSION, Content, Lease, Snapshot, lease_of, places_in
from .session import AsyncResult, Key, Session

if TYPE_CHECKING:
    from .engine import ZooKeeperEngine

EXPECTED: Final = (BadVersionError, NodeExistsError, NoNodeError, NotEmptyError)
"""The errors of ZooKeeper for a node that has changed."""

MEANINGS: Final[Meanings] = (
    (AuthFailedError, "it rejects the user and password of the URL"),
    (
        NoAuthError,
        "the user of the URL has no right to write below its root: grant it all rights there",
    ),
)

_REMEMBERED: Final = 10_000


class OwnLease(NamedTuple):
    """A lease of this process: its earliest end, and what its node contains."""

    until: float
    content: Content


class Memory:
    """What a process remembers. To forget it costs a request or some time. Any thread may use it."""

    def __init__(self) -> None:
        self.sending = threading.RLock()
        """Held while a request is decided on and sent, where another thread's must not come between.

        The collector of garbage may end a generator there, which releases its own lease in the same thread.
        """
        self.leases: dict[str, OwnLease] = {}
        """What this process holds, by owner."""
        self.owners: set[str] = set()
        """Owners that may have a lease or a place, perhaps because an answer was lost."""
        self._seen: OrderedDict[Hashable, float] = OrderedDict()

    def first_seen(self, what: Hashable, now: float) -> float:
        """Return when this process first saw ``what``: now, or earlier.

        Leases are timed from then on: a lease whose node stays unchanged for its ttl was not renewed
        in that time, whatever clocks its holder and the servers have.
        """
        seen = self._seen.setdefault(what, now)
        with suppress(KeyError):  # Another thread has dropped it just now.
            self._seen.move_to_end(what)  # What is looked at again and again is dropped last.
        while len(self._seen) > _REMEMBERED:
            self._seen.popitem(last=False)
        return seen

    def ended(self, what: Hashable) -> None:
        """Record that ``what`` has ended, as if it had always been seen."""
        self._seen[what] = float("-inf")

    def forget(self, owner: str) -> None:
        """Forget an owner, for which nothing is created any more."""
        with self.sending:
            self.leases.pop(owner, None)
            self.owners.discard(owner)

    def forget_ended(self, now: float, waiting: Container[str]) -> None:
        """Forget leases that were never released, and their owners except those that are ``waiting``.

        An acquisition may have had a lease without knowing it, and go on waiting.
        """
        for owner, own in list(self.leases.items()):
            if own.until <= now:
                self.leases.pop(owner, None)
                if owner not in waiting:
                    self.owners.discard(owner)


class Wire:
    """One runtime's way to the servers: it asks in the session, and waits as its runtime does.

    All methods that ask raise ``EngineUnavailable`` if there is no answer.
    """

    def __init__(self, engine: ZooKeeperEngine, runtime: Runtime) -> None:
        self.now = runtime.now
        self.memory = engine.memory
        self._engine = engine
        self._timeout = engine.settings.timeout
        self._new_mailbox = runtime.mailbox

    async def session(self) -> Session:
        """Return the session when it is connected. Anything sent before would be sent too late.

        Raises ``ConfigurationError`` if another version of weblock keeps its leases in these nodes.
        """
        session = self._engine.session()
        try:
            await session.ready.answer(self._new_mailbox, self._timeout)
        except KazooTimeoutError as error:
            reason = "no server can be reached"
            # kazoo tells its listeners of no end that follows on another loss, as of a refused password.
            if session.client.client_state in {KeeperState.CLOSED, KeeperState.AUTH_FAILED}:
                session.ended = True
                reason = "the session has ended, and begins anew with the next request"
            raise self.unavailable(reason) from error
        if not session.checked:
            (found,) = await self.all(session.client.get_async(session.keys))
            if not isinstance(found, Exception) and found[0] != VERSION:
                raise ConfigurationError(
                    f"{self._engine.name} keeps leases in the format {found[0][:20]!r} (the content"
                    f" of {session.keys}), and this version of weblock reads and writes the format"
                    f" {VERSION!r}: run the same version in all processes, or name another node in"
                    " the URL",
                    code="other_format",
                )
            session.checked = True
        return session

    async def key(self, key: str, *, anew: bool = False) -> Key:
        """Return a key's node. With ``anew``, a server that lags behind first catches up."""
        node = (await self.session()).key(key)
        if anew:
            node.session.client.sync_async(node.node)
        return node

    async def all(self, *results: AsyncResult) -> list[Any]:
        """Return the results of requests, including the errors in ``EXPECTED``."""
        outcomes = await self.outcomes(*results)
        for outcome in outcomes:
            if isinstance(outcome, EngineUnavailable):
                raise outcome
        return outcomes

    async def outcomes(self, *results: AsyncResult) -> list[Any]:
        """Return each outcome by itself: ``EngineUnavailable`` if there was no answer."""
        until, silent, outcomes = self.now() + self._timeout, False, []
        for result in results:
            try:
                outcomes.append(await result.answer(self._new_mailbox, until - self.now()))
            except EXPECTED as error:
                outcomes.append(error)
            except Exception as error:  # noqa: BLE001 - kazoo's own failures are no better than an outage
                silent |= isinstance(error, KazooTimeoutError)
                outcomes.append(unavailable := self.unavailable(error))
                unavailable.__cause__ = error
        if silent:
            self._engine.session().client.handler.hang_up()
        return outcomes

    def refused(self, parts: list[Any]) -> bool:
        """Return whether a transaction has changed nothing, because something else had changed."""
        refused = [part for part in parts if isinstance(part, Exception)]
        for part in refused:
            if not isinstance(part, (*EXPECTED, RolledBackError, RuntimeInconsistency)):
                raise self.unavailable(part) from part
        return bool(refused)

    async def servers_time(self, session: Session) -> float:
        """Return the servers' time, by their own clock."""
        (stat,) = await self.all(session.client.set_async(session.sessions, b""))
        if isinstance(stat, Exception):
            raise self.unavailable(stat) from stat
        return float(stat.mtime / 1000)

    def reply(self, answer: Answer) -> Reply:
        """Return an answer that is true now, in the asking process's own time."""
        return Reply(answer, self.now())

    def unavailable(self, reason: str | Exception) -> EngineUnavailable:
        """Return the error to raise for a reason, or for a server's answer."""
        if isinstance(reason, KazooTimeoutError):
            reason = TimeoutError()
        if isinstance(reason, Exception):
            reason = explained(reason, MEANINGS, timeout=self._timeout)
        return EngineUnavailable(self._engine.name, reason)

    async def look(self, *keys: Key) -> list[Snapshot]:
        """Return what exists below several nodes."""
        answers = await self.all(
            *(key.session.client.get_children_async(key.node, include_data=True) for key in keys)
        )
        found, reads = [], []
        for key, answer in zip(keys, answers, strict=True):
            names, stat = ((), None) if isinstance(answer, Exception) else answer
            leases = [name for name in names if name.startswith(LEASE)]
            reads += [key.session.client.get_async(key.path(name)) for name in leases]
            found.append((key, places_in(names), stat, leases))
        contents, snapshots = iter(await self.all(*reads)), []
        now = self.now()
        for key, places, stat, names in found:
            leases = []
            for name, content in ((name, next(contents)) for name in names):
                if not isinstance(content, Exception):
                    lease = lease_of(name, *content)
                    seen = self.memory.first_seen(_version(key, lease), now)
                    leases.append(lease._replace(until=seen + lease.content.ttl))
            leases.sort(key=lambda lease: lease.grant.fence)
            live = tuple(lease for lease in leases if now < lease.until)
            ended = tuple(lease for lease in leases if now >= lease.until)
            until = min((lease.until for lease in live), default=now)
            born, version = (stat.czxid, stat.version) if stat else (0, 0)
            snapshots.append(Snapshot(key, born, version, places, live, ended, until))
        return snapshots

    async def end_the_dead(self, snapshot: Snapshot) -> bool:
        """Count leases as ended that had ended before this process could time them, if there are any.

        Their holders' sessions must have expired: only then are the servers' stamps believed.
        """
        session, dead = snapshot.key.session, set()
        holders = list(dict.fromkeys(lease.content.session for lease in snapshot.live))
        signs = [session.client.get_async(session.sign_of(each)) for each in holders]
        for holder, sign in zip(holders, await self.all(*signs), strict=True):
            if isinstance(sign, Exception):
                dead.add(holder)
        now, found = await self.servers_time(session) if dead else 0.0, False
        for lease in snapshot.live:
            unchanged = now - lease.renewed
            if lease.content.session in dead and unchanged >= lease.content.ttl * (1 + 2 * DRIFT):
                self.memory.ended(_version(snapshot.key, lease))
                found = True
        return found

    def remove_orphans(self, snapshot: Snapshot) -> None:
        """Remove the places of this process whose owners it has given up for want of an answer."""
        session, owners = snapshot.key.session, self.memory.owners
        for place in snapshot.places:
            if place.owner not in owners and place.session == session.name:
                session.client.delete_async(snapshot.key.path(place.name))

    def pass_over_first(self, snapshot: Snapshot) -> None:
        """Remove the first place if it does not take its turn, and all of its process."""
        if not snapshot.admits_first:
            return
        now, first = self.now(), snapshot.places[0]
        ended = tuple(_version(snapshot.key, lease) for lease in snapshot.ended)
        turn = (snapshot.key.node, snapshot.born, first.name, ended)
        if now - self.memory.first_seen(turn, now) >= HANDOFF:
            for place in snapshot.places:
                if place.session == first.session:
                    snapshot.key.session.client.delete_async(snapshot.key.path(place.name))


def _version(key: Key, lease: Lease) -> tuple[str, str, int, int]:
    """Return what changes with each renewal of a lease, and is another for the owner's next lease."""
    return (key.node, lease.owner, lease.born, lease.version)
