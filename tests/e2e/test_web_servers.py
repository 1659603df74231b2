"""Clients that read slowly or go at once: ``LockMiddleware`` and FastAPI, on every kind of server."""

from __future__ import annotations

import hashlib
import os
import socket
import struct
import time

import pytest

from tests.support.waiting import PATIENCE, eventually

from .sites import KINDS, read_all

MIB = 1024 * 1024
UPLOAD = (1024 if "WEBLOCK_LONG" in os.environ else 48) * MIB
"""Bytes that a client sends; what a server may need of memory meanwhile is the same for all."""


SERVED = KINDS


def reset(client: socket.socket) -> None:
    """Closes a connection without a word of farewell."""
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()


@pytest.fixture
def leave(request):
    """How a client goes: with a farewell, or without one where the test does not say."""
    return getattr(request, "param", reset)


@pytest.mark.parametrize("path", ["/fixed", "/fixed%0A", "/fixed?x=1", "/%66ixed%0a?%0A"])
def test_no_url_passes_by_the_lock(server, path):
    """However a URL is written that reaches the handler: it waits while the key is held.

    Rules refuse a path that routers read in different ways, such as one that ends with a newline.
    """
    answer = server.answer(path)
    if "%0" in path.lower() and (b"strange_path" in answer or b"invalid_key" in answer):
        assert b" 400 " in answer
        return
    assert b" 200 " in answer
    with server.probe.hold("fixed"):
        client = server.raw(path)
        eventually(lambda: server.waiting_for("fixed") == 1)
    with client:
        assert b" 200 " in read_all(client)


@pytest.mark.parametrize("leave", [socket.socket.close, reset], indirect=True)
def test_a_client_that_goes_leaves_the_queue(server, name, leave):
    """A waiting client that goes gives up its place; its handler never runs."""
    with server.probe.hold(name):
        leaving = server.raw(f"/steered/{name}/{name}-left")
        staying = server.raw(f"/quick/{name}")
        eventually(lambda: server.waiting_for(name) == 2)
        leave(leaving)
        eventually(lambda: server.waiting_for(name) == 1)
    with staying:
        assert b" 200 " in read_all(staying)
    assert not server.noted(f"{name}-left-began")


@pytest.mark.parametrize("leave", [socket.socket.close], indirect=True)
def test_a_client_that_goes_with_half_its_body_is_never_served(server, name, leave):
    """One that has sent a part of what it announced does not join the queue, and others do."""
    leaving = server.raw(f"/upload/{name}", length=1000)
    leaving.sendall(b"x" * 500)
    with server.probe.hold(name):
        staying = server.raw(f"/quick/{name}")
        eventually(lambda: server.waiting_for(name) == 1)
        leave(leaving)
    with staying:
        assert b" 200 " in read_all(staying)
    assert not server.noted(f"{name}-broke-off")


def test_a_handler_whose_client_goes_ends_inside_the_lock(server, name, leave):
    """A connection that ends while its handler runs does not let the next one in."""
    leaving = server.raw(f"/steered/{name}/{name}")
    eventually(lambda: server.noted(f"{name}-began"))
    leave(leaving)
    with server.raw(f"/quick/{name}") as next_one:
        eventually(lambda: server.waiting_for(name) == 1)
        assert server.noted(f"{name}-ended") is False
        server.goes_on(name)
        assert b" 200 " in read_all(next_one)
    assert server.noted(f"{name}-ended")


def test_an_upload_that_breaks_off_frees_the_key(server, name, leave):
    """A handler that reads a body inside the lock ends when its client goes in the middle."""
    leaving = server.raw(f"/upload/{name}", length=200_000)
    leaving.sendall(b"x" * 100_000)  # More than is read before the lock.
    eventually(lambda: server.waiting_for(name) is not None)
    leave(leaving)
    server.probe.acquire(name).release()


def test_a_slow_reader_does_not_keep_the_lock(server, name):
    """The lock is free while the client has read nothing of a response that was made in one piece."""
    size = 16 * MIB
    with server.raw(f"/large/{name}?size={size}") as slow:
        eventually(lambda: slow.recv(1, socket.MSG_PEEK))
        server.probe.acquire(name).release()
        head, _, body = read_all(slow).partition(b"\r\n\r\n")
    assert len(body) == size, head


def test_a_large_upload_waits_with_its_request_in_bounded_memory(server, name):
    """Little is read of what a waiting request sends, all arrives, and memory does not grow with it."""
    part = bytes(range(256)) * 4096
    before = server.memory()
    holder = server.probe.acquire(name)
    with server.raw(f"/upload/{name}", length=UPLOAD) as client:
        digest = hashlib.sha256()
        sent = send_what_is_taken(client, part, UPLOAD)
        eventually(lambda: server.waiting_for(name) == 1)
        assert sent < UPLOAD / 4
        holder.release()
        client.settimeout(PATIENCE)
        position = sent
        while position < UPLOAD:
            start = position % len(part)
            client.sendall(part[start:])
            position += len(part) - start
        for _ in range(UPLOAD // len(part)):
            digest.update(part)
        assert digest.hexdigest().encode() in read_all(client)
    assert server.memory() - before < 32 * MIB


def send_what_is_taken(client: socket.socket, part: bytes, length: int) -> int:
    """Sends ``part`` again and again until nothing has been taken for a while. How much it was."""
    client.setblocking(False)
    sent = refused = 0
    while refused < 30 and sent < length:
        try:
            sent += client.send(part[sent % len(part) :])
            refused = 0
        except BlockingIOError:
            refused += 1
            time.sleep(0.01)
    return sent
