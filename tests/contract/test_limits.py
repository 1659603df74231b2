"""Keys that several callers hold at once: at most so many of them, or readers beside readers."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import wait
from typing import Any

import pytest

from tests.support.renewals import renewed
from tests.support.waiting import PATIENCE, eventually, waiters
from weblock import AlreadyHeld, Attempts, ConfigurationError, LeaseLost, LockTimeout

LONG = 60.0
"""A ttl that no test waits for: whoever had to would fail."""

pytestmark = pytest.mark.promise("several")


def holders(probe: Any, key: str) -> list[int]:
    info = probe.inspect(key)
    return [each.fence for each in info.holders] if info else []


class TestLimit:
    def test_so_many_hold_and_the_next_one_waits(self, locks, api, probe) -> None:
        """Three hold a key with ``limit=3``, each with a lease of its own; one more waits for any of them."""
        actors = api.actors(4)
        leases = [one.do(locks.acquire, "key", limit=3, ttl=LONG) for one in actors[:3]]
        fences = [lease.fence for lease in leases]
        assert fences == sorted(set(fences))
        assert [(lease.limit, lease.shared) for lease in leases] == [(3, False)] * 3
        assert actors[3].do(locks.try_acquire, "key", limit=3) is None
        waits = actors[3].begin(locks.acquire, "key", limit=3, ttl=LONG, wait=LONG)
        eventually(lambda: waiters(probe, "key") == 1)
        assert not waits.done()
        actors[1].do(leases[1].release)
        fourth = waits.result(PATIENCE)
        assert fourth.fence > fences[-1]
        assert holders(probe, "key") == [fences[0], fences[2], fourth.fence]
        for one, lease in zip(actors, [leases[0], None, leases[2], fourth], strict=True):
            if lease:
                lease.check()
                one.do(lease.release)
        eventually(lambda: probe.inspect("key") is None)

    def test_the_smaller_of_two_limits_counts(self, locks, one, other, api) -> None:
        """While one holds a key with ``limit=2``, there are two at most, whatever others ask for."""
        narrow = one.do(locks.acquire, "key", limit=2, ttl=LONG)
        wide = other.do(locks.acquire, "key", limit=9, ttl=LONG)
        third = api.actor()
        assert third.do(locks.try_acquire, "key", limit=9) is None
        assert third.do(locks.try_acquire, "key") is None
        one.do(narrow.release)
        assert third.do(locks.try_acquire, "key", limit=1) is None
        lease = third.do(locks.acquire, "key", limit=9)
        third.do(lease.release)
        other.do(wide.release)

    def test_each_lease_is_renewed_and_lost_by_itself(self, locks, api, one, other) -> None:
        """One that is not renewed ends, and the one beside it goes on."""
        lost = one.do(locks.acquire, "key", limit=2, ttl=0.3, renew=False)
        kept = other.do(locks.acquire, "key", limit=2, ttl=LONG)
        third = api.actor()
        following = third.do(locks.acquire, "key", limit=2, ttl=LONG, wait=LONG)
        assert not lost.held
        renewed(locks, kept)
        renewed(locks, following)
        other.do(kept.release)
        third.do(following.release)

    @pytest.mark.of_core
    def test_never_more_than_the_limit(self, locks, api) -> None:
        """However many come and go at once, no more than two of them are inside."""
        inside, most, mutex = 0, 0, threading.Lock()

        def count(change: int) -> None:
            nonlocal inside, most
            with mutex:
                inside += change
                most = max(most, inside)

        def work() -> Any:
            for _ in range(8):
                with locks.hold("key", limit=2, wait=None, ttl=LONG):
                    count(1)
                    count(-1)

        async def task() -> None:
            for _ in range(8):
                async with locks.hold("key", limit=2, wait=None, ttl=LONG):
                    count(1)
                    await asyncio.sleep(0)
                    count(-1)

        sections: Callable[[], Any] = work if api.name == "sync" else task
        done = [actor.begin(sections) for actor in api.actors(6)]
        wait(done, PATIENCE)
        for each in done:
            each.result(0)
        assert 1 <= most <= 2


class TestReadersAndWriters:
    def test_readers_share_and_a_writer_waits(self, locks, api, probe) -> None:
        """A writer gets the key when the last reader has left; nobody overtakes it meanwhile."""
        first, second, writer, late = api.actors(4)
        readers = [one.do(locks.acquire, "key", shared=True, ttl=LONG) for one in (first, second)]
        assert [lease.shared for lease in readers] == [True, True]
        writes = writer.begin(locks.acquire, "key", ttl=LONG, wait=LONG)
        eventually(lambda: waiters(probe, "key") == 1)
        assert late.do(locks.try_acquire, "key", shared=True) is None
        reads = late.begin(locks.acquire, "key", shared=True, ttl=LONG, wait=LONG)
        eventually(lambda: waiters(probe, "key") == 2)
        first.do(readers[0].release)
        assert holders(probe, "key") == [readers[1].fence]
        second.do(readers[1].release)
        written = writes.result(PATIENCE)
        assert (written.limit, written.shared, reads.done()) == (1, False, False)
        writer.do(written.release)
        read = reads.result(PATIENCE)
        assert readers[1].fence < written.fence < read.fence
        late.do(read.release)

    def test_readers_enter_together(self, locks, api, probe) -> None:
        """A writer's release lets in all readers that wait, up to the next writer."""
        writer, *readers, last = api.actors(5)
        lease = writer.do(locks.acquire, "key", ttl=LONG)
        reads = []
        for number, reader in enumerate(readers, 1):
            reads.append(reader.begin(locks.acquire, "key", shared=True, ttl=LONG, wait=LONG))
            eventually(lambda: waiters(probe, "key") == number)  # noqa: B023
        writes = last.begin(locks.acquire, "key", ttl=LONG, wait=LONG)
        eventually(lambda: waiters(probe, "key") == 4)
        writer.do(lease.release)
        leases = [each.result(PATIENCE) for each in reads]
        assert holders(probe, "key") == [lease.fence for lease in leases]
        assert not writes.done()
        for lease in leases:
            renewed(locks, lease)
        for reader, lease in zip(readers, leases, strict=True):
            reader.do(lease.release)
        last.do(writes.result(PATIENCE).release)

    def test_a_writer_that_gives_up_lets_the_readers_in(self, locks, api, probe) -> None:
        """A reader that waited behind it enters when it has timed out."""
        reader, writer, late = api.actors(3)
        lease = reader.do(locks.acquire, "key", shared=True, ttl=LONG)
        writes = writer.begin(locks.acquire, "key", ttl=LONG, wait=1)
        eventually(lambda: waiters(probe, "key") == 1)
        read = late.do(locks.acquire, "key", shared=True, ttl=LONG, wait=LONG)
        with pytest.raises(LockTimeout):
            writes.result(PATIENCE)
        lease.check()
        late.do(read.release)
        reader.do(lease.release)


class TestOneself:
    @pytest.mark.of_core
    def test_a_second_slot_is_granted_but_not_waited_for(self, locks, one, other, probe) -> None:
        """Two flows that have a slot each would wait for each other, as they would behind a writer."""
        mine = [one.do(locks.acquire, "key", limit=3, ttl=LONG)]
        mine.append(one.do(locks.acquire, "key", wait=0, limit=3, ttl=LONG))
        third = other.do(locks.acquire, "key", limit=3, ttl=LONG)
        for flow in (one, other):
            assert flow.do(locks.try_acquire, "key", limit=3) is None
            for wait_for in (None, Attempts(1000)):
                with pytest.raises(AlreadyHeld) as refused:
                    flow.do(locks.acquire, "key", wait=wait_for, limit=3)
                assert (refused.value.key, refused.value.upgrade) == ("key", False)
        other.do(third.release)
        for lease in mine:
            one.do(lease.release)

    @pytest.mark.of_core
    @pytest.mark.parametrize("options", [{"shared": True}, {"limit": 3}], ids=["shared", "limit"])
    def test_a_reader_reads_again_until_a_writer_waits(
        self, locks, one, other, probe, options
    ) -> None:
        """Behind the writer, which waits for its lease, it would wait for itself."""
        reads = [one.do(locks.acquire, "key", ttl=LONG, **options) for _ in range(2)]
        assert one.do(locks.try_acquire, "key") is None
        writes = other.begin(locks.acquire, "key", ttl=LONG, wait=None)
        eventually(lambda: waiters(probe, "key") == 1)
        assert one.do(locks.try_acquire, "key", **options) is None
        for wait_for in (None, Attempts(1000)):
            with pytest.raises(AlreadyHeld):
                one.do(locks.acquire, "key", wait=wait_for, **options)
        assert waiters(probe, "key") == 1
        for lease in reads:
            one.do(lease.release)
        other.do(writes.result(PATIENCE).release)

    @pytest.mark.of_core
    def test_an_upgrade_is_refused(self, locks, one, other) -> None:
        """A reader that wants to write is told to release first, and keeps its lease."""
        lease = one.do(locks.acquire, "key", shared=True, ttl=LONG)
        beside = other.do(locks.acquire, "key", shared=True, ttl=LONG)
        with pytest.raises(AlreadyHeld, match="Release it and acquire it again") as refused:
            one.do(locks.acquire, "key", wait=LONG)
        assert refused.value.upgrade
        lease.check()
        other.do(beside.release)
        one.do(lease.release)

    @pytest.mark.of_core
    @pytest.mark.parametrize("options", [{"shared": True}, {"limit": 2}], ids=["shared", "limit"])
    def test_tasks_that_block_share_what_has_room(self, probe, options) -> None:
        """Nobody waits, so no task is refused; where there is no room, it would wait for the other one."""

        async def main() -> None:
            async with asyncio.TaskGroup() as group:
                both_inside = asyncio.Barrier(2)
                for wait_for in (0, LONG):
                    group.create_task(hold(wait_for, both_inside))

        async def hold(wait_for: float, both_inside: asyncio.Barrier) -> None:
            with probe.hold("key", wait=wait_for, **options):
                await both_inside.wait()
                await asyncio.create_task(ask_for_all())
                await both_inside.wait()

        async def ask_for_all() -> None:
            with pytest.raises(AlreadyHeld) as refused:
                probe.acquire("key", wait=LONG)
            assert not refused.value.upgrade

        asyncio.run(main())


class TestSeveralKeys:
    @pytest.mark.of_core
    def test_one_call_holds_all_its_keys_alike(self, locks, api, one, other) -> None:
        """The options of a call are those of each of its keys."""
        lease = one.do(locks.acquire, "a", "b", shared=True, ttl=LONG)
        beside = other.do(locks.acquire, "b", "c", shared=True, ttl=LONG)
        third = api.actor()
        assert [third.do(locks.try_acquire, key) for key in "abc"] == [None] * 3
        one.do(lease.release)
        other.do(beside.release)

    @pytest.mark.of_core
    def test_keys_of_different_kinds(self, locks, api, one, other) -> None:
        """A flow may read one key and write another, in two calls."""

        def section(_lease: Any) -> None:
            pass

        catalogue = one.do(locks.acquire, "catalogue", shared=True, ttl=LONG)
        item = one.do(locks.acquire, "item", ttl=LONG)
        other.do(api.section, locks, "catalogue", body=section, shared=True)
        assert other.do(locks.try_acquire, "item", shared=True) is None
        one.do(item.release)
        one.do(catalogue.release)


class TestAround:
    def test_all_holders_are_shown_and_lose_by_force(self, locks, one, other, probe) -> None:
        """``inspect`` shows each with its limit, and ``force_release`` takes the key from all."""
        first = one.do(locks.acquire, "key", limit=3, ttl=LONG, label="one")
        second = other.do(locks.acquire, "key", shared=True, ttl=LONG, label="other")
        info = probe.inspect("key")
        assert (info.holder, info.fence) == ("one", first.fence)
        assert [(each.label, each.fence, each.limit) for each in info.holders] == [
            ("one", first.fence, 3),
            ("other", second.fence, None),
        ]
        assert [each.key for each in probe.list()] == ["key"]
        assert probe.force_release("key")
        for actor, lease in ((one, first), (other, second)):
            with pytest.raises(LeaseLost):
                actor.do(lease.extend, 1)
        assert probe.inspect("key") is None

    def test_a_lease_moves_on_with_its_limit(self, locks, api, one, *, other) -> None:
        """A reader's lease is a reader's in the hands of its taker, too."""
        lease = one.do(locks.acquire, "key", shared=True, ttl=LONG)
        beside = api.actor()
        second = beside.do(locks.acquire, "key", shared=True, ttl=LONG)
        taken = other.do(locks.take_over, one.do(lease.hand_over), ttl=LONG)
        assert (taken.fence, taken.shared) == (lease.fence, True)
        third = one.do(locks.acquire, "key", shared=True, ttl=LONG)
        renewed(locks, taken)
        for actor, each in ((other, taken), (beside, second), (one, third)):
            actor.do(each.release)
        one.do(one.do(locks.acquire, "key", wait=0).release)

    @pytest.mark.of_core
    def test_a_decorator_and_a_run(self, locks, api, one, other) -> None:
        """``serialized`` and ``run`` take the limit as ``hold`` does."""
        beside = other.do(locks.acquire, "key", shared=True, ttl=LONG)
        work = locks.serialized("key", shared=True, wait=0)(api.work(lambda: 7))
        assert one.do(work) == 7
        assert one.do(locks.run, "key", api.work(lambda: 7), shared=True, wait=0) == 7
        other.do(beside.release)

    @pytest.mark.of_core
    def test_what_is_for_one_is_for_one(self, locks, one) -> None:
        """A step that runs once, and a leader, are alone: a limit is refused."""
        with pytest.raises(ConfigurationError, match="leave it out"):
            one.do(locks.once, "key", lambda: None, shared=True)


@pytest.mark.promise("processes")
@pytest.mark.costly
class TestProcesses:
    def test_a_holder_that_dies_makes_room(self, promises, locks, one, puppet, probe) -> None:
        """Each process that is killed costs its own lease only."""
        first, second = puppet(), puppet()
        ttl = LONG if promises.death_noticed_at_once else 1
        first.do("acquire", "key", limit=2, ttl=ttl)
        kept = second.do("acquire", "key", limit=2, ttl=LONG)["fence"]
        waits = one.begin(locks.acquire, "key", limit=2, ttl=LONG, wait=LONG)
        # Where a machine kept the first from renewing its lease, the waiter has got its place already.
        eventually(lambda: waiters(probe, "key") == 1 or waits.done())
        first.kill()
        lease = waits.result(PATIENCE)
        assert holders(probe, "key") == [kept, lease.fence]
        one.do(lease.release)
