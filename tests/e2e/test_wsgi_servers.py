"""Flask and ``LockMiddleware`` on every kind of WSGI server: commits, slow readers, clients that leave, ends."""

import os
import signal
import socket
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support.waiting import eventually

from .sites import WSGI_KINDS, Server, read_all

MIB = 1024 * 1024

SERVED = WSGI_KINDS


def test_the_lock_outlives_the_commit(server, name):
    """Of two that would each make the only item, the second sees the first's, which a teardown commits."""
    with server.raw(f"/locked/{name}/{name}") as first:
        eventually(lambda: server.noted(f"{name}-commits"))
        with server.raw(f"/locked/{name}") as second:
            eventually(lambda: server.waiting_for(name) == 1)
            server.goes_on(name)
            assert b" 422 " in read_all(second)
        assert b" 201 " in read_all(first)


def test_many_at_once_by_a_rule_and_by_a_decorator(server, name):
    """All are served, one after the other, and one of them makes the item."""
    paths = [f"/locked/{name}", f"/ruled/{name}"] * 6
    with ThreadPoolExecutor(len(paths)) as clients:
        answers = [answer.split(b"\r\n")[0] for answer in clients.map(server.answer, paths)]
    assert sum(b" 201 " in answer for answer in answers) == 1
    assert sum(b" 422 " in answer for answer in answers) == 5
    assert sum(b" 200 " in answer for answer in answers) == 6


def test_a_slow_reader_does_not_keep_the_lock(server, name):
    """The lock is free while the client has read nothing of a response that was made in one piece."""
    with server.raw(f"/large/{name}?size={16 * MIB}") as slow:
        eventually(lambda: slow.recv(1, socket.MSG_PEEK))
        server.probe.acquire(name).release()
        _, _, body = read_all(slow).partition(b"\r\n\r\n")
    assert body.count(b"x") == 16 * MIB


def test_a_client_that_goes_leaves_the_queue(server, name):
    """A waiting client that goes gives up its place; its view never runs."""
    with server.probe.hold(name):
        leaving = server.raw(f"/steered/{name}/{name}")
        eventually(lambda: server.waiting_for(name) == 1)
        leaving.close()
        eventually(lambda: server.waiting_for(name) == 0)
    assert not server.noted(f"{name}-began")


@pytest.mark.parametrize("path", ["/upload/{}", "/ruled/{}"])
@pytest.mark.parametrize("begin", [1, 70_000], ids=["before the lock", "inside it"])
def test_a_client_that_stops_in_its_body(server, name, path, begin):
    """It holds no key for longer than the limit, and gets 408 where the server shows its connection."""
    with server.raw(path.format(name), length=100_000) as slow:
        slow.sendall(bytes(begin))
        server.probe.acquire(name).release()
        if not server.buffers and (begin == 1 or "upload" in path):
            assert b" 408 " in read_all(slow)
    server.probe.acquire(name).release()


@pytest.fixture
def ending():
    with tempfile.TemporaryDirectory(prefix="wl-") as folder:
        server = Server("sync", Path(folder))
        try:
            yield server
        finally:
            server.end()


def test_a_worker_that_is_killed_while_it_holds(ending, name):
    """The one that waits behind it is served at once, by another worker."""
    with ending.raw(f"/steered/{name}/{name}"):
        eventually(lambda: ending.noted(f"{name}-began"))
        with ending.raw(f"/ruled/{name}") as next_one:
            eventually(lambda: ending.waiting_for(name) == 1)
            os.kill(int((ending.folder / f"{name}-began").read_text()), signal.SIGKILL)
            assert b" 200 " in read_all(next_one)


def test_a_server_that_is_told_to_end(ending, name):
    """What holds and what waits is served to its end, as gunicorn's graceful timeout has it."""
    with ending.raw(f"/steered/{name}/{name}") as first, ThreadPoolExecutor(1) as client:
        eventually(lambda: ending.noted(f"{name}-began"))
        second = client.submit(ending.answer, f"/ruled/{name}")
        eventually(lambda: ending.waiting_for(name) == 1)
        ending.process.terminate()
        eventually(lambda: "Handling signal: term" in ending.log())
        ending.goes_on(name)
        assert b" 200 " in read_all(first)
        assert b" 200 " in second.result()
    assert ending.probe.list() == []
