"""The servers that other tests stand on, where those tests would not notice what is wrong with them."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Self

import pytest

from tests.servers import (
    PortTaken,
    Proxy,
    Server,
    a_redis,
    a_valkey,
    binaries,
    binary,
    single,
)
from tests.servers.frames import Frames, is_pubsub
from tests.servers.ports import free_port
from tests.support.waiting import PATIENCE, eventually

TOP = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """A server, for tests that leave it as it is."""
    with Server() as server:
        yield server


@pytest.fixture
def own() -> Iterator[Server]:
    """A server of the test's own."""
    with Server() as server:
        yield server


@pytest.fixture
def proxy(server: Server) -> Iterator[Proxy]:
    """A proxy in front of it, and nothing on the server."""
    server.command("FLUSHALL")
    with Proxy(server) as proxy:
        yield proxy


class Wire:
    """A connection whose bytes the test sees."""

    def __init__(self, port: int) -> None:
        self._sock = socket.create_connection(("127.0.0.1", port), PATIENCE)
        self._frames = Frames()
        self._heard: list[bytes] = []

    def say(self, *parts: str) -> None:
        """One request."""
        texts = [part.encode() for part in parts]
        bulks = [b"$%d\r\n%s\r\n" % (len(text), text) for text in texts]
        self._sock.sendall(b"*%d\r\n" % len(bulks) + b"".join(bulks))

    def hear(self, within: float = PATIENCE) -> bytes:
        """One reply, or nothing where the connection has ended."""
        self._sock.settimeout(within)
        while not self._heard:
            data = self._sock.recv(65536)
            if not data:
                return b""
            self._heard += self._frames.feed(data)
        return self._heard.pop(0)

    def ask(self, *parts: str) -> bytes:
        self.say(*parts)
        return self.hear()

    def hears_nothing(self) -> bool:
        try:
            self.hear(within=0.1)
        except TimeoutError:
            return True
        return False

    def pieces_of_a_reply(self, *parts: str) -> int:
        """In how many pieces a reply comes."""
        self.say(*parts)
        frames, pieces = Frames(), 1
        while not frames.feed(self._sock.recv(65536)):
            pieces += 1
        return pieces

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._sock.close()


@pytest.fixture
def wire(proxy: Proxy) -> Iterator[Wire]:
    """A connection by way of the proxy, which has been used."""
    with Wire(proxy.port) as wire:
        assert wire.ask("PING") == b"+PONG\r\n"
        yield wire


# Which servers there are.


@pytest.mark.parametrize("name", sorted(binaries()))
def test_a_server_is_what_its_name_says(name: str) -> None:
    """Each server starts, answers, and has the version after which it is called."""
    with Server(name) as server:
        facts = server.client().info("server")
        kind, version = name.split("-")
        assert str(facts[f"{kind}_version"]).startswith(f"{version}.")
        assert facts["process_id"] == server.pid


def test_both_kinds_are_there() -> None:
    """The tests have a Redis and a Valkey to run on, and the Valkey is what they get unasked."""
    assert a_redis() in binaries()
    assert binary() == binaries()[os.environ.get("WEBLOCK_TEST_SERVER", a_valkey())]


def test_the_environment_picks_a_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """WEBLOCK_TEST_SERVER names the server that tests get unasked; a wrong name is told."""
    monkeypatch.setenv("WEBLOCK_TEST_SERVER", a_redis())
    assert binary() == binaries()[a_redis()]
    monkeypatch.setenv("WEBLOCK_TEST_SERVER", "redis-1.0")
    with pytest.raises(LookupError, match=re.escape("install the extra 'dev'")):
        binary()


# One server.


def test_nobody_else_can_reach_it(own: Server) -> None:
    """A server listens on loopback and nowhere else."""
    with own.client() as client:
        assert client.config_get("bind") == {"bind": "127.0.0.1"}


def test_a_port_that_is_taken(own: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another server on the port is not taken for the own one; who does not insist gets another."""
    with pytest.raises(PortTaken):
        Server(port=own.port)
    taken = [own.port]
    monkeypatch.setattr(single, "free_port", lambda: taken.pop() if taken else free_port())
    with Server() as other:
        assert other.port != own.port


def test_no_port_is_given_by_two_processes() -> None:
    """Another run of the tests on this machine never gets a port of ours, even if nobody listens on it yet."""
    ours = {str(free_port()) for _ in range(10)}
    program = "from tests.servers.ports import *; print(*(free_port() for _ in range(FIRST, END)))"
    theirs = subprocess.check_output([sys.executable, "-c", program], cwd=TOP, text=True)
    assert ours.isdisjoint(theirs.split())


def test_a_server_that_cannot_start_says_why() -> None:
    """What a server says as it ends is told."""
    with pytest.raises(AssertionError, match="maxmemory"):
        Server(maxmemory="plenty")


def test_a_server_outlives_the_thread_that_started_it() -> None:
    """A server that a thread of a test has started lives on when the thread has ended."""
    started: list[Server] = []
    thread = threading.Thread(target=lambda: started.append(Server()))
    thread.start()
    task = Path(f"/proc/self/task/{thread.native_id}")
    thread.join()
    with started[0] as server:
        eventually(lambda: not task.exists())  # Only then has the system ended it.
        assert server.command("PING")


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has children die with their parent")
def test_no_server_outlives_the_tests(tmp_path: Path) -> None:
    """A kill -9 of the process that has started a server ends the server too."""
    code = "from tests.servers import Server; print(Server().port, flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=TOP,
        env={**os.environ, "TMPDIR": str(tmp_path)},  # Nobody removes what it leaves.
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as tests:
        assert tests.stdout
        port = int(tests.stdout.readline())
        Wire(port).__exit__()
        tests.send_signal(signal.SIGKILL)
    eventually(lambda: not _listens(port))


def _listens(port: int) -> bool:
    with socket.socket() as sock:
        return sock.connect_ex(("127.0.0.1", port)) == 0


# A proxy, and a network that is bad.


@pytest.mark.parametrize(
    "frame",
    [
        b"+OK\r\n",
        b":1\r\n",
        b"_\r\n",
        b"$-1\r\n",
        b"*-1\r\n",
        b"*0\r\n",
        b"$0\r\n\r\n",
        b"$6\r\n\r\n+a\r\n\r\n",
        b"*3\r\n:1\r\n*2\r\n+a\r\n$1\r\nb\r\n$-1\r\n",
        b"%1\r\n+a\r\n*1\r\n:1\r\n",
        b"|1\r\n+a\r\n:1\r\n~1\r\n:2\r\n",
        b">3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$1\r\nm\r\n",
    ],
)
def test_frames_are_whole_however_they_come(frame: bytes) -> None:
    """A value is cut out of its stream as soon as its last byte is there, and not before."""
    frames = Frames()
    for byte in frame[:-1]:
        assert frames.feed(bytes([byte])) == []
    assert frames.feed(frame[-1:] + frame + frame[:2]) == [frame, frame]
    assert frames.rest() == [frame[:2]]


def test_what_is_not_resp_is_not_kept() -> None:
    """TLS and the like pass as they come."""
    assert Frames().feed(b"\x16\x03\x01") == [b"\x16\x03\x01"]


def test_messages_are_no_replies() -> None:
    """What subscribers are told is known in both versions of the protocol."""
    assert is_pubsub(b">3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$1\r\nm\r\n")
    assert is_pubsub(b"*3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$1\r\nm\r\n")
    assert is_pubsub(b"*2\r\n$9\r\nSUBSCRIBE\r\n$1\r\nc\r\n")
    assert not is_pubsub(b"*1\r\n$4\r\nPING\r\n")


def test_delayed(proxy: Proxy, wire: Wire) -> None:
    """What is delayed arrives late, in its order; when that ends, what was late arrives at once."""
    proxy.delay(50, "replies")
    began = time.monotonic()
    wire.say("ECHO", "a")
    wire.say("ECHO", "b")
    assert wire.hear() == b"$1\r\na\r\n"
    assert time.monotonic() - began >= 0.05
    assert wire.hear() == b"$1\r\nb\r\n"
    proxy.delay(3_600_000)
    wire.say("PING")
    assert wire.hears_nothing()
    proxy.heal()
    assert wire.hear() == b"+PONG\r\n"


def test_healed(proxy: Proxy, wire: Wire) -> None:
    """What has not struck before the network is healed does not strike afterwards."""
    faults = proxy.drop_request(2), proxy.drop_reply(2)
    assert wire.ask("PING") == b"+PONG\r\n"
    proxy.heal()
    assert wire.ask("PING") == b"+PONG\r\n"
    assert not any(fault.happened for fault in faults)


def test_a_reply_is_lost(server: Server, proxy: Proxy, wire: Wire) -> None:
    """The reply to the k-th such request is lost though the server has acted, and nothing else."""
    fault = proxy.drop_reply(2, to=b"incr")
    assert wire.ask("INCR", "a") == b":1\r\n"
    assert wire.ask("PING") == b"+PONG\r\n"
    assert not fault.happened
    wire.say("PING")
    assert wire.ask("INCR", "a") == b"+PONG\r\n"
    assert wire.hear() == b""
    fault.wait()
    assert server.command("GET", "a") == "2"
    with Wire(proxy.port) as again:
        assert again.ask("INCR", "a") == b":3\r\n"


def test_a_request_is_lost(server: Server, proxy: Proxy, wire: Wire) -> None:
    """The k-th request is lost before the server hears of it."""
    fault = proxy.drop_request(2)
    assert wire.ask("INCR", "a") == b":1\r\n"
    assert wire.ask("INCR", "a") == b""
    fault.wait()
    assert server.command("GET", "a") == "1"


def test_silence_after_a_loss(server: Server, proxy: Proxy, wire: Wire) -> None:
    """A connection that stays silent after a loss never gives one reply for another."""
    fault = proxy.drop_reply(to=b"INCR", then="silence")
    wire.say("INCR", "a")
    fault.wait()
    wire.say("PING")
    assert wire.hears_nothing()
    proxy.heal()
    assert wire.hears_nothing()
    assert server.command("GET", "a") == "1"


@pytest.mark.parametrize("protocol", ["2", "3"])
@pytest.mark.parametrize("to", [b"", b"PING"])
def test_messages_are_not_counted(
    server: Server, proxy: Proxy, wire: Wire, protocol: str, to: bytes
) -> None:
    """What is pushed to a subscriber is not taken for the reply to one of its requests."""
    wire.ask("HELLO", protocol)
    fault = proxy.drop_reply(2, to=to)
    assert b"subscribe" in wire.ask("SUBSCRIBE", "c")
    server.command("PUBLISH", "c", "m")
    assert b"message" in wire.hear()
    assert b"PONG" in wire.ask("PING").upper()
    assert not fault.happened
    wire.say("PING")
    assert wire.hear() == b""
    assert fault.happened


def test_requests_are_half_closed(server: Server, proxy: Proxy, wire: Wire) -> None:
    """The server is told that its client has nothing more to say, and ends the connection."""
    proxy.half_close("requests")
    assert wire.ask("INCR", "a") == b""
    assert server.command("GET", "a") is None


def test_replies_are_half_closed(server: Server, proxy: Proxy, wire: Wire) -> None:
    """A client whose server has nothing more to say is still heard."""
    proxy.half_close("replies")
    assert wire.hear() == b""
    wire.say("INCR", "a")
    eventually(lambda: server.command("GET", "a") == "1")


def test_byte_by_byte(proxy: Proxy, wire: Wire) -> None:
    """Both sides put together what comes in pieces, and it does come in pieces."""
    proxy.drip()
    eventually(partial(_in_pieces, wire))
    proxy.heal()
    assert wire.ask("PING") == b"+PONG\r\n"


def _in_pieces(wire: Wire) -> bool:
    return wire.pieces_of_a_reply("ECHO", "a" * 1000) > 1
