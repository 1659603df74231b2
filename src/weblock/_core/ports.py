"""What the protocol needs of the world: an engine that keeps leases, and a runtime that runs it.

Every method that may take time is ``async def``. The asyncio runtime suspends there; the blocking
runtime blocks, so that one ``send(None)`` drives a whole coroutine; the simulator steps it.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass
from types import coroutine
from typing import Final, NamedTuple, Protocol

from ..errors import EngineUnavailable
from .table import Answer, Claim, KeyState

SCOPES: Final = ("none", "process", "host", "cluster")
"""How far an engine's leases reach, from nowhere to everywhere."""


LIMITS: Final = ("exclusive", "shared", "any")
"""Which leases an engine can grant: only exclusive ones, shared ones too, or with any limit."""


@dataclass(slots=True)
class Reply:
    """An engine's answer, and the time on the engine's clock at which it was true."""

    answer: Answer
    now: float


class Unfinished(EngineUnavailable):
    """The answer is known, but a part of the engine has not seen the request: repeat it."""

    def __init__(self, engine: str, reason: str, answer: Answer) -> None:
        super().__init__(engine, reason)
        self.answer = answer


class Pulse(NamedTuple):
    """One heartbeat: ``owner`` keeps its lease of ``key`` for ``ttl``, or its place.

    ``waits`` says that it is a waiter's, which has not been told of a lease.
    """

    key: str
    owner: str
    ttl: float
    waits: bool = False


class Look(NamedTuple):
    """A key's state, and the time on the engine's clock at which it was read."""

    state: KeyState
    now: float


class Found(NamedTuple):
    """A text that an engine keeps, and what else it keeps for the group of the text."""

    text: str | None
    """``None`` without one."""
    size: int
    """How many texts the group has."""
    rest: float
    """Seconds until the first of them ends; 0 without one."""


class Texts(Protocol):
    """Texts that an engine keeps for a while, each under the lease of a key: answers to requests, say.

    A text belongs to a group, whose name consists of letters and digits. It stays when its process has ended.
    Any method may raise ``EngineUnavailable``, and is harmless when it is repeated.
    """

    async def find(self, key: str, group: str) -> Found: ...

    async def keep(self, key: str, group: str, text: str, *, owner: str, seconds: float) -> bool:
        """Keep a text, instead of an earlier one, and return whether it is kept.

        It is not if the owner has no lease of the key at that moment. After this returns, every caller
        finds it.
        """

    async def forget(self, key: str, group: str) -> bool:
        """Remove a text, and return whether there was one."""

    async def all(self, prefix: str, limit: int) -> Sequence[tuple[str, str]]:
        """Return keys that begin with ``prefix`` and the text of each, at most ``limit``."""


class Store(Protocol):
    """An engine, as one runtime talks to it.

    Any method may raise ``EngineUnavailable``, which leaves open whether it took effect: each is
    harmless when it is repeated. The functions of ``table`` define what each one means.
    """

    texts: Texts | None = None
    """``None`` for an engine that keeps no texts."""

    @property
    def process(self) -> str:
        """Where this process is notified, as the engine writes it next to a claim."""

    async def acquire(self, key: str, claim: Claim, *, room: int) -> Reply: ...

    async def refresh(self, pulses: Sequence[Pulse]) -> Sequence[Reply | EngineUnavailable]:
        """Send many heartbeats at once. One that fails does not affect the others."""

    async def release(self, key: str, owner: str, *, void: float = 0) -> Reply: ...

    async def release_some(
        self, releases: Sequence[tuple[str, str, float]]
    ) -> Sequence[EngineUnavailable | None]:
        """Release for many owners what they have, by key, owner and ``void``; return what failed.

        An engine that cannot do it at once does the first, so that nothing waits for the others.
        """
        key, owner, void = releases[0]
        try:
            await self.release(key, owner, void=void)
        except EngineUnavailable as error:
            return [error]
        return [None]

    async def transfer(self, key: str, owner: str, claim: Claim, *, fence: int) -> Reply:
        """Make the lease of ``owner``, which has this fence, that of a claim: see ``table.transfer``.

        A claim without a process belongs to none, and lasts until its ttl is over.
        """

    async def force_release(self, key: str) -> Reply: ...

    async def ask_release(self, key: str) -> Reply: ...

    async def look(self, key: str) -> Look:
        """Return the current state of a key, as ``table.current`` defines it. Changes nothing."""

    async def names(self, prefix: str, limit: int) -> Sequence[str]:
        """Return keys that begin with ``prefix`` and have a holder or waiters, at most ``limit``.

        A key that was in use all the while is among them, unless there were more than ``limit``.
        """

    async def mark(self, key: str, keep: float | None) -> None:
        """Record for ``keep`` seconds, or forever with ``None``, that something is done.

        A later mark replaces an earlier one, and 0 removes it. A mark is not a lease, has nothing
        to do with the lease of the same key, and belongs to no process: it stays when its process
        has ended. Forever is as long as the engine keeps its data; ``noop`` and ``memory`` forget
        it with their process.
        """

    async def marked(self, key: str) -> bool:
        """Return whether there is such a mark. After ``mark`` returns, every caller sees it."""

    def impatient(self) -> Store:
        """Return a store for requests that must not hold up the heartbeats of other keys.

        It gives up earlier where a part of the engine, such as one file, can be stuck for long.
        """
        return self


class Granted(NamedTuple):
    """The message that a waiter has become the holder, in the engine's time."""

    fence: int
    until: float
    since: float | None = None
    """A local time from which ``until`` counts; without it, from the last answer of the engine."""


class CheckAgain(NamedTuple):
    """The message that a waiter should ask the engine for its state."""

    after: float = 0.0
    """Seconds to wait for a better message before it asks."""


Message = Granted | CheckAgain


class Mailbox(Protocol):
    """The mailbox of one listener. Any thread may put messages into it at any time."""

    def put(self, message: Message) -> None: ...

    @property
    def deaf(self) -> bool:
        """Whether its listener can never hear again: its event loop has been closed."""

    async def heard(self, timeout: float | None) -> Message | None:
        """Wait for the next message, at most ``timeout`` seconds; return ``None`` if none came."""


@coroutine
def sent(fd: int | None, until: float) -> Generator[tuple[int | None, float], None, None]:
    """Suspend a request of the blocking API that is one of several, where it would block.

    It has been sent, and its reply can be read from the file descriptor ``fd``. Without one, the
    request does something else that takes time, such as connecting, and is better continued in a
    thread. The caller continues it no later than ``until``, by ``time.monotonic``, or closes it.
    """
    yield fd, until


class Runtime(Protocol):
    """How time passes, and how code waits."""

    suspends: bool
    """Whether waiting suspends a coroutine, as in asyncio, or blocks its thread."""

    renews: bool
    """Whether it is the keeper's. An engine serves it also where it can open no connection for it."""

    def now(self) -> float:
        """Return seconds on a clock that never goes back and, on Linux, counts suspension, too."""

    def jitter(self) -> float: ...

    def new_owner(self) -> str:
        """Return a secret that no one had before: 128 random bits."""

    def control(self) -> object:
        """Return the task or thread that runs now."""

    def is_part_of(self, flow: object) -> bool:
        """Return whether ``flow`` (from ``control``) is the running task or thread, or its request.

        A request is one for all tasks and threads that serve it (``runtimes.Flow``). Another task that
        the running one has started is not part of it.
        """

    def holds_up(self, flow: object) -> bool:
        """Return whether the running code, if it waited, would keep another ``flow`` from going on.

        One that has ended is none, and neither is one of which that is not known.
        """

    @property
    def mailbox(self) -> Callable[[], Mailbox]:
        """Return a mailbox whose listener is the running task or thread."""

    async def sleep(self, seconds: float) -> None: ...


class Switchboard:
    """The acquisitions of this process, by owner: an engine's receiver notifies them here."""

    def __init__(self) -> None:
        self.mailboxes: dict[str, Mailbox] = {}
        """An acquisition adds its mailbox before it asks the engine, and removes it at its end."""

    def disconnect(self, owner: str) -> None:
        self.mailboxes.pop(owner, None)

    def notify(self, owner: str, message: Message) -> None:
        """Pass a message on; one without a listener is dropped: its waiter has timed out."""
        if mailbox := self.mailboxes.get(owner):
            mailbox.put(message)

    def notify_all(self, message: Message) -> None:
        for mailbox in list(self.mailboxes.values()):
            mailbox.put(message)


class Level(enum.StrEnum):
    """How bad a finding is."""

    OK = "ok"
    WARNING = "warning"
    """Locks work, and may fail some day, or promise less than one may think."""
    PROBLEM = "problem"
    """Locks do not work, or exclude nobody."""


class Finding(NamedTuple):
    """One fact, in a plain sentence; one that is not ``OK`` has a remedy."""

    code: str
    text: str
    level: Level = Level.OK
    remedy: str = ""
    where: str = ""
    """The server that it is about, where there are several."""

    @property
    def reason(self) -> str:
        """The reason of an error: ``what is wrong: what to do``."""
        parts = (self.text, self.remedy)
        return ": ".join(f"{part[:1].lower()}{part[1:]}".rstrip(".") for part in parts)


class Recovery:
    """How long an engine that may have lost leases grants none: one number for all who lock there.

    It must be at least every ttl that a renewed lease may have. By default it is the largest ttl of
    the ``Locks`` on the engine, from ``LEAST`` to ``MOST`` seconds. 0 means that the engine grants at once.
    """

    LEAST: Final = 10.0
    MOST: Final = 300.0

    def __init__(self, given: float | None = None) -> None:
        self._given = given is not None
        self._set(self.LEAST if given is None else given)
        self.on_longer: Callable[[], object] = lambda: None

    def cover(self, ttl: float) -> None:
        """Take note that a ``Locks`` renews leases of this ttl."""
        if not self._given and self.seconds < (longer := min(ttl, self.MOST)):
            self._set(longer)
            self.on_longer()

    def covers(self, ttl: float) -> bool:
        """Return whether a lease of this ttl has ended when the engine grants again."""
        return ttl <= self.seconds or not self.seconds

    def _set(self, seconds: float) -> None:
        self.seconds = seconds
        self.micros = f"{seconds * 1e6:.0f}"


class Engine:
    """What keeps the leases, as one process knows it; shared by all its ``Locks``.

    What has a value or a body here is what most engines need.
    """

    name: str
    """Its URL, without secrets."""
    scope: str
    """One of ``SCOPES``."""
    limits: str = "any"
    """One of ``LIMITS``."""
    recovery: Recovery | None = None
    """How long it grants nothing after a loss of data; ``None`` where it loses none."""
    fails_as_one: bool = True
    """Whether a failure for one key means that it fails for all."""
    switchboard: Switchboard

    def keeps_anything(self) -> bool:
        """Return whether leases or marks would be lost with this object, because they are nowhere else."""
        return False

    def connect(self, runtime: Runtime) -> Store:
        """Return the engine as a runtime talks to it. Connects to nothing before its first request."""
        raise NotImplementedError

    def close(self) -> None:
        """Free what the engine has in this process: connections, threads, files."""

    def serves(self, _url: str) -> bool:
        """Return whether another URL names the same place, so that this engine serves it, too."""
        return False

    def diagnose(self) -> Iterable[Finding]:
        """Return what there is to tell an operator. It may block."""
        return ()

    @property
    def table(self) -> str | None:
        """The name of its table in a database, if it has one."""
        return None

    def ddl(self) -> str | None:
        return None
