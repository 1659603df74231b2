"""FastAPI on a real uvicorn in a process of its own, with real engines and real clients."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import itertools
import json
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import httpx
import pytest

from tests.contract.conditions import eventually, queue_of
from tests.servers import fresh_url
from weblock import Locks

TOP = Path(__file__).parents[2]
PATIENCE = 60.0
BOUND = 3
REQUESTS = 12
UPLOAD = 8 * 1024 * 1024
LARGE = 5 * 1024 * 1024

numbers = itertools.count()


class Server:
    """The application, its folder, and what its engine knows of its keys."""

    def __init__(self, folder: Path, engine: str) -> None:
        self.folder = folder
        self.engine = engine
        command = [sys.executable, "-W", "error", "-m", "tests.e2e.uvicorn_app", folder, engine]
        self.process = subprocess.Popen(command, cwd=TOP, stderr=subprocess.PIPE, text=True)
        eventually(lambda: self.noted("address") or self.process.poll() is not None)
        assert self.process.poll() is None, self.process.communicate()[1]
        self.address = ("127.0.0.1", int((folder / "address").read_text()))
        self.url = "http://{}:{}".format(*self.address)
        self.probe = Locks.from_url(engine, wait=PATIENCE)

    def noted(self, name: str) -> bool:
        return (self.folder / name).exists()

    def goes_on(self, name: str) -> None:
        (self.folder / f"{name}-goes-on").touch()

    def waiting_for(self, key: str) -> int | None:
        """How many wait for a key; ``None`` if nobody holds it."""
        with ThreadPoolExecutor(1) as stranger:  # The test's own thread may hold the key.
            return stranger.submit(queue_of, self.probe, key).result()

    def post(self, path: str) -> httpx.Response:
        return httpx.post(self.url + path, timeout=PATIENCE)

    def raw(self, path: str, *, length: int = 0) -> socket.socket:
        """A connection that has sent the head of a request, and reads nothing by itself."""
        client = socket.socket()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16 * 1024)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 16 * 1024)
        client.settimeout(PATIENCE)
        client.connect(self.address)
        head = f"POST {path} HTTP/1.1\r\nHost: shop\r\nContent-Length: {length}\r\n"
        client.sendall(f"{head}Connection: close\r\n\r\n".encode())
        return client

    def health(self) -> float:
        """Seconds that a request takes that locks nothing."""
        began = time.perf_counter()
        with self.raw("/health") as client:
            assert b" 200 OK" in read_all(client)
        return time.perf_counter() - began

    def resources(self) -> tuple[int, int]:
        """How many files and threads its process has."""
        process = Path(f"/proc/{self.process.pid}")
        return len(list(process.glob("fd/*"))), len(list(process.glob("task/*")))

    def items(self) -> int:
        """How many items there are."""
        with closing(sqlite3.connect(self.folder / "items.sqlite3", timeout=30)) as database:
            (count,) = database.execute("SELECT count(*) FROM item").fetchone()
            return count

    def start_anew(self) -> None:
        """Forgets all items."""
        with closing(sqlite3.connect(self.folder / "items.sqlite3", timeout=30)) as database:
            database.execute("DELETE FROM item")
            database.commit()

    def end(self) -> str:
        """Has it shut down. What it complained of."""
        self.probe.close()
        self.process.send_signal(signal.SIGTERM)
        return self.process.communicate(timeout=PATIENCE)[1]


ENGINES = {"file": lambda folder: f"file://{folder}/locks", "redis": lambda folder: fresh_url()}


@pytest.fixture(scope="module", params=ENGINES)
def server(request):
    """The application, for all tests that do not end it, on each engine of several processes."""
    with tempfile.TemporaryDirectory(prefix="wl-") as folder:
        server = Server(Path(folder), ENGINES[request.param](folder))
        with server.process:
            try:
                yield server
                assert server.end() == ""
            finally:
                server.process.kill()


@pytest.fixture
def name():
    """A name that no other test uses."""
    return f"n{next(numbers)}"


def read_all(client: socket.socket) -> bytes:
    """What it is sent until the server closes."""
    parts = []
    while part := client.recv(65536):
        parts.append(part)
    return b"".join(parts)


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
        server.start_anew()
        told = asyncio.run(statuses(f"{server.url}/ours/{way}", REQUESTS))
        assert told == {201: BOUND, 422: REQUESTS - BOUND}
        assert server.items() == BOUND


@pytest.mark.parametrize("way", ["session-first", "early-lock"])
def test_a_naive_lock_breaks_the_bound_in_a_real_database(server, way):
    """The same requests make more with a dependency that releases by itself, before the commit."""
    made = [0]
    while max(made) <= BOUND and len(made) < 20:
        server.start_anew()
        told = asyncio.run(statuses(f"{server.url}/naive/{way}", REQUESTS))
        made.append(told[201])
        eventually(lambda: server.items() == made[-1])  # It has answered before it commits.
    assert max(made) > BOUND


def test_500_wait_and_the_others_are_served_as_ever(server, name):
    """Each has a place in the engine, and costs its process no thread and no connection.

    A health check is answered as fast as while one waits: at its best, of some tries.
    """
    holder = server.probe.acquire(name)
    with contextlib.ExitStack() as stack:
        crowd = [stack.enter_context(server.raw(f"/quick/{name}"))]
        eventually(lambda: server.waiting_for(name) == 1)
        with_one = min(server.health() for _ in range(20))
        files, threads = server.resources()
        crowd += [stack.enter_context(server.raw(f"/quick/{name}")) for _ in range(499)]
        eventually(lambda: server.waiting_for(name) == 500, within=PATIENCE)
        with_all = min(server.health() for _ in range(20))
        assert with_all < 3 * with_one
        more_files, more_threads = server.resources()
        assert more_files - files - 499 < 5  # A connection of the keeper's may have come.
        assert more_threads - threads < 3
        assert server.waiting_for(name) == 500
        holder.release()
        answers = [read_all(client) for client in crowd]
    assert all(b" 200 OK" in answer for answer in answers)


def test_a_client_that_closes_leaves_the_queue(server, name):
    """A waiting client whose connection is closed gives up its place; its handler never runs."""
    with server.probe.hold(name):
        leaving = server.raw(f"/steered/{name}/{name}-left")
        staying = server.raw(f"/quick/{name}")
        eventually(lambda: server.waiting_for(name) == 2)
        leaving.close()
        eventually(lambda: server.waiting_for(name) == 1)
    with staying:
        assert b" 200 OK" in read_all(staying)
    assert not server.noted(f"{name}-left-began")


def test_a_handler_whose_client_closes_ends_inside_the_lock(server, name):
    """A connection that is closed while its handler runs does not let the next one in."""
    leaving = server.raw(f"/steered/{name}/{name}")
    eventually(lambda: server.noted(f"{name}-began"))
    leaving.close()
    with server.raw(f"/quick/{name}") as next_one:
        eventually(lambda: server.waiting_for(name) == 1)
        assert server.noted(f"{name}-ended") is False
        server.goes_on(name)
        assert b" 200 OK" in read_all(next_one)
    assert server.noted(f"{name}-ended")


def test_a_large_upload_waits_with_its_request(server, name):
    """Of 8 MB that are sent while the request waits little is read, and all arrives in the end."""
    body = bytes(range(256)) * (UPLOAD // 256)
    holder = server.probe.acquire(name)
    with server.raw(f"/upload/{name}", length=UPLOAD) as client:
        sent = send_what_is_taken(client, body)
        assert server.waiting_for(name) == 1
        assert sent < UPLOAD / 8
        holder.release()
        client.settimeout(PATIENCE)
        client.sendall(body[sent:])
        answer = read_all(client)
    assert hashlib.sha256(body).hexdigest().encode() in answer


def test_an_upload_that_breaks_off_frees_the_key(server, name):
    """A handler that reads a body inside the lock ends when its client closes in the middle."""
    with server.raw(f"/upload/{name}", length=UPLOAD) as leaving:
        leaving.sendall(b"x" * 1000)
        eventually(lambda: server.waiting_for(name) is not None)
    server.probe.acquire(name).release()


def send_what_is_taken(client: socket.socket, body: bytes) -> int:
    """Sends until nothing has been taken for a while. How much it was."""
    client.setblocking(False)
    sent = refused = 0
    while refused < 30 and sent < len(body):
        try:
            sent += client.send(body[sent : sent + 65536])
            refused = 0
        except BlockingIOError:
            refused += 1
            time.sleep(0.01)
    return sent


@pytest.mark.parametrize(
    ("kind", "size"), [("large", 1024 * 1024), ("large", LARGE), ("file", 1000 * 1000)]
)
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


def test_events_flow(server, name):
    """Events reach the client as they are made, and the lock is held until the last."""
    with httpx.stream("POST", f"{server.url}/events/{name}/{name}", timeout=PATIENCE) as stream:
        lines = stream.iter_lines()
        assert next(lines) == "data: first"
        assert server.probe.try_acquire(name) is None
        server.goes_on(name)
        assert "data: second" in list(lines)
    server.probe.acquire(name).release()


@pytest.mark.parametrize("value", ["a%0Ab", "%00", "%F0%9F%94%92", "..%2F..", "a%2Fb?c#d"])
def test_hostile_values_over_http(server, value):
    """Whatever a URL carries is a key of its own, or a problem of the client: never a 500."""
    assert server.post(f"/quick/{value}").status_code in (200, 404)
    assert server.post(f"/quick/{'x' * 600}").status_code == 400


def test_shutting_down_waits_for_the_handler_and_leaves_nothing():
    """SIGTERM lets the handler end inside the lock; then no thread, file or socket is left."""
    with tempfile.TemporaryDirectory(prefix="wl-") as folder:
        server = Server(Path(folder), ENGINES["file"](folder))
        with server.raw("/steered/key/handler") as client:
            eventually(lambda: server.noted("handler-began"))
            server.process.send_signal(signal.SIGTERM)
            assert server.probe.try_acquire("key") is None
            server.goes_on("handler")
            server.probe.acquire("key").release()
            assert server.noted("handler-ended")
            assert b'"handler"' in read_all(client)
        with server.process:
            assert server.end() == ""
        left = json.loads((server.folder / "left.json").read_text())
    assert left == {"threads": [], "files": []}
