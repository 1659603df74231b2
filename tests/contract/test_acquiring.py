"""Getting a key, waiting for it, and giving up."""

from __future__ import annotations

import asyncio
import enum
import threading
from collections.abc import AsyncGenerator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import partial

import pytest

from tests.support.renewals import end
from tests.support.waiting import PATIENCE, eventually, now, waiters
from weblock import AlreadyHeld, AsyncLocks, Attempts, InvalidKey, Locks, LockTimeout

pytestmark = pytest.mark.promise("locks")


def test_a_free_key_is_had_at_once(locks, one) -> None:
    """An acquisition of a free key needs no waiting, and says what it got."""
    lease = one.do(locks.acquire, "key", wait=0)
    assert (lease.key, lease.keys, lease.held) == ("key", ("key",), True)
    assert lease.fence > 0
    assert 0 < lease.remaining() <= 10
    one.do(lease.release)
    assert not lease.held


def test_wait_0_never_waits(locks, one, other, waiting) -> None:
    """A caller who does not want to wait is refused at once, and does not queue."""
    one.do(locks.acquire, "key", ttl=60)
    with pytest.raises(LockTimeout) as refused:
        other.do(locks.acquire, "key", wait=0)
    assert (refused.value.key, refused.value.wait) == ("key", 0)
    assert 0 < refused.value.retry_after <= 60
    assert waiting("key") == 0


def test_who_was_refused_is_told_the_holder(locks, one, other) -> None:
    """Its label, whether the caller has waited or not."""
    one.do(locks.acquire, "key", ttl=60, label="the holder")
    for wait in (0, 0.1):
        with pytest.raises(LockTimeout) as refused:
            other.do(locks.acquire, "key", wait=wait)
        assert refused.value.holder == "the holder"


@pytest.mark.of_core
def test_try_acquire_answers_none(locks, one, other) -> None:
    """``try_acquire`` gives None where the key is held, to the holder too, and never raises."""
    lease = one.do(locks.try_acquire, "key")
    assert other.do(locks.try_acquire, "key") is None
    assert one.do(locks.try_acquire, "key") is None
    one.do(lease.release)
    other.do(other.do(locks.try_acquire, "key").release)


def test_a_wait_that_expires(locks, one, other, waiting) -> None:
    """A waiter is refused when its time is up, not earlier, and has left the queue by then."""
    one.do(locks.acquire, "key", ttl=60)
    began = now()
    with pytest.raises(LockTimeout) as refused:
        other.do(locks.acquire, "key", wait=0.3)
    assert now() - began >= 0.3
    assert refused.value.wait == 0.3
    assert isinstance(refused.value, TimeoutError)
    assert waiting("key") == 0


@pytest.mark.promise("queue")
@pytest.mark.usefixtures("unhurried")
def test_first_come_first_served(locks, api, one, waiting) -> None:
    """Six waiters get the key in the order in which they came."""
    lease = one.do(locks.acquire, "key")
    served: list[int] = []
    calls = []
    for number, actor in enumerate(api.actors(6)):
        body = lambda lease, number=number: served.append(number)  # noqa: E731
        calls.append(actor.begin(api.section, locks, "key", body=body, wait=None, ttl=60))
        eventually(lambda number=number: waiting("key") == number + 1)
    one.do(lease.release)
    for call in calls:
        call.result(PATIENCE)
    assert served == [0, 1, 2, 3, 4, 5]


@pytest.mark.promise("queue", "processes")
@pytest.mark.costly
def test_first_come_first_served_over_processes(locks, one, puppet, waiting) -> None:
    """The queue is one for all processes."""
    lease = one.do(locks.acquire, "key")
    puppets = [puppet() for _ in range(3)]
    for number, each in enumerate(puppets):
        each.begin("acquire", "key", wait=None)
        eventually(lambda number=number: waiting("key") == number + 1)
    one.do(lease.release)
    fences = []
    for each in puppets:
        fences.append(each.hear()["fence"])
        each.do("release")
    assert lease.fence < fences[0] < fences[1] < fences[2]


@pytest.mark.promise("queue")
@pytest.mark.usefixtures("unhurried")
def test_nobody_barges_past_the_queue(locks, api, one, waiting) -> None:
    """A newcomer who tries at the moment of the release does not get the key before the queue."""
    lease = one.do(locks.acquire, "key")
    first, newcomer = api.actors(2)
    waiter = first.begin(locks.acquire, "key", wait=None, ttl=60)
    eventually(lambda: waiting("key") == 1)
    one.do(lease.release)
    assert newcomer.do(locks.try_acquire, "key") is None
    first.do(waiter.result(PATIENCE).release)
    newcomer.do(newcomer.do(locks.acquire, "key", wait=PATIENCE).release)


def test_a_full_queue_refuses_at_once(locks, api, one, waiting) -> None:
    """Whoever would be one waiter too many is told so without waiting."""
    one.do(locks.acquire, "key", ttl=60)
    first, second = api.actors(2)
    first.begin(locks.acquire, "key", wait=None, max_waiters=1)
    eventually(lambda: waiting("key") == 1)
    with pytest.raises(LockTimeout, match="max_waiters") as refused:
        second.do(locks.acquire, "key", wait=None, max_waiters=1)
    assert refused.value.waiters == 1


@pytest.mark.of_core
def test_waiting_for_oneself_is_refused(locks, one, other) -> None:
    """The same flow of control gets an error at once, where it would wait for itself."""
    lease = one.do(locks.acquire, "key")
    with pytest.raises(AlreadyHeld) as refused:
        one.do(locks.acquire, "key", wait=None)
    assert refused.value.key == "key"
    with pytest.raises(LockTimeout):
        other.do(locks.acquire, "key", wait=0.01)
    one.do(lease.release)
    one.do(one.do(locks.acquire, "key").release)


@pytest.mark.of_core
def test_a_reused_thread_of_a_pool_waits_for_another_request(probe, waiting) -> None:
    """A part of one request waits in the thread that has entered the block of another, but not for its own."""
    with ThreadPoolExecutor(1) as reused, ThreadPoolExecutor(1) as another:
        first, second = copy_context(), copy_context()
        block = probe.hold("key", ttl=60)
        reused.submit(first.run, block.__enter__).result(PATIENCE)
        for within in (first, reused.submit(first.run, copy_context).result(PATIENCE)):
            with pytest.raises(AlreadyHeld):
                reused.submit(within.run, partial(probe.acquire, "key", wait=None)).result(PATIENCE)
        waits = reused.submit(second.run, partial(probe.acquire, "key", wait=PATIENCE))
        eventually(lambda: waiting("key") == 1)
        another.submit(first.run, block.__exit__, None, None, None).result(PATIENCE)
        waits.result(PATIENCE).release()


@pytest.mark.of_core
def test_a_generator_that_was_left_releases_what_the_same_flow_wants_next(locks, api, one) -> None:
    """After ``break`` no code refers to the generator. A generator that is kept is waited for in vain."""
    one.do(_leave if api.name == "sync" else _leave_async, locks)


def _leave(locks: Locks) -> None:
    def section() -> Iterator[int]:
        with locks.hold("key", ttl=60):
            yield from range(3)

    for _ in section():
        break
    locks.acquire("key", wait=None).release()
    kept = section()
    next(kept)
    with pytest.raises(AlreadyHeld):
        locks.acquire("key", wait=None)
    kept.close()


async def _leave_async(locks: AsyncLocks) -> None:
    async def section(key: str = "key", limit: int = 1) -> AsyncGenerator[int, None]:
        async with locks.hold(key, limit=limit, ttl=60):
            for number in range(3):
                yield number

    async def within_another() -> AsyncGenerator[int, None]:
        async for number in section():
            yield number

    for generator in (section, within_another):
        async for _ in generator():
            break
        await (await locks.acquire("key", wait=None)).release()
    beside = await asyncio.create_task(locks.acquire("slots", limit=2))
    async for _ in section("slots", limit=2):
        break
    await (await locks.acquire("slots", limit=2, wait=None)).release()
    await beside.release()
    kept = section()
    await anext(kept)
    with pytest.raises(AlreadyHeld):
        await locks.acquire("key", wait=None)
    await kept.aclose()


@pytest.mark.of_core
def test_blocking_code_that_would_stop_the_holder_is_refused(probe) -> None:
    """Who would wait, on an event loop, for another of its tasks gets an error at once."""

    async def holder() -> None:
        with probe.hold("key"):
            await asyncio.create_task(another())
            await asyncio.to_thread(an_outsider)

    async def another() -> None:
        for wait in (None, Attempts(1000)):
            with pytest.raises(AlreadyHeld, match="another task of the event loop"):
                probe.acquire("key", wait=wait)
        assert probe.try_acquire("key") is None
        assert probe.inspect("key").waiters == ()

    def an_outsider() -> None:
        with pytest.raises(LockTimeout):
            probe.acquire("key", wait=0.01)

    asyncio.run(holder())


class TestBlockingCodeBehindATask:
    """On an event loop, where an asyncio waiter of the same loop is in front of it in the queue."""

    @pytest.mark.of_core
    def test_it_does_not_wait_for_a_task_that_it_stops(self, probe, url) -> None:
        """The task could not take its turn, so that each would wait for the other."""
        refused = []

        def ask(first: asyncio.Future[object], _release: object) -> None:
            for wait in (None, Attempts(1000)):
                with pytest.raises(
                    AlreadyHeld, match="another task of this event loop ahead in"
                ) as caught:
                    probe.acquire("key", wait=wait)
                refused.append(caught.value)
            assert probe.try_acquire("key") is None
            assert waiters(probe, "key") == 1
            assert not first.done()
            probe.acquire("other", wait=None).release()

        asyncio.run(behind_a_task(probe, url, ask))
        found = [(each.key, each.upgrade, each.waits) for each in refused]
        assert found == [("key", False, True)] * 2

    @pytest.mark.of_core
    def test_nor_for_one_whose_turn_has_come(self, probe, url) -> None:
        """The task has been given the lease already, and cannot notice that."""

        def ask(_first: object, release: Callable[[], None]) -> None:
            release()
            with pytest.raises(AlreadyHeld):
                probe.acquire("key", wait=None)

        asyncio.run(behind_a_task(probe, url, ask))

    @pytest.mark.of_core
    @pytest.mark.parametrize("options", [{"shared": True}, {"limit": 2}], ids=["shared", "limit"])
    def test_it_waits_beside_one_that_it_shares_with(self, probe, url, options) -> None:
        """Neither needs the turn of the other: both are let in when the only holder has released."""

        def ask(_first: object, release: Callable[[], None]) -> None:
            def release_late() -> None:
                eventually(lambda: waiters(probe, "key") == 2)
                release()

            thread = threading.Thread(target=release_late)
            thread.start()
            probe.acquire("key", wait=PATIENCE, **options).release()
            thread.join()

        asyncio.run(behind_a_task(probe, url, ask, **options))

    @pytest.mark.of_core
    @pytest.mark.parametrize("limit", [2, 3])
    def test_it_does_not_wait_for_as_many_as_may_hold_together(self, probe, url, limit) -> None:
        """The tasks take all there is to have, and none of them could release it."""

        def ask(_first: object, _release: object) -> None:
            with pytest.raises(AlreadyHeld, match="another task of this event loop ahead in"):
                probe.acquire("key", wait=None, limit=limit)

        asyncio.run(behind_a_task(probe, url, ask, tasks=2, limit=2))

    @pytest.mark.of_core
    def test_threads_wait_as_ever(self, probe, url) -> None:
        """A thread stops no loop: it waits behind the task."""
        fences = []

        def wait() -> None:
            with probe.hold("key", wait=PATIENCE) as lease:
                fences.append(lease.fence)

        thread = threading.Thread(target=wait)

        async def main() -> None:
            await behind_a_task(probe, url, lambda *_: thread.start())
            await asyncio.to_thread(thread.join)

        asyncio.run(main())
        assert len(fences) == 1


async def behind_a_task(probe, url, ask, *, tasks=1, **options) -> None:
    """Calls ``ask`` on the loop while tasks of it wait for a key that a thread elsewhere holds."""
    with ThreadPoolExecutor(1) as elsewhere:
        lease = elsewhere.submit(probe.acquire, "key", ttl=60).result(PATIENCE)
        async with AsyncLocks.from_url(url) as locks:
            acquire = partial(locks.acquire, "key", wait=PATIENCE, **options)
            waiting = [asyncio.ensure_future(acquire()) for _ in range(tasks)]
            keeper, key = locks._locker.keeper, locks._name("key")
            # Not only the engine knows them: its answer may be on its way.
            await asyncio.to_thread(eventually, lambda: len(keeper.waiting_for(key)) == tasks)
            ask(waiting[0], lease.release)
            if lease.held:
                lease.release()
            for each in waiting:
                await (await each).release()


@pytest.mark.of_core
def test_blocking_code_waits_for_a_task_that_has_ended(probe, waiting) -> None:
    """What holds up nobody is no waiting for oneself: a thread has the lease of the task by now."""
    threads = []

    async def holder() -> None:
        lease = probe.acquire("key", ttl=60)

        def release() -> None:
            eventually(lambda: waiting("key") == 1)
            lease.release()

        threads.append(threading.Thread(target=release))
        threads[0].start()

    async def another() -> None:
        await asyncio.create_task(holder())
        probe.acquire("key", wait=PATIENCE).release()

    asyncio.run(another())
    threads[0].join()


@pytest.mark.of_core
def test_a_loop_does_not_wait_for_the_thread_that_runs_it(probe, url) -> None:
    """The thread goes on when the loop has ended: neither API waits there for what it holds."""

    async def inside() -> None:
        with pytest.raises(AlreadyHeld):
            probe.acquire("key", wait=None)
        async with AsyncLocks.from_url(url) as locks:
            with pytest.raises(AlreadyHeld):
                await locks.acquire("key", wait=None)

    with probe.hold("key"):
        asyncio.run(inside())


@pytest.mark.of_core
def test_a_task_waits_for_what_a_callback_of_its_loop_holds(probe, url) -> None:
    """A callback is not the thread that runs the loop: a later one releases."""

    async def main() -> None:
        loop, leases = asyncio.get_running_loop(), []

        def acquire() -> None:
            leases.append(probe.acquire("key", ttl=60))

        def release_when_it_waits() -> None:
            if waiters(probe, "key"):
                leases[0].release()
            else:
                loop.call_later(0.01, release_when_it_waits)

        loop.call_soon(acquire)
        loop.call_soon(release_when_it_waits)
        async with AsyncLocks.from_url(url) as locks:
            while not leases:  # noqa: ASYNC110 - the callback has its turn next
                await asyncio.sleep(0)
            await (await locks.acquire("key", wait=PATIENCE)).release()

    asyncio.run(main())


def test_keys_do_not_touch_one_another(locks, one) -> None:
    """Keys that look alike to a careless engine are different keys."""
    alike = [
        "a",
        "A",
        "a ",
        "a:a",
        "a*",
        "{a}",
        "{a",
        "a}b",
        "ä",
        "a\u0308",
        "%61",
        "a/../a",
        "a\\",
        "[a]",
        "?",
    ]
    leases = [one.do(locks.acquire, key, wait=0) for key in alike]
    assert all(lease.held for lease in leases)
    for lease in leases:
        one.do(lease.release)


def test_the_longest_key(locks, one, other) -> None:
    """A key of 512 characters of four bytes each is locked like any other."""
    key = "\U0001f512" * 512
    one.do(locks.acquire, key)
    assert other.do(locks.try_acquire, key) is None
    assert other.do(locks.try_acquire, key[:-1]) is not None


@pytest.mark.of_core
def test_hostile_keys_are_refused(locks, one) -> None:
    """What cannot be a key is refused before the engine hears of it."""
    for key in ("", "a\nb", "a\0", "k" * 513, "\ud800", 7, None, b"key"):
        with pytest.raises(InvalidKey):
            one.do(locks.acquire, key)


class Job(str, enum.Enum):  # noqa: UP042 - as projects still have them
    IMPORT = "import"


@pytest.mark.of_core
def test_a_member_of_an_enum_is_its_value(api, url, locks, one, *, other, probe) -> None:
    """``Job.IMPORT`` excludes ``"import"``, wherever a key, a template or a namespace is named."""
    for keys in ([Job.IMPORT], [Job.IMPORT, "a"]):
        lease = one.do(locks.acquire, *keys)
        assert "import" in lease.keys
        assert other.do(locks.try_acquire, "import") is None
        assert one.do(locks.inspect, Job.IMPORT)
        one.do(lease.release)
    for key, argument in ((Job.IMPORT, None), ("{0}", Job.IMPORT), ("{0:str}", Job.IMPORT)):
        held = one.do(api.serialize(locks, key, lambda _: bool(probe.inspect("import"))), argument)
        assert held
    of_import = [api.open(url, namespace=each) for each in (Job.IMPORT, "import")]
    assert one.do(of_import[0].try_acquire, "key")
    assert other.do(of_import[1].try_acquire, "key") is None
    for each in of_import:
        api.shut(each)


def test_namespaces_keep_applications_apart(api, url, one) -> None:
    """The same key in two namespaces is two keys, whatever the key is."""
    shop, shop_a = api.open(url, namespace="shop"), api.open(url, namespace="shop.a")
    for locks, key in [(shop, "a:k"), (shop, "k"), (shop_a, "k"), (shop_a, "a:k")]:
        assert one.do(locks.try_acquire, key)
    api.shut(shop)
    api.shut(shop_a)


def test_two_locks_of_one_url_share_the_engine(api, url, locks, one, other) -> None:
    """Whoever names the same URL locks the same keys."""
    again = api.open(url)
    one.do(locks.acquire, "key")
    assert other.do(again.try_acquire, "key") is None
    api.shut(again)


def test_both_apis_exclude_one_another(locks, one, probe) -> None:
    """A lease of either API keeps the blocking API out, in the same process."""
    lease = one.do(locks.acquire, "key", ttl=60)
    assert probe.try_acquire("key") is None
    one.do(lease.release)
    mine = probe.acquire("key")
    assert one.do(locks.try_acquire, "key") is None
    mine.release()


@pytest.mark.of_core
def test_one_actor_may_hold_several_keys_in_turn(locks, one) -> None:
    """Acquiring another key while holding one is no mistake."""
    outer = one.do(locks.acquire, "outer")
    inner = one.do(locks.acquire, "inner")
    one.do(inner.release)
    one.do(outer.release)


def test_a_lease_may_be_released_by_another(locks, one, other) -> None:
    """Whoever has the lease may release it; its first owner may then acquire again."""
    lease = one.do(locks.acquire, "key")
    other.do(lease.release)
    one.do(one.do(locks.acquire, "key", wait=5).release)


@pytest.mark.of_core
def test_the_successor_of_a_thread_is_somebody_else(locks, api, url) -> None:
    """A flow of control that has ended is not mistaken for the next one."""
    first = api.actor()
    lease = first.do(locks.acquire, "key", ttl=60)
    first.close()
    for _ in range(5):
        second = api.actor()
        with pytest.raises(LockTimeout):
            second.do(locks.acquire, "key", wait=0.01)
        second.close()
    assert lease.held


@pytest.mark.of_core
def test_the_block_passes_the_lease_and_the_result(locks, api, one, waiting) -> None:
    """A block that ends has released; one that raises has released too, and its error comes out."""
    assert one.do(api.section, locks, "key", body=lambda lease: lease.held) is True
    with pytest.raises(ZeroDivisionError):
        one.do(api.section, locks, "key", body=lambda lease: 1 / 0)
    assert waiting("key") is None


@pytest.mark.of_core
def test_a_hold_may_be_shared(locks, api, one, other, probe) -> None:
    """Of those who share one ``hold``, each ends just its own lease, also one that was lost."""
    shared = locks.hold("key", ttl=60, renew=False)
    enter, leave = ("__enter__", "__exit__") if api.name == "sync" else ("__aenter__", "__aexit__")
    lost = one.do(getattr(shared, enter))
    end(locks, lost)
    assert probe.force_release("key")
    assert not lost.held
    mine = other.do(locks.acquire, "other")
    theirs = other.do(getattr(shared, enter))
    with pytest.raises(Exception, match="lost"):
        one.do(getattr(shared, leave), None, None, None)
    theirs.check()
    other.do(getattr(shared, leave), None, None, None)
    other.do(mine.release)
