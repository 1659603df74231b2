"""A loop that retries: what fails, and what does not."""

from __future__ import annotations

import threading

import pytest

from tests.servers import fresh_url
from tests.support.waiting import eventually
from weblock import Locks

KEY = "coming-from:item"


@pytest.fixture
def page(shown):
    return shown("A loop that retries")


def test_the_copied_loop_starves(page, client) -> None:
    """Whoever sleeps misses each moment at which the key is free, and gives up in the end."""
    holder = [page.acquire_with_retries(client, KEY, ttl=60)]
    was_free: list[bool] = []

    def others_come(_seconds: float) -> None:
        """While the one in the loop sleeps, the key becomes free, and somebody comes."""
        page.release(client, KEY, holder.pop())
        was_free.append(client.get(KEY) is None)
        holder.append(page.acquire_with_retries(client, KEY, ttl=60, max_retries=1))

    waited_longest = page.acquire_with_retries(client, KEY, ttl=60, sleep=others_come)
    page.release(client, KEY, holder.pop())
    assert was_free == [True] * 5
    assert waited_longest is None


def test_the_queue_is_served_in_turn() -> None:
    """Whoever waits gets the key when it becomes free, and nobody who comes later before it."""
    with Locks.from_url(fresh_url()) as locks:
        lease = locks.acquire("item")
        served = threading.Event()

        def wait() -> None:
            with locks.hold("item", wait=60):
                served.set()

        waiter = threading.Thread(target=wait)
        waiter.start()
        eventually(lambda: locks.inspect("item").waiters)
        lease.release()
        with locks.hold("item", wait=60):
            assert served.is_set()
        waiter.join()


def test_calls_do_not_overlap(page) -> None:
    """The decorator serializes as the copied one does, and gives the key back after an error."""
    with Locks.from_url(fresh_url()) as locks:

        def fail() -> None:
            assert locks.inspect("create_item").holder
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            page.decorated(locks, fail)()
        assert locks.inspect("create_item") is None
