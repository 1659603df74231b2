"""A lock that its holder extends: what fails, and what does not."""

from __future__ import annotations

import time

import pytest

from tests.servers import fresh_url
from tests.support.waiting import eventually
from weblock import LeaseLost, Locks

KEY = "coming-from:import"


@pytest.fixture
def page(shown):
    return shown("A lock that its holder extends")


def test_the_copied_one_extends_the_lock_of_another(page, client) -> None:
    """Who has lost the lock prolongs that of the next holder, and is not told."""
    with page.with_dynamic_lock(client, KEY, ttl=0.1) as extend:
        while client.exists(KEY):
            time.sleep(0.01)
        with page.with_dynamic_lock(client, KEY, ttl=5):
            extend(60)
            assert client.pttl(KEY) > 10_000
    client.delete(KEY)


def test_a_lost_lease_is_not_extended(page) -> None:
    """It raises, and the lease of the next holder is as it was."""
    with Locks.from_url(fresh_url()) as locks:
        lost = locks.acquire("import", ttl=0.1, renew=False)
        eventually(lambda: not lost.held)
        lease = locks.acquire("import", ttl=60, renew=False)
        with pytest.raises(LeaseLost):
            lost.extend(600)
        assert locks.inspect("import").remaining <= 60
        assert lease.held
        lease.release()


def test_what_is_extended_lasts(page) -> None:
    """Parts that take longer than the ttl are done under the lock, since each extends it."""

    class Chunk:
        seconds = 60.0

        def load(self) -> None:
            with pytest.raises(AssertionError):
                assert locks.inspect("import").remaining < 60

    with Locks.from_url(fresh_url()) as locks:
        page.import_all(locks, [Chunk(), Chunk()])
        assert locks.inspect("import") is None
