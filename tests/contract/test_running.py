"""Work that is run under a lock."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import threading
import warnings
from typing import Any

import anyio
import pytest

from tests.support.renewals import end, hurry, renewed
from tests.support.waiting import eventually, now
from weblock import AsyncLocks, ConfigurationError, LeaseLost, Locks, LockTimeout

from .apis import AsyncioApi, Gate

LONG = 60.0
"""A ttl that no test waits for: whoever had to would fail."""


@pytest.mark.of_core
def test_the_result_is_that_of_the_work(locks, api, one) -> None:
    """Arguments go to the work, and what it returns or raises comes from ``run``."""
    assert one.do(locks.run, "key", api.work(divmod), 17, 5) == (3, 2)
    with pytest.raises(ZeroDivisionError):
        one.do(locks.run, "key", api.work(divmod), 17, 0)


@pytest.mark.of_core
def test_work_that_times_out_is_not_a_busy_key(locks, api, one) -> None:
    """A ``LockTimeout`` of the work itself is raised, also where a busy key would be skipped."""

    def of_its_own() -> None:
        raise LockTimeout("another key", wait=0, retry_after=0)

    with pytest.raises(LockTimeout, match="another key"):
        one.do(locks.run, "key", api.work(of_its_own), on_busy="skip")


@pytest.mark.of_core
def test_odd_orders_are_refused(locks, api, one) -> None:
    """What cannot be meant by ``on_busy`` is refused before anything runs."""
    with pytest.raises(ConfigurationError, match="on_busy='later' must be 'wait' or 'skip'"):
        one.do(locks.run, "key", api.work(list), on_busy="later")


@pytest.mark.of_core
@pytest.mark.promise("locks")
class TestUnderTheLock:
    def test_work_does_not_overlap(self, locks, api, one, other, waiting) -> None:
        """While the work runs its key is held, and afterwards it is free."""
        gate = Gate()
        running = one.begin(locks.run, "key", api.after(gate, lambda: "done"))
        gate.until_reached()
        waits = other.begin(locks.run, "key", api.work(lambda: "after it"))
        eventually(lambda: waiting("key") == 1)
        gate.set()
        assert running.result(LONG) == "done"
        assert waits.result(LONG) == "after it"
        assert waiting("key") is None

    def test_a_busy_key_is_skipped_at_once(self, locks, api, one, other) -> None:
        """Then the work is not run, and ``None`` says so; by default ``LockTimeout`` does."""
        ran: list[str] = []
        lease = one.do(locks.acquire, "key", ttl=LONG)
        work = api.work(ran.append)
        assert other.do(locks.run, "key", work, "no", on_busy="skip") is None
        with pytest.raises(LockTimeout):
            other.do(locks.run, "key", work, "no", wait=0)
        one.do(lease.release)
        assert ran == []
        other.do(locks.run, "key", work, "yes", on_busy="skip")
        assert ran == ["yes"]

    def test_skipping_may_wait(self, locks, api, one, other, waiting) -> None:
        """A key that becomes free within ``wait`` is not skipped."""
        lease = one.do(locks.acquire, "key", ttl=LONG)
        waits = other.begin(
            locks.run, "key", api.work(lambda: "ran"), on_busy="skip", wait=LONG / 2
        )
        eventually(lambda: waiting("key") == 1)
        one.do(lease.release)
        assert waits.result(LONG) == "ran"

    @pytest.mark.of_core
    def test_work_may_take_longer_than_its_lease(self, locks, api, one, other) -> None:
        """While the work runs, the lease is renewed without anybody's doing, after a third of its ttl."""
        gate = Gate()
        running = one.begin(locks.run, "key", api.after(gate, lambda: "done"), ttl=LONG / 15)
        gate.until_reached()
        (lease,) = locks._locker.keeper.holdings.values()
        at_first = lease.deadline
        eventually(lambda: lease.deadline > at_first)
        assert other.do(locks.try_acquire, "key") is None
        gate.set()
        assert running.result(LONG) == "done"

    def test_a_loss_is_told(self, locks, api, one, probe) -> None:
        """Work whose lease is taken away ends in ``LeaseLost``, whatever it returns."""
        gate = Gate()
        running = one.begin(locks.run, "key", api.after(gate, lambda: "done"), ttl=LONG)
        gate.until_reached()
        assert probe.force_release("key")
        gate.set()
        with pytest.raises(LeaseLost) as lost:
            running.result(LONG)
        assert lost.value.reason == "taken"

    def test_what_was_extended_stays_so(self, locks, one) -> None:
        """Renewals that follow take nothing away of what an extension has added."""
        lease = one.do(locks.acquire, "key", ttl=10)
        asked = now()
        one.do(lease.extend, LONG)
        for _ in range(3):
            renewed(locks, lease)
        assert now() + lease.remaining() > asked + LONG * 0.98
        one.do(lease.release)


@pytest.mark.promise("locks")
@pytest.mark.of_core
class TestAtLeast:
    """Keys that stay taken for longer than the work takes."""

    @pytest.mark.parametrize("work", [lambda: "done", lambda: 1 / 0], ids=["ends", "raises"])
    def test_a_key_stays_taken(self, locks, api, one, *, other, work) -> None:
        """Work that ends or raises at once leaves its key taken, also when its lease is forgotten."""
        with contextlib.suppress(ZeroDivisionError):
            one.do(locks.run, "key", api.work(work), at_least=LONG, ttl=LONG / 10)
        gc.collect()
        eventually(lambda: locks._locker.keeper.idle)
        assert other.do(locks.try_acquire, "key") is None
        assert one.do(locks.run, "key", api.work(list), on_busy="skip") is None
        assert one.do(locks.inspect, "key").remaining > LONG / 2

    def test_it_becomes_free_by_itself(self, locks, api, one, other) -> None:
        """A caller that waits gets the key when the time is over."""
        one.do(locks.run, "key", api.work(list), at_least=2.5, ttl=2)
        assert other.do(locks.run, "key", api.work(lambda: "ran"), wait=LONG) == "ran"

    def test_work_that_takes_longer_frees_the_key(self, locks, api, one, other) -> None:
        """When it ends, nothing keeps the key."""
        gate = Gate()
        running = one.begin(
            locks.run, "key", api.after(gate, lambda: "done"), at_least=0.01, ttl=LONG
        )
        gate.until_reached()
        over = now() + 0.02
        eventually(lambda: now() > over)
        gate.set()
        assert running.result(LONG) == "done"
        other.do(other.do(locks.acquire, "key", wait=0).release)

    def test_a_loss_is_told_nevertheless(self, locks, api, one, probe) -> None:
        """Work whose lease is taken away ends in ``LeaseLost``, and takes the key of nobody."""
        gate = Gate()
        running = one.begin(
            locks.run, "key", api.after(gate, lambda: "done"), at_least=2 * LONG, ttl=LONG
        )
        gate.until_reached()
        assert probe.force_release("key")
        (lease,) = locks._locker.keeper.holdings.values()
        hurry(locks)
        eventually(lambda: not lease.held(now()))
        gate.set()
        with pytest.raises(LeaseLost):
            running.result(LONG)
        assert probe.inspect("key") is None

    def test_values_that_cannot_work_are_refused(self, locks, api, one) -> None:
        """Before the work runs: no duration, and one that is longer than ``max_hold``."""
        with pytest.raises(ConfigurationError, match="at_least='soon' is not a duration"):
            one.do(locks.run, "key", api.work(list), at_least="soon")
        with pytest.raises(ConfigurationError, match="raise max_hold="):
            one.do(locks.run, "key", api.work(list), at_least=2, max_hold=1)


@pytest.mark.promise("locks", "processes")
@pytest.mark.of_core
@pytest.mark.costly
def test_a_key_stays_taken_without_its_process(promises, locks, one, puppet) -> None:
    """The process may end meanwhile, where the engine does not free what the dead had."""
    runner = puppet()
    assert runner.do("run", "key", at_least=LONG, ttl=LONG / 10) == {}
    runner.kill()
    if promises.death_noticed_at_once:
        one.do(one.do(locks.acquire, "key", wait=LONG).release)
    else:
        assert one.do(locks.inspect, "key").remaining > LONG / 2


@pytest.fixture
def tasks():
    api = AsyncioApi()
    yield api
    api.close()


@pytest.fixture
def asynchronous(tasks, url):
    locks = tasks.open(url)
    yield locks
    tasks.shut(locks)


class Endless:
    """Work that would go on for ever, and says how it ended."""

    def __init__(self, at_its_end: BaseException | str | None = None) -> None:
        self.started = threading.Event()
        self.cancelled = False
        self._at_its_end = at_its_end

    async def run(self) -> str:
        self.started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled = True
            if isinstance(self._at_its_end, BaseException):
                raise self._at_its_end from None
            if self._at_its_end is None:
                raise
        return str(self._at_its_end)


@pytest.fixture(params=["run", "hold"])
def run(request: pytest.FixtureRequest, asynchronous: AsyncLocks) -> Any:
    """What runs work that is cancelled when its lease is lost."""

    async def hold(key: str, work: Any, **options: Any) -> Any:
        async with asynchronous.hold(key, on_lost="cancel", **options):
            return await work()

    return asynchronous.run if request.param == "run" else hold


@pytest.mark.of_core
@pytest.mark.promise("locks")
class TestCancelling:
    @pytest.mark.parametrize("stubborn", [False, True])
    def test_work_is_cancelled_when_its_lease_is_lost(
        self, run, asynchronous, tasks, probe, *, stubborn
    ) -> None:
        """It ends without waiting for what it waited for; who returns nevertheless is told, too."""
        work = Endless("done" if stubborn else None)
        running = tasks.actor().begin(run, "key", work.run, ttl=LONG)
        assert work.started.wait(LONG)
        assert probe.force_release("key")
        hurry(asynchronous)
        with pytest.raises(LeaseLost):
            running.result(LONG)
        assert work.cancelled

    def test_the_end_of_a_lease_cancels(self, run, asynchronous, tasks) -> None:
        """So does a lease that ends because nobody renews it, or because it was held for too long."""
        for options in ({"renew": False}, {"max_hold": LONG}):
            work = Endless()
            running = tasks.actor().begin(run, "key", work.run, ttl=LONG, **options)
            assert work.started.wait(LONG)
            end(asynchronous)
            with pytest.raises(LeaseLost):
                running.result(LONG)
            assert work.cancelled

    def test_an_error_of_cancelled_work_is_raised(self, run, asynchronous, tasks) -> None:
        """With a note of the loss: an error that cleaning up has raised is not hidden."""
        work = Endless(KeyError("cleaning up"))
        running = tasks.actor().begin(run, "key", work.run, ttl=LONG)
        assert work.started.wait(LONG)
        end(asynchronous)
        with pytest.raises(KeyError, match="cleaning up") as raised:
            running.result(LONG)
        assert "lost" in raised.value.__notes__[0]

    def test_who_cancels_the_caller_is_obeyed(self, run, tasks, waiting) -> None:
        """Work that is cancelled by others ends as cancelled, and gives the key back."""
        actor, work = tasks.actor(), Endless()
        running = actor.begin(run, "key", work.run, ttl=LONG)
        assert work.started.wait(LONG)
        actor.cancel()
        with pytest.raises(asyncio.CancelledError):
            running.result(LONG)
        eventually(lambda: waiting("key") is None)

    def test_what_goes_on_afterwards_is_not_cancelled(self, run, tasks) -> None:
        """Only the work is cancelled: the caller who expects a loss can await and lock again."""

        async def caller() -> str:
            with pytest.raises(LeaseLost):
                await run("key", Endless().run, ttl=0.2, renew=False)
            async with asyncio.timeout(LONG):
                await asyncio.sleep(0)
                assert asyncio.current_task().cancelling() == 0
                return await run("key", tasks.work(lambda: "went on"))

        assert tasks.actor().do(caller) == "went on"

    def test_the_time_limit_of_a_caller_is_its_own(self, asynchronous, tasks, probe) -> None:
        """A loss within ``asyncio.timeout`` or scopes of anyio is ``LeaseLost``; their end is ``TimeoutError``."""

        async def caller() -> None:
            for limited in (asyncio.timeout, anyio.fail_after):
                for within, expected in ((LONG, LeaseLost), (0.05, TimeoutError)):
                    options = {"ttl": 0.1, "renew": False} if within == LONG else {"ttl": LONG}
                    with pytest.raises(expected):
                        await hold(limited(within), options)
                    assert asyncio.current_task().cancelling() == 0
                    await asyncio.sleep(0)

        async def hold(limit: Any, options: dict[str, Any]) -> None:
            async with contextlib.AsyncExitStack() as stack:
                if hasattr(limit, "__aenter__"):
                    await stack.enter_async_context(limit)
                else:
                    stack.enter_context(limit)
                async with asynchronous.hold("key", on_lost="cancel", **options) as lease:
                    assert lease.held
                    async with anyio.create_task_group() as group:
                        group.start_soon(anyio.sleep_forever)

        tasks.actor().do(caller)
        eventually(lambda: probe.inspect("key") is None)
        with pytest.raises(ConfigurationError, match="on_lost='stop' must be 'cancel' or"):
            asynchronous.hold("key", on_lost="stop")


class TestMistakes:
    @pytest.mark.filterwarnings("error")
    @pytest.mark.parametrize("name", ["run", "once"])
    def test_a_coroutine_is_refused_and_closed(self, name) -> None:
        """A coroutine cannot be skipped, or done again: it is refused, and none is left unawaited."""

        async def work() -> None: ...

        with warnings.catch_warnings(record=True) as unawaited:
            warnings.simplefilter("always")
            with Locks.from_url("memory://") as locks, pytest.raises(TypeError, match="itself"):
                getattr(locks, name)("key", work())
            with pytest.raises(TypeError, match="itself"):
                asyncio.run(getattr(AsyncLocks.from_url("memory://"), name)("key", work()))
            gc.collect()
        # What other tests have left may be collected here, too.
        ours = [each for each in unawaited if work.__qualname__ in str(each.message)]
        assert ours == []

    @pytest.mark.parametrize("name", ["run", "once"])
    def test_each_api_takes_its_own(self, name) -> None:
        """What is async is refused by ``Locks``, and what is not by ``AsyncLocks``."""

        async def work() -> None: ...

        with Locks.from_url("memory://") as locks, pytest.raises(TypeError, match="AsyncLocks"):
            getattr(locks, name)("key", work)
        plain = functools.partial(print, end="")
        with pytest.raises(TypeError, match="not a coroutine function"):
            asyncio.run(getattr(AsyncLocks.from_url("memory://"), name)("key", plain))
