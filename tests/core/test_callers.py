"""What a caller is called for while it waits, and what interrupts it."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import pairwise

import pytest

from tests.core.simulation.steps import lines_run_by
from tests.support.waiting import eventually
from weblock import Locks
from weblock._core.acquiring import LOOK, Attempts, Caller, Locker
from weblock._core.holding import Terms
from weblock._core.keeping import Keeper
from weblock._core.ports import Reply, Store, Switchboard
from weblock._core.reporting import Health
from weblock._core.table import Answer, Busy, Claim, Held
from weblock._runtime.runtimes import drive
from weblock.errors import EngineRecovering, EngineUnavailable, LockTimeout

TERMS = Terms(ttl=60.0, max_hold=None, renew=True, max_waiters=9, label="")


class Patience:
    """A runtime in which nothing happens but that time passes."""

    suspends = False
    clock = 0.0
    owners = 0

    def now(self) -> float:
        return self.clock

    def jitter(self) -> float:
        return 1.0

    def new_owner(self) -> str:
        self.owners += 1
        return f"owner {self.owners}"

    def control(self) -> object:
        return self

    def is_part_of(self, _flow: object) -> bool:
        return False

    def holds_up(self, _flow: object) -> bool:
        return False

    def mailbox(self) -> Patience:
        return self

    def put(self, _message: object) -> None:
        """Nobody listens."""

    async def sleep(self, seconds: float) -> None:
        self.clock += seconds

    async def heard(self, timeout: float) -> None:
        self.clock += timeout


class Engine(Store):
    """Answers as it is told, or not at all."""

    process = ""

    def __init__(self, runtime: Patience, *answers: Answer | Exception | None) -> None:
        self.runtime = runtime
        self.answers = list(answers)

    async def acquire(self, _key: str, _claim: Claim, *, room: int) -> Reply:
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if answer is None:
            raise EngineUnavailable("test://", "silent")
        if isinstance(answer, Exception):
            raise answer
        return Reply(answer, self.runtime.now())

    async def release(self, *_args: object, **_options: object) -> Reply:
        raise EngineUnavailable("test://", "silent")


class GoneError(Exception):
    """The client has left."""


@dataclass
class Waits:
    """A caller, and when it was called."""

    runtime: Patience
    do: Callable[[], object] = lambda: None
    prepared: int = 0
    looks: list[float] = field(default_factory=list)

    def caller(self) -> Caller:
        return Caller("", self, self._prepare, self._look)

    async def _prepare(self) -> None:
        self.prepared += 1

    def _look(self) -> None:
        self.looks.append(self.runtime.now())
        if len(self.looks) == 3:
            self.do()

    def longest(self) -> float:
        times = [0.0, *self.looks, self.runtime.now()]
        return max(round(after - before, 9) for before, after in pairwise(times))


def locker_on(*answers: Answer | None) -> tuple[Locker, Patience]:
    """A locker of an engine that gives these answers, the last one again and again."""
    runtime = Patience()
    engine = Engine(runtime, *answers)
    keeper = Keeper(runtime, lambda _runtime: engine, lambda: True)  # type: ignore[arg-type,return-value]
    locker = Locker(
        store=engine,  # type: ignore[arg-type]
        runtime=runtime,  # type: ignore[arg-type]
        keeper=keeper,
        switchboard=Switchboard(),
        engine="test://",
    )
    return locker, runtime


BUSY = Busy(waiters=0, until=100.0)
LONG = Attempts(3, pause=20, longest=20)


def test_a_caller_is_called_throughout_the_pauses_between_its_attempts() -> None:
    """However long they are, its client is looked for as often as in the queue."""
    locker, runtime = locker_on(BUSY)
    waits = Waits(runtime)
    with pytest.raises(LockTimeout):
        drive(locker.attempt(["k"], TERMS, LONG, waits.caller()))
    assert runtime.clock == pytest.approx(40)
    assert waits.longest() <= LOOK
    assert waits.prepared == 1


def test_one_new_caller_asks_an_engine_once_that_is_known_to_be_down() -> None:
    """Others get the error without a request, until the engine answers again. The first one goes on asking."""
    locker, runtime = locker_on(None)
    with pytest.raises(EngineUnavailable):
        drive(locker.acquire(["k"], TERMS, 3))
    assert runtime.clock > 2
    down = runtime.clock
    with pytest.raises(EngineUnavailable):
        drive(locker.acquire(["k"], TERMS, 3))
    assert runtime.clock == down
    answers = locker.store.answers  # type: ignore[attr-defined]
    answers[:] = [BUSY, None]
    with pytest.raises(EngineUnavailable, match="has answered no caller for"):
        drive(locker.acquire(["k"], TERMS, 3))
    assert answers == [BUSY, None]
    runtime.clock += 0.1
    with pytest.raises(LockTimeout):
        drive(locker.acquire(["k"], TERMS, 0))
    with pytest.raises(EngineUnavailable):
        drive(locker.acquire(["k"], TERMS, 3))
    assert runtime.clock > down + 2


@pytest.mark.parametrize(
    ("url", "asked"),
    [
        ("redis://localhost:1", False),
        ("redis+cluster://localhost:1", True),
        ([f"redis://localhost:{port}" for port in (1, 2, 3)], True),
    ],
    ids=["server", "cluster", "quorum"],
)
def test_a_new_caller_asks_an_engine_of_which_a_part_may_answer(
    url: str | list[str], asked: bool
) -> None:
    """Others may have asked a shard that is down, which says nothing of the others."""
    with Locks.from_url(url) as locks:
        locker, _runtime = locker_on(None)
        locker.fails_as_one = locks._locker.fails_as_one
    for _ in range(3):
        with pytest.raises(EngineUnavailable):
            drive(locker.acquire(["down"], TERMS, 3))
    locker.store.answers[:] = [BUSY]  # type: ignore[attr-defined]
    with pytest.raises(LockTimeout if asked else EngineUnavailable):
        drive(locker.acquire(["healthy"], TERMS, 0))


def test_a_caller_that_waited_for_a_recovery_is_not_a_new_one() -> None:
    """It goes on asking an engine that others have found to be down."""
    recovering = EngineRecovering("test://", "it was started", retry_after=9.0)
    locker, runtime = locker_on(None)
    locker.store.answers[:] = [recovering, *[None] * 5, BUSY]  # type: ignore[attr-defined]
    locker.health.failed(-3.0)
    locker.health.failed(-1.0)
    with pytest.raises(LockTimeout):
        drive(locker.acquire(["k"], TERMS, 20))
    assert runtime.clock > 1


def test_a_caller_is_called_while_an_engine_does_not_answer() -> None:
    """Nobody asks a silent engine on behalf of a client that has left."""
    locker, runtime = locker_on(None)
    waits = Waits(runtime)
    with pytest.raises(EngineUnavailable):
        drive(locker.acquire(["k"], TERMS, 60, waits.caller()))
    assert runtime.clock > 50
    assert waits.longest() <= LOOK


@pytest.mark.parametrize("answer", [BUSY, None])
def test_what_a_caller_raises_ends_its_wait(answer: Answer | None) -> None:
    """At its next look, whatever it waits for."""
    locker, runtime = locker_on(answer)

    def leave() -> None:
        raise GoneError

    caller = Waits(runtime, leave).caller()
    with pytest.raises(GoneError):
        drive(
            locker.acquire(["k"], TERMS, 60, caller)
            if answer is None
            else locker.attempt(["k"], TERMS, LONG, caller)
        )
    assert runtime.clock <= 3 * LOOK


def test_closing_ends_the_pause_between_two_attempts() -> None:
    """A caller that does not stand in the queue learns of it as soon as it looks."""
    locker, runtime = locker_on(BUSY)
    with pytest.raises(EngineUnavailable, match="closed"):
        drive(locker.attempt(["k"], TERMS, LONG, Waits(runtime, locker.close).caller()))
    assert runtime.clock <= 3 * LOOK


def test_closing_ends_a_request_that_is_repeated() -> None:
    """Who marks, forgets or hands over while the engine is silent learns of it within one pause."""
    locker, runtime = locker_on(None)
    asked = []

    async def ask() -> None:
        asked.append(runtime.now())
        if len(asked) == 3:
            locker.close()
        raise EngineUnavailable("test://", "silent")

    with pytest.raises(EngineUnavailable, match="closed"):
        drive(locker.insist(ask))
    assert len(asked) == 3
    assert runtime.clock - asked[-1] <= LOOK


def test_a_caller_prepares_itself_once_for_all_its_keys() -> None:
    """What it gives back before it waits for the first, it has not got again at the second."""
    held = Held(7, until=100.0)
    locker, runtime = locker_on(None, held, None, held)
    waits = Waits(runtime)
    assert len(drive(locker.acquire(["k", "l"], TERMS, 60, waits.caller()))) == 2
    assert waits.prepared == 1


def test_an_interrupt_of_a_caller_that_begins_to_wait_stays_one(monkeypatch) -> None:
    """What a signal handler raises there reaches the program, and the caller is in no queue."""

    def interrupt(*_args: object) -> None:
        raise KeyboardInterrupt

    with Locks.from_url("memory://interrupted") as locks, ThreadPoolExecutor(1) as pool:
        lease = pool.submit(locks.acquire, "key").result()
        monkeypatch.setattr(Health, "waits", interrupt)
        with pytest.raises(KeyboardInterrupt):
            locks.acquire("key")
        eventually(lambda: locks.inspect("key").waiters == ())
        lease.release()


def test_shared_leases_of_other_keys_cost_a_caller_little() -> None:
    """A caller looks through few of the thousand shared leases of its process, not through all."""
    with Locks.from_url("memory://") as locks:

        def steps(held: int) -> int:
            leases = [locks.acquire(f"key {number}", shared=True) for number in range(held)]
            cost = lines_run_by(lambda: locks.acquire("other", shared=True).release())
            for lease in leases:
                lease.release()
            return cost

        assert steps(1000) < 2 * steps(1)
