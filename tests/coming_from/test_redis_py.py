"""redis-py's lock with a guess for its timeout: what fails, and what does not."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
import redis

from tests.servers import fresh_url
from tests.support.renewals import renewed
from tests.support.waiting import eventually
from weblock import Locks


@pytest.fixture
def page(shown):
    return shown("redis-py and django-redis")


class Section:
    """Work that takes longer than was guessed, and counts how many are at it."""

    def __init__(self, lasts: Callable[[], object]) -> None:
        self._lasts = lasts
        self.inside = self.most = 0
        self._guard = threading.Lock()

    def work(self) -> None:
        with self._guard:
            self.inside += 1
            self.most = max(self.most, self.inside)
        self._lasts()
        with self._guard:
            self.inside -= 1


def two(call: Callable[[], object]) -> None:
    threads = [threading.Thread(target=call) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


class Impatient(redis.Redis):
    """A client whose locks last less long, so that nobody has to wait for five seconds."""

    def lock(self, name: str, timeout: float | None = None, **options: object) -> object:
        return super().lock(f"coming-from:{name}", timeout=0.2, **options)


def test_a_guessed_timeout_lets_two_in(page, client) -> None:
    """Work that takes longer than the lock's timeout overlaps with that of the next holder."""
    section = Section(lambda: eventually(lambda: section.most == 2))
    with Impatient(connection_pool=client.connection_pool) as impatient:
        two(lambda: page.create_item(impatient, section.work))
    assert section.most == 2


def test_a_lease_lasts_as_long_as_the_work(page) -> None:
    """A lease is renewed again and again while the work goes on, and one at a time is at work."""
    with Locks.from_url(fresh_url(), ttl=60, wait=60) as locks:
        section = Section(lambda: [renewed(locks) for _ in range(3)])
        two(lambda: page.create_item_alone(locks, section.work))
    assert section.most == 1
