"""What the database has to do with the lock: it is SQLite, and commits where the framework commits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.contrib.losing import lose
from weblock import Locks

from .driver import Driver
from .promises import FRESH, ROLLED_BACK, STALE, shows

Serve = Callable[..., Driver]


@shows(ROLLED_BACK)
def test_the_work_of_a_lost_lease_is_rolled_back(serve: Serve) -> None:
    """What was written under the lease is not committed."""
    server = serve(handle=lose)
    assert server.send("/orders/7").response.status == 503
    assert server.site.sql("SELECT count(*) FROM orders") == 0


@shows(STALE)
def test_the_commit_of_a_stale_holder_fails(serve: Serve, probe: Locks) -> None:
    """A holder that slept while another came and committed does not know it, and commits nothing."""
    slept: list[bool] = []

    def handle(_lease: Any) -> None:
        if not slept:
            slept.append(True)
            assert probe.force_release("item:7")
            assert server.send("/orders/7").response.status == 200

    server = serve(handle=handle)
    response = server.send("/orders/7").response
    assert (response.status, response.code) == (503, "lease_lost")
    assert server.site.sql("SELECT count(*) FROM orders") == 1


@shows(FRESH)
def test_rows_that_were_read_before_the_lock_are_read_again(
    serve: Serve, probe: Locks, waiting: Callable[[int], None]
) -> None:
    """A request sees what the holder, for whom it has waited, has committed."""
    server = serve()
    with probe.hold("item:7"):
        call = server.send("/rows/7")
        waiting(1)
        server.site.sql("UPDATE row SET number = 2")
    assert call.response.body == b"2"
