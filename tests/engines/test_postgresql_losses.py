"""A server that has lost leases, and a key that changes while a statement is on its way: nobody holds it twice."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.servers.postgres import fresh_postgresql, shared_postgres
from tests.support.urls import varied
from tests.support.waiting import PATIENCE, eventually, waiters
from weblock import EngineRecovering, Locks
from weblock._core.ports import Pulse
from weblock._core.table import Claim, Gone, Held, Waiting
from weblock._runtime.runtimes import drive

HOUR = 3600.0


@pytest.fixture
def url() -> str:
    return fresh_postgresql()


@pytest.fixture
def careful(url: str) -> Iterator[Locks]:
    """Locks that want an hour without a grant after a loss."""
    with Locks.from_url(varied(url, recovery=HOUR), ttl=HOUR, wait=0) as locks:
        locks.acquire("before").release()
        yield locks


@pytest.fixture
def off(url: str) -> Iterator[Locks]:
    """Locks of another process, which ask for no recovery."""
    with Locks.from_url(varied(url, recovery="off"), wait=0) as locks:
        yield locks


@pytest.fixture
def less(url: str) -> Iterator[Locks]:
    """Locks of another process, which want a moment without a grant after a loss."""
    with Locks.from_url(varied(url, recovery=0.001), renew=False, wait=0) as locks:
        yield locks


@pytest.fixture(params=["off", "less"])
def careless(request: pytest.FixtureRequest) -> Locks:
    """Either of them."""
    locks: Locks = request.getfixturevalue(request.param)
    return locks


def table_of(locks: Locks) -> str:
    return locks._engine.settings.table  # type: ignore[attr-defined]


def rows(locks: Locks, statement: str) -> None:
    """Change rows of their table as only time, a failover or an operator does."""
    shared_postgres().execute(statement.format(table_of(locks)))


def promote(locks: Locks, keys: str = "key <> ''") -> None:
    """What a promotion of a replica that lacks some rows looks like."""
    rows(locks, "UPDATE {} SET label = '0000000F' WHERE key = ''")
    rows(locks, f"DELETE FROM {{}} WHERE {keys}")


def before_the_grant(
    locks: Locks, monkeypatch: pytest.MonkeyPatch, work: Callable[[], Any]
) -> None:
    """Do something between what a caller reads and what it then writes, once."""
    cells = locks._locker.store._cells  # type: ignore[attr-defined]
    links, write = cells._links, cells._statements.write
    ask, left = links.ask, [work]

    async def interrupted(statement: Any, *parameters: Any) -> Any:
        if statement == write and left:
            left.pop()()
        return await ask(statement, *parameters)

    monkeypatch.setattr(links, "ask", interrupted)


class TestRecovery:
    def test_a_client_that_asks_for_less_does_not_end_it_for_others(
        self, careful, careless
    ) -> None:
        """A lease that was lost is not granted again to a careful caller, whichever client came first."""
        careful.acquire("key", renew=False)  # A renewal would notice the loss, too.
        promote(careful)
        eventually(lambda: got(careless, "another key"))
        with pytest.raises(EngineRecovering) as caught:
            careful.acquire("key")
        assert caught.value.retry_after == pytest.approx(HOUR, rel=0.5)

    def test_the_longest_counts_for_all_clients_that_ask_for_any(self, careful, less, off) -> None:
        """Once a client has asked for an hour, one that would wait for a moment waits for that hour, too."""
        promote(careful)
        off.acquire("first").release()
        for locks in (careful, less, off):
            with pytest.raises(EngineRecovering) as caught:
                locks.acquire("key")
            assert caught.value.retry_after == pytest.approx(HOUR, rel=0.5)

    def test_a_waiter_gets_its_key_when_the_recovery_is_over(self, careful, off) -> None:
        """A lease that was granted before another client asked for a recovery is passed on after that."""
        promote(careful)
        lease = off.acquire("key")
        got: list[Any] = []
        waiter = threading.Thread(target=lambda: got.append(careful.acquire("key", wait=PATIENCE)))
        waiter.start()
        eventually(lambda: waiters(off, "key") == 1)
        lease.release()
        assert waiters(off, "key") == 1
        rows(careful, "UPDATE {} SET since = 1, ends = 1 WHERE key = ''")  # The time has passed.
        waiter.join(PATIENCE)
        assert got[0].fence > lease.fence
        got[0].release()

    def test_a_recovery_that_has_passed_does_not_begin_anew(self, careful, off) -> None:
        """A client whose own recovery has passed since the loss was noticed is granted its key at once."""
        promote(careful)
        off.acquire("first").release()
        rows(careful, f"UPDATE {{}} SET since = since - {HOUR + 1} WHERE key = ''")
        careful.acquire("key").release()

    def test_a_second_loss_does_not_shorten_the_first(self, careful, less) -> None:
        """What was asked for after a loss holds, also if another loss is noticed by a client that wants less."""
        promote(careful)
        with pytest.raises(EngineRecovering):
            careful.acquire("key")
        promote(careful)
        with pytest.raises(EngineRecovering) as caught:
            less.acquire("key")
        assert caught.value.retry_after == pytest.approx(HOUR, rel=0.5)

    def test_a_lease_is_renewed_though_a_waiter_cannot_be_let_in(self, careful, off) -> None:
        """A place that becomes free stays free, and the other holders go on."""
        promote(careful)
        store = off._locker.store
        for owner, ttl in {"first": HOUR, "second": 0.1, "waiter": HOUR}.items():
            claim = Claim(owner, store.process, ttl, owner, 2)
            answer = drive(store.acquire("key", claim, room=9)).answer
        assert isinstance(answer, Waiting)
        with pytest.raises(EngineRecovering):
            careful.acquire("another key")
        eventually(lambda: len(drive(store.look("key")).state.grants) == 1)
        pulses = [Pulse("key", owner, HOUR) for owner in ("first", "waiter")]
        first, waiter = drive(store.refresh(pulses))
        assert isinstance(first.answer, Held)
        assert isinstance(waiter.answer, Gone)


def got(locks: Locks, key: str) -> bool:
    try:
        locks.acquire(key).release()
    except EngineRecovering:
        return False
    return True


class TestBetweenTwoStatements:
    """A caller that needs several holders at once reads first, and writes then."""

    def test_a_promotion_in_between_grants_nothing(self, careful, off, monkeypatch) -> None:
        """A row that was read from the old server is not written to the promoted one, though it is the same there."""
        careful.acquire("key").release()
        before_the_grant(careful, monkeypatch, lambda: promote(careful, "false"))
        with pytest.raises(EngineRecovering):
            careful.acquire("key", limit=2)

    def test_a_promotion_that_others_have_noticed_grants_nothing(
        self, careful, off, monkeypatch
    ) -> None:
        """The same if a client without recovery has noticed the promotion first."""

        def promoted() -> None:
            promote(careful, "false")
            off.acquire("another key").release()

        careful.acquire("key").release()
        before_the_grant(careful, monkeypatch, promoted)
        with pytest.raises(EngineRecovering):
            careful.acquire("key", limit=2)

    def test_a_promotion_before_a_long_pause_is_looked_at(self, careful, off, monkeypatch) -> None:
        """A caller that stands still until the recovery is over reads again, and its fence is a new one."""
        fences: list[int] = []

        def promoted() -> None:
            lease = off.acquire("key")  # On the server that is lost.
            fences.append(lease.fence)
            lease.release()
            promote(careful, "key LIKE '%key'")
            off.acquire("another key").release()
            rows(
                careful, "UPDATE {} SET since = 1, ends = 1 WHERE key = ''"
            )  # The time has passed.

        before_the_grant(careful, monkeypatch, promoted)
        with careful.hold("key", limit=2) as lease:
            assert lease.fence > fences[0]

    def test_fences_increase_though_a_caller_stands_still(self, careful, off, monkeypatch) -> None:
        """A key that was held, and forgotten, since a caller found nothing there is not given an older fence."""
        fences: list[int] = []

        def used_and_forgotten() -> None:
            with careful.hold("key") as lease:
                fences.append(lease.fence)
            rows(off, "UPDATE {} SET until = 1 WHERE key LIKE '%key'")
            drive(off._locker.store._cells.clean())

        before_the_grant(off, monkeypatch, used_and_forgotten)
        with off.hold("key", limit=2) as lease:
            assert lease.fence > fences[0]
