"""When a request holds its lock: until its work is committed, and whoever leaves meanwhile."""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.contrib.losing import lose
from tests.support.waiting import PATIENCE, eventually
from weblock import Locks

from .driver import Driver
from .promises import (
    COMMIT,
    ERROR,
    FAILED_COMMIT,
    LEAVES_QUEUE,
    LOST,
    RUNS_TO_ITS_END,
    SLOW_CLIENT,
    STREAM,
    THREADS,
    shows,
)

Serve = Callable[..., Driver]
KEY = "item:7"


def is_held(probe: Locks, key: str = KEY) -> bool:
    """Whether anybody holds the key."""
    found = probe.inspect(key)
    return found is not None and found.holder is not None


@shows(COMMIT)
@pytest.mark.parametrize("url", ["memory", "file", "redis"], indirect=True)
def test_the_work_is_committed_inside_the_lock(serve: Serve, probe: Locks) -> None:
    """The key is held when the work is committed, and free when the response is sent."""
    held: list[bool] = []

    def look(*_: object) -> None:
        held.append(is_held(probe))

    server = serve(handle=look, commit=look)
    assert server.send("/items/7").response.status == 200
    assert held == [True, True]
    assert not is_held(probe)


@shows(COMMIT)
def test_requests_never_overlap_before_they_have_committed(serve: Serve) -> None:
    """Of six requests at once, each begins when the one before it has committed."""
    events: list[str] = []

    def handle(*_: object) -> None:
        events.append("begin")

    server = serve(handle=handle, commit=lambda: events.append("commit"))
    calls = [server.send("/items/7") for _ in range(6)]
    assert [call.response.status for call in calls] == [200] * 6
    assert events == ["begin", "commit"] * 6


@shows(COMMIT)
def test_requests_for_other_keys_run_beside_one_another(serve: Serve) -> None:
    """Three handlers meet, each inside the lock of its own key."""
    meeting = threading.Barrier(3, timeout=PATIENCE)
    server = serve(handle=lambda *_: meeting.wait())
    calls = [server.send(f"/items/{number}") for number in range(3)]
    assert [call.response.status for call in calls] == [200] * 3


@shows(FAILED_COMMIT)
def test_a_commit_that_fails_is_not_reported_as_done(serve: Serve, probe: Locks) -> None:
    """The client gets an error, although the response was made; and the key is free."""

    def fail() -> None:
        raise RuntimeError("the disk is full")

    assert serve(commit=fail).send("/items/7").response.status == 500
    assert not is_held(probe)


@shows(SLOW_CLIENT)
def test_a_slow_client_does_not_keep_the_lock(serve: Serve, probe: Locks) -> None:
    """Another request is served before the client has read anything, which then gets everything."""
    committed: list[bool] = []
    server = serve(commit=lambda: committed.append(True))
    slow = server.send("/items/7", reading=False)
    eventually(lambda: committed and not is_held(probe))
    assert server.send("/items/7").response.status == 200
    assert not slow.body
    slow.read()
    assert (slow.response.status, slow.response.whole) == (200, True)


@shows(STREAM)
def test_a_stream_is_made_inside_the_lock(serve: Serve, probe: Locks) -> None:
    """It is sent as it is made, and the key is free when its last part was made."""
    go_on = threading.Event()

    def parts() -> Iterator[bytes]:
        yield from (b"x" * 600_000, b"x" * 600_000, b"x")  # More than is held back.
        assert go_on.wait(PATIENCE)
        yield b"y"

    call = serve(parts=parts).send("/items/7")
    eventually(lambda: call.body)
    assert is_held(probe)
    go_on.set()
    assert call.response.body.endswith(b"xy")
    assert not is_held(probe)


@shows(ERROR)
def test_a_handler_that_fails_releases_the_lock(serve: Serve, probe: Locks) -> None:
    """The client gets an error, nothing is committed, and the key is free."""
    committed: list[bool] = []

    def fail(*_: object) -> None:
        assert is_held(probe)
        raise RuntimeError("it does not work")

    server = serve(handle=fail, commit=lambda: committed.append(True))
    assert server.send("/items/7").response.status == 500
    assert not committed
    assert not is_held(probe)


@shows(THREADS)
def test_waiting_requests_leave_the_holder_its_threads(serve: Serve) -> None:
    """More requests than a pool has threads wait for one key, and each of them is served."""
    server = serve()
    calls = [server.send("/threads/7") for _ in range(50)]
    assert [call.response.status for call in calls] == [200] * 50


@shows(LEAVES_QUEUE)
def test_a_client_that_leaves_stops_waiting(
    serve: Serve, probe: Locks, waiting: Callable[[int], None], caplog: pytest.LogCaptureFixture
) -> None:
    """Its place in the queue is free while the key is held, its handler never runs, and it is no error."""
    ran: list[object] = []
    server = serve(handle=ran.append)
    with probe.hold(KEY):
        call = server.send("/items/7")
        waiting(1)
        call.leave()
        waiting(0)
    assert call.response.status != 200
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert server.send("/items/7").response.status == 200
    assert len(ran) == 1


@shows(RUNS_TO_ITS_END)
@pytest.mark.parametrize("who", ["client", "server"])
def test_a_handler_runs_to_its_end_inside_the_lock(
    serve: Serve, who: str, waiting: Callable[[int], None]
) -> None:
    """Neither a client that leaves nor a server that cancels lets another in before the commit."""
    begun, go_on = threading.Event(), threading.Event()
    events: list[str] = []

    def handle(*_: object) -> None:
        events.append("begin")
        begun.set()
        assert go_on.wait(PATIENCE)

    server = serve(handle=handle, commit=lambda: events.append("commit"))
    call = server.send("/items/7")
    assert begun.wait(PATIENCE)
    call.leave() if who == "client" else call.cancel()
    following = server.send("/items/7")
    waiting(1)
    assert events == ["begin"]
    go_on.set()
    assert following.response.status == 200
    assert events == ["begin", "commit"] * 2


@shows(LOST)
def test_a_request_whose_lease_was_lost_is_not_reported_as_done(serve: Serve, probe: Locks) -> None:
    """The client gets 503 instead of the response, and the next request is served."""
    first = itertools.count()

    def handle(lease: Any) -> None:
        if next(first) == 0:
            probe.force_release(KEY)
            lose(lease)

    server = serve(handle=handle)
    response = server.send("/items/7").response
    assert (response.status, response.code) == (503, "lease_lost")
    assert server.send("/items/7").response.status == 200
