"""Waiting for sockets by ``select``, where there is no ``poll``."""

from __future__ import annotations

import fcntl
import os
import select
import socket
import sys
from collections.abc import Iterator

import pytest

from weblock.stores.redis.blocking import time_out_in_kernel
from weblock.stores.transport.sending import READABLE, SelectPoll


@pytest.fixture(params=[select.poll, SelectPoll])
def poll(request: pytest.FixtureRequest):
    """One of both, which have to answer alike."""
    return request.param()


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


def test_only_what_can_be_read_is_returned(poll, pair) -> None:
    """A descriptor is returned when something has come for it, until it is unregistered."""
    ours, theirs = pair
    poll.register(ours, READABLE)
    poll.register(theirs, READABLE)
    assert poll.poll(0) == []
    theirs.send(b"something")
    assert poll.poll(None) == [(ours.fileno(), READABLE)]
    poll.unregister(ours)
    assert poll.poll(0) == []


def test_the_end_of_a_connection_can_be_read(poll, pair) -> None:
    """A connection that the other side has closed is returned."""
    ours, theirs = pair
    poll.register(ours.fileno(), READABLE)
    theirs.close()
    assert [fd for fd, _events in poll.poll(None)] == [ours.fileno()]


def test_a_closed_descriptor_is_returned(poll, pair) -> None:
    """A descriptor that was closed does not look as if nothing had come: reading it fails."""
    ours, _theirs = pair
    # A number that no other thread of this process is given meanwhile: it would be the lowest.
    fd = fcntl.fcntl(ours, fcntl.F_DUPFD_CLOEXEC, 900)
    poll.register(fd, READABLE)
    os.close(fd)
    assert [each for each, _events in poll.poll(0)] == [fd]


@pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="the kernel has it in another form"
)
def test_the_kernel_times_out_instead_of_python(pair) -> None:
    """A read of a silent socket fails after its timeout, and Python polls it no more."""
    ours, _ = pair
    ours.settimeout(0.01)
    time_out_in_kernel(ours)
    assert ours.gettimeout() is None
    with pytest.raises(BlockingIOError):
        ours.recv(1)


def test_a_socket_without_a_timeout_stays_as_it_is(pair) -> None:
    """One that waits without end, or not at all, goes on doing so."""
    ours, theirs = pair
    for timeout, sock in ((None, ours), (0.0, theirs)):
        sock.settimeout(timeout)
        time_out_in_kernel(sock)
        assert sock.gettimeout() == timeout


def test_a_socket_of_another_kind_keeps_pythons_timeout(pair) -> None:
    """TLS and greenlets read sockets in their own way, which knows no timeout of the kernel."""

    class OfAnotherKind(socket.socket):
        pass

    ours, _ = pair
    with OfAnotherKind(fileno=ours.detach()) as sock:
        sock.settimeout(5)
        time_out_in_kernel(sock)
        assert sock.gettimeout() == 5
