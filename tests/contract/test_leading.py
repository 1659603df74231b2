"""Leaders: one of all callers that stand for election, until it steps down or its term is lost."""

from __future__ import annotations

import asyncio
import queue
import threading
from typing import Any

import pytest

from tests.support.renewals import hurry
from tests.support.waiting import PATIENCE, eventually
from weblock import (
    AsyncLocks,
    ConfigurationError,
    EngineUnavailable,
    InvalidKey,
    LeaseLost,
    Locks,
    LockTimeout,
)

LONG = 60.0
"""A ttl that no test waits for: whoever had to would fail."""


class Terms:
    """A body that notes each of its turns, and ends or raises as it is told."""

    def __init__(self) -> None:
        self._begun: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._orders: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def __call__(self, term: Any) -> Any:
        self._begun.put(term)
        order = self._orders.get(timeout=PATIENCE)
        return order(term) if callable(order) else order

    def next(self) -> Any:
        return self._begun.get(timeout=PATIENCE)

    @property
    def is_silent(self) -> bool:
        return self._begun.empty()

    def step_down(self) -> None:
        self._orders.put(True)

    def go_on(self, with_: Any = False) -> None:
        self._orders.put(with_)


@pytest.fixture
def body() -> Terms:
    return Terms()


@pytest.fixture
def stand(locks, api):
    """Stands for election; in asyncio the body runs in a thread, so that the loop goes on."""

    def stand(actor, body, *, block=True, locks=locks, **options):
        work = body
        if api.name == "asyncio":

            async def work(term: Any) -> Any:
                return await asyncio.to_thread(body, term)

        return actor.begin(api.lead, locks, "boss", work, block=block, **options)

    return stand


@pytest.mark.promise("locks")
@pytest.mark.of_core
class TestElections:
    @pytest.mark.parametrize("block", [False, True])
    def test_one_leads_and_the_next_takes_over(
        self, locks, one, other, *, stand, body, waiting, block
    ) -> None:
        """While one leads, the other waits; leaving the loop lets it lead, with a higher fence."""
        first = stand(one, body, block=block, label="web-1")
        term = body.next()
        second_body = Terms()
        second = stand(other, second_body, block=block, label="web-2")
        eventually(lambda: waiting("boss") == 1)
        assert second_body.is_silent
        body.step_down()
        first.result(PATIENCE)
        assert second_body.next().fence > term.fence
        second_body.step_down()
        second.result(PATIENCE)
        eventually(lambda: waiting("boss") is None)

    def test_others_see_who_leads(self, locks, api, one, *, stand, body) -> None:
        """``leader`` returns the label of the holder, and ``None`` where nobody leads."""
        asks = api.actor()
        assert asks.do(locks.leader, "boss") is None
        leads = stand(one, body, label="web-1")
        body.next()
        assert asks.do(locks.leader, "boss") == "web-1"
        body.step_down()
        leads.result(PATIENCE)
        assert asks.do(locks.leader, "boss") is None

    def test_a_body_may_do_one_round_of_work(self, one, stand, body) -> None:
        """Each turn of the loop gets the same term, for as long as its lease lasts."""
        leads = stand(one, body, block=False, ttl=LONG)
        term = body.next()
        for _ in range(3):
            body.go_on()
            assert body.next() is term
        body.step_down()
        leads.result(PATIENCE)

    def test_a_block_that_ends_is_the_end_of_a_term(self, one, stand, body) -> None:
        """The next turn of the loop is another term."""
        leads = stand(one, body, ttl=LONG)
        term = body.next()
        body.go_on()
        assert body.next().fence > term.fence
        body.step_down()
        leads.result(PATIENCE)

    @pytest.mark.of_core
    @pytest.mark.parametrize("notices", ["held", "check", "cannot"])
    def test_a_lost_term_is_followed_by_another(
        self, locks, one, *, stand, body, probe, notices
    ) -> None:
        """The loss of a term is no error, whether or not its body looks: the loop goes on."""
        taken = threading.Event()

        def until_lost(term: Any) -> None:
            assert taken.wait(PATIENCE)
            hurry(locks, term)
            eventually(lambda: not term.held)
            if notices == "check":
                term.check()

        leads = stand(one, body, block=notices != "held", ttl=LONG)
        term = body.next()
        body.go_on(until_lost)
        assert probe.force_release("boss")
        taken.set()
        assert body.next().fence > term.fence
        body.step_down()
        leads.result(PATIENCE)

    @pytest.mark.of_core
    @pytest.mark.parametrize("block", [False, True])
    def test_an_error_of_the_body_leaves_the_loop(
        self, one, stand, body, *, waiting, block
    ) -> None:
        """It reaches the caller, and the key is free; so does the loss of another lease."""

        def other_loss(term: Any) -> None:
            raise LeaseLost("another key", fence=term.fence, reason="expired")

        for error, raised in ((lambda _: 1 / 0, ZeroDivisionError), (other_loss, LeaseLost)):
            leads = stand(one, body, block=block, ttl=LONG)
            body.next()
            body.go_on(error)
            with pytest.raises(raised):
                leads.result(PATIENCE)
            eventually(lambda: waiting("boss") is None)
            one.kept.clear()

    def test_an_election_may_have_a_limit(self, one, other, stand, body) -> None:
        """With ``wait``, a caller that was not elected within it gets ``LockTimeout``."""
        leads = stand(one, body, ttl=LONG)
        body.next()
        with pytest.raises(LockTimeout):
            stand(other, Terms(), wait=0.05).result(PATIENCE)
        body.step_down()
        leads.result(PATIENCE)

    def test_closing_ends_the_loop(
        self, promises, api, one, other, *, stand, body, tmp_path, monkeypatch
    ) -> None:
        """A leader and a candidate leave their loops without an error."""
        monkeypatch.setattr("weblock._api.ELECTION_PAUSE", 0.01)
        # On an engine of their own: closing leaves open what others use.
        closed, asks = api.open(promises.fresh_url(tmp_path / "own")), api.actor()
        leads = stand(one, body, locks=closed, ttl=LONG)
        term = body.next()
        stands = stand(other, Terms(), locks=closed, ttl=LONG)
        eventually(lambda: asks.do(closed.inspect, "boss").waiters)
        body.go_on(lambda _: eventually(lambda: not term.held))
        api.shut(closed)
        leads.result(PATIENCE)
        stands.result(PATIENCE)


@pytest.mark.promise("locks", "processes")
@pytest.mark.of_core
@pytest.mark.costly
def test_another_leads_when_the_leader_is_killed(promises, one, *, puppet, stand, body) -> None:
    """Within the ttl of the process that was killed, and at once where the engine says."""
    leader = puppet(ttl=LONG if promises.death_noticed_at_once else 1)
    leader.begin("lead", "boss")
    fence = leader.hear()["fence"]
    stands = stand(one, body)
    leader.kill()
    assert body.next().fence > fence
    body.step_down()
    stands.result(PATIENCE)


@pytest.mark.promise("locks")
@pytest.mark.of_core
def test_an_election_outlasts_an_outage(locks, one, *, stand, body, monkeypatch) -> None:
    """A caller that stands while the engine does not answer is elected when it answers again."""
    acquire, failures = type(locks)._acquire, iter(range(2))
    monkeypatch.setattr("weblock._api.ELECTION_PAUSE", 0.01)

    async def unavailable_twice(self: Any, *args: Any) -> Any:
        if next(failures, None) is not None:
            raise EngineUnavailable(self.engine, "a test says so")
        return await acquire(self, *args)

    monkeypatch.setattr(type(locks), "_acquire", unavailable_twice)
    stands = stand(one, body)
    assert body.next().held
    assert next(failures, None) is None
    body.step_down()
    stands.result(PATIENCE)


@pytest.mark.promise("locks")
@pytest.mark.of_core
class TestCancelling:
    def test_a_block_is_cancelled_when_its_term_is_lost(self, asynchronous, tasks, probe) -> None:
        """It need not look, the loop goes on, and nothing that follows is cancelled."""
        terms: list[Any] = []
        waits = threading.Event()

        async def lead() -> str:
            async for term in asynchronous.lead("boss", ttl=LONG):
                async with term:
                    terms.append(term)
                    if len(terms) == 2:
                        break
                    waits.set()
                    await asyncio.Event().wait()
            await asyncio.sleep(0)
            assert asyncio.current_task().cancelling() == 0
            return "went on"

        leads = tasks.actor().begin(lead)
        assert waits.wait(PATIENCE)
        assert probe.force_release("boss")
        hurry(asynchronous, terms[0])
        assert leads.result(PATIENCE) == "went on"
        assert terms[1].fence > terms[0].fence

    def test_a_leader_that_is_cancelled_leaves_the_loop(self, asynchronous, tasks, waiting) -> None:
        """Cancelled from outside, it stands no more, and leaves nothing held."""
        actor, at_work = tasks.actor(), threading.Event()

        async def lead() -> None:
            async for term in asynchronous.lead("boss", ttl=LONG):
                async with term:
                    at_work.set()
                    await asyncio.Event().wait()

        leads = actor.begin(lead)
        assert at_work.wait(PATIENCE)
        actor.cancel()
        with pytest.raises(asyncio.CancelledError):
            leads.result(PATIENCE)
        eventually(lambda: waiting("boss") is None)

    def test_a_candidate_that_is_cancelled_leaves_the_queue(
        self, asynchronous, tasks, waiting
    ) -> None:
        """It is not elected afterwards."""
        holder, candidate = tasks.actor(), tasks.actor()
        lease = holder.do(asynchronous.acquire, "boss", ttl=LONG)
        stands = candidate.begin(tasks.lead, asynchronous, "boss", tasks.work(list), block=True)
        eventually(lambda: waiting("boss") == 1)
        candidate.cancel()
        with pytest.raises(asyncio.CancelledError):
            stands.result(PATIENCE)
        eventually(lambda: waiting("boss") == 0)
        holder.do(lease.release)
        assert waiting("boss") is None


@pytest.mark.parametrize("api", [Locks, AsyncLocks])
def test_what_cannot_work_is_refused_at_the_call(api) -> None:
    """Before the loop begins: a key that cannot be, an option that cannot be, locks that are closed."""
    locks = api.from_url("memory://")
    with pytest.raises(InvalidKey):
        locks.lead("")
    with pytest.raises(ConfigurationError, match="ttl="):
        locks.lead("boss", ttl=-1)
    asyncio.run(locks.close()) if api is AsyncLocks else locks.close()
    with pytest.raises(ConfigurationError, match="is closed"):
        locks.lead("boss")
