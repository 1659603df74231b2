"""What the protocol needs of the world: an engine that keeps leases, and a runtime that runs it.

Every method that may take time is ``async def``. The asyncio runtime suspends there; the blocking
runtime blocks, so that one ``send(None)`` drives a whole coroutine; the simulator steps it.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator, Sequence
from typing import Any, Final, NamedTuple, Protocol, TypeVar

from ..errors import EngineUnavailable
from .table import Answer, Claim, KeyState

T = TypeVar("T")

SCOPES: Final = ("none", "process", "host", "cluster")
"""How far an engine's leases reach, from nowhere to everywhere."""


class Reply(NamedTuple):
    """An engine's answer, and the time on the engine's clock at which it was true."""

    answer: Answer
    now: float


class Unfinished(EngineUnavailable):
    """The answer is known, but a part of the engine has not heard the question: it is to be repeated."""

    def __init__(self, engine: str, reason: str, answer: Answer) -> None:
        super().__init__(engine, reason)
        self.answer = answer


class Pulse(NamedTuple):
    """One heartbeat: ``owner`` wants to keep its lease of ``key`` for ``ttl``, or its place."""

    key: str
    owner: str
    ttl: float


class Look(NamedTuple):
    """A key's state, and the time on the engine's clock at which it was looked at."""

    state: KeyState
    now: float


class Store(Protocol):
    """An engine, as one runtime talks to it.

    Any method may raise ``EngineUnavailable``, which leaves open whether it took effect: each is
    harmless when it is repeated. The functions of ``table`` define what each one means.
    """

    @property
    def process(self) -> str:
        """Where this process is woken, as the engine writes it beside a claim."""

    async def acquire(self, key: str, claim: Claim, *, room: int) -> Reply: ...

    async def refresh(self, pulses: Sequence[Pulse]) -> Sequence[Reply | EngineUnavailable]:
        """Sends many heartbeats at once. One that fails does not keep the others from passing."""

    async def release(self, key: str, owner: str, *, void: float = 0) -> Reply: ...

    async def force_release(self, key: str) -> Reply:
        """Takes the lease away from its holder, who finds out when it next asks, not before."""

    async def look(self, key: str) -> Look:
        """What is true of a key at this moment, as ``table.current`` says. Changes nothing."""

    async def names(self, prefix: str, limit: int) -> Sequence[str]:
        """Keys that begin with ``prefix`` and that somebody holds or waits for, at most ``limit``.

        A key that was in use all the while is among them, unless there were more than ``limit``.
        """

    async def mark(self, key: str, keep: float | None) -> None:
        """Notes for ``keep`` seconds, or for good with ``None``, that something has been done.

        A later note replaces an earlier one, and 0 takes it away. It is no lease, has nothing to
        do with that of the same key, and belongs to nobody: it stays when its process is gone. For
        good is as long as the engine keeps what it was given to keep; ``noop`` and ``memory``
        forget it with their process.
        """

    async def marked(self, key: str) -> bool:
        """Whether there is such a note. Where ``mark`` has returned, it is so for all who ask."""


class Grasp(NamedTuple):
    """The message that a waiter has been given its lease, in the engine's time."""

    fence: int
    until: float
    since: float | None = None
    """A local time from which ``until`` counts; without it, what the waiter was told last does."""


class Ask(NamedTuple):
    """The message that a waiter should ask the engine how it stands."""

    after: float = 0.0
    """Seconds in which there may be a better message; only then it should ask."""


Message = Grasp | Ask


class Bell(Protocol):
    """One listener's bell. It may be rung from any thread, at any time, any number of times."""

    def ring(self, message: Message) -> None: ...

    async def heard(self, timeout: float | None) -> Message | None:
        """Waits for the next message, at most ``timeout`` seconds; ``None`` if none came."""


class Readable:
    """Suspends a work of ``side_by_side`` in the blocking world, where nothing else suspends.

    It goes on when the file descriptor has something to be read, or after ``timeout`` seconds;
    awaiting it tells which.
    """

    __slots__ = ("fd", "timeout")

    def __init__(self, fd: int, timeout: float | None) -> None:
        self.fd = fd
        self.timeout = timeout

    def __await__(self) -> Generator[Readable, bool, bool]:
        return (yield self)


class Runtime(Protocol):
    """How time passes and how code waits."""

    suspends: bool
    """Whether waiting suspends a coroutine, as in asyncio, or blocks its thread."""

    def now(self) -> float:
        """Seconds on a clock that never steps back and goes on while the machine is suspended."""

    def jitter(self) -> float:
        """A random number from 0 to 1."""

    def new_owner(self) -> str:
        """A secret that nobody had before: 128 random bits."""

    def control(self) -> object:
        """The task or thread that runs now, or the whole that it acts for."""

    def is_part_of(self, flow: object) -> bool:
        """Whether what runs now is ``flow``, which ``control`` gave, or part of it."""

    @property
    def bell(self) -> Callable[[], Bell]:
        """Makes a bell whose listener is what runs now."""

    async def sleep(self, seconds: float) -> None: ...

    async def side_by_side(
        self, works: Sequence[Coroutine[Any, Any, None]], enough: Callable[[], bool]
    ) -> None:
        """Does several things at once, none of which raises.

        Returns when all are done, or when one is and there is ``enough``: then the others go on in
        the background, as they do when the caller is cancelled.
        """


class Switchboard:
    """The acquisitions of this process, by owner: an engine's receiver rings them here."""

    def __init__(self) -> None:
        self.bells: dict[str, Bell] = {}
        """An acquisition puts its own in before it asks the engine, and disconnects it at its end."""

    def disconnect(self, owner: str) -> None:
        """Takes the bell of ``owner`` out, if it is there."""
        self.bells.pop(owner, None)

    def ring(self, owner: str, message: Message) -> None:
        """Passes a message on; one for nobody is dropped, for its waiter has given up."""
        if bell := self.bells.get(owner):
            bell.ring(message)

    def clear(self) -> None:
        """Forgets all, in a forked child: they wait in the parent."""
        self.bells = {}

    def ring_all(self, message: Message) -> None:
        for bell in tuple(self.bells.values()):
            bell.ring(message)


class Engine(Protocol):
    """What keeps the leases, as one process knows it; shared by all who lock on it there."""

    @property
    def name(self) -> str:
        """Its URL, without secrets."""

    @property
    def scope(self) -> str:
        """One of ``SCOPES``."""

    @property
    def switchboard(self) -> Switchboard: ...

    @property
    def real_keeper(self) -> bool:
        """Whether its keeper may be a real thread where all others are greenlets.

        Then it shares nothing with them that one may hold while it waits, or that belongs to the
        event loop of one thread, as sockets do.
        """

    def connect(self, runtime: Runtime) -> Store: ...

    def close(self) -> None:
        """Frees what the engine has in this process: connections, threads, files."""
