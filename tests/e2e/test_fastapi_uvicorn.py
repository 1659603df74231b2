"""FastAPI on a real uvicorn in a process of its own, with real engines and real clients."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import socket
import sqlite3
import tempfile
from collections import Counter
from contextlib import closing
from pathlib import Path

import httpx
import pytest

from tests.support.waiting import PATIENCE, eventually

from .sites import FASTAPI_KINDS, Server, read_all

BOUND = 3
REQUESTS = 12
LARGE = 5 * 1024 * 1024


SERVED = FASTAPI_KINDS


def items(server: Server) -> int:
    """How many items there are."""
    with closing(sqlite3.connect(server.folder / "items.sqlite3", timeout=30)) as database:
        (count,) = database.execute("SELECT count(*) FROM item").fetchone()
        return count


def start_anew(server: Server) -> None:
    """Forgets all items."""
    with closing(sqlite3.connect(server.folder / "items.sqlite3", timeout=30)) as database:
        database.execute("DELETE FROM item")
        database.commit()


def calls_for_health(server: Server) -> int:
    """The calls that the event loop makes while it answers a request that locks nothing."""
    answer = server.answer("/health")
    assert b" 200 OK" in answer
    return int(answer.partition(b"x-calls: ")[2].split()[0])


def post(server: Server, path: str) -> httpx.Response:
    """The response to a request."""
    return httpx.post(server.url + path, timeout=PATIENCE)


async def statuses(url: str, count: int) -> Counter[int]:
    """How often each status came, of concurrent requests."""
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(timeout=PATIENCE, limits=limits) as client:
        answers = await asyncio.gather(*(client.post(url) for _ in range(count)))
    return Counter(answer.status_code for answer in answers)


@pytest.mark.parametrize("way", ["lock-first", "session-first", "early-session", "commit-inside"])
def test_the_bound_is_kept_in_a_real_database(server, way):
    """Concurrent requests make just as many rows of a SQLite file as there is room for."""
    for _ in range(2):
        start_anew(server)
        told = asyncio.run(statuses(f"{server.url}/ours/{way}", REQUESTS))
        assert told == {201: BOUND, 422: REQUESTS - BOUND}
        assert items(server) == BOUND


@pytest.mark.parametrize("way", ["session-first", "early-lock"])
def test_a_naive_lock_breaks_the_bound_in_a_real_database(server, way):
    """The same requests make more with a dependency that releases by itself, before the commit."""
    made = [0]
    while max(made) <= BOUND and len(made) < 20:
        start_anew(server)
        told = asyncio.run(statuses(f"{server.url}/naive/{way}", REQUESTS))
        made.append(told[201])
        eventually(lambda: items(server) == made[-1])  # It has answered before it commits.
    assert max(made) > BOUND


def test_500_wait_and_the_others_are_served_as_ever(server, name):
    """Each has a place in the engine, and costs its process no thread and no connection.

    A health check takes no more steps than while one waits: at its best, for the steps of a heartbeat
    that falls into it are counted with its own.
    """
    holder = server.probe.acquire(name)
    with contextlib.ExitStack() as stack:
        crowd = [stack.enter_context(server.raw(f"/quick/{name}"))]
        eventually(lambda: server.waiting_for(name) == 1)
        with_one = min(calls_for_health(server) for _ in range(20))
        files, threads = server.resources()
        crowd += [stack.enter_context(server.raw(f"/quick/{name}")) for _ in range(499)]
        eventually(lambda: server.waiting_for(name) == 500, within=PATIENCE)
        eventually(lambda: calls_for_health(server) <= with_one, within=PATIENCE)
        more_files, more_threads = server.resources()
        assert more_files - files - 499 < 5  # A connection of the keeper's may have come.
        assert more_threads - threads < 3
        assert server.waiting_for(name) == 500
        holder.release()
        answers = [read_all(client) for client in crowd]
    assert all(b" 200 OK" in answer for answer in answers)


@pytest.mark.parametrize(("kind", "size"), [("large", 1024 * 1024), ("file", 1000 * 1000)])
def test_a_slow_reader_does_not_keep_the_lock(server, name, kind, size):
    """The lock is free while the client has read nothing of what was made in one piece, or held."""
    with server.raw(f"/{kind}/{name}?size={size}") as slow:
        eventually(lambda: slow.recv(1, socket.MSG_PEEK))
        server.probe.acquire(name).release()
        assert read_all(slow).endswith(b"x" * size)


def test_more_than_is_held_back_is_sent_inside_the_lock(server, name):
    """Of a file, 1 MiB is held back: a slow reader of a larger one keeps the lock, until it goes."""
    with server.raw(f"/file/{name}?size={LARGE}") as slow:
        eventually(lambda: slow.recv(1, socket.MSG_PEEK))
        with server.raw(f"/quick/{name}") as next_one:
            eventually(lambda: server.waiting_for(name) == 1)
            slow.close()
            assert b" 200 OK" in read_all(next_one)


@pytest.mark.parametrize("value", ["a%0Ab", "%00", "%F0%9F%94%92", "..%2F..", "a%2Fb?c#d"])
def test_hostile_values_over_http(server, value):
    """Whatever a URL carries is a key of its own, or a problem of the client: never a 500."""
    assert post(server, f"/quick/{value}").status_code in (200, 404)
    assert post(server, f"/quick/{'x' * 600}").status_code == 400


def test_shutting_down_waits_for_the_handler_and_leaves_nothing():
    """SIGTERM lets the handler end inside the lock; then no thread, file or socket is left."""
    with tempfile.TemporaryDirectory(prefix="wl-") as folder:
        server = Server("fastapi-file", Path(folder))
        with server.raw("/steered/key/handler") as client:
            eventually(lambda: server.noted("handler-began"))
            server.process.send_signal(signal.SIGTERM)
            assert server.probe.try_acquire("key") is None
            server.goes_on("handler")
            server.probe.acquire("key").release()
            assert server.noted("handler-ended")
            assert b'"handler"' in read_all(client)
        server.end()
        # In a container, file:// says once that it may be alone there.
        said = [line for line in server.log().splitlines() if "allow_container" not in line]
        assert said == []
        left = json.loads((server.folder / "left.json").read_text())
    assert left == {"threads": [], "files": []}
