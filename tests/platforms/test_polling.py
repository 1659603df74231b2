"""Waiting for sockets by ``select``, where there is no ``poll``."""

from __future__ import annotations

import select
import socket
from collections.abc import Iterator

import pytest

from weblock._platform.polling import READABLE, SelectPoll


@pytest.fixture(params=[select.poll, SelectPoll])
def poll(request: pytest.FixtureRequest):
    """One of both, which have to answer alike."""
    return request.param()


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Two ends of a connection."""
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
    fd = ours.fileno()
    poll.register(fd, READABLE)
    ours.close()
    assert [each for each, _events in poll.poll(0)] == [fd]
