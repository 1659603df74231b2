"""The servers that other tests stand on, where those tests would not notice what is wrong with them."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

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
from tests.servers.ports import free_port
from tests.support.waiting import eventually

TOP = Path(__file__).parents[2]


@pytest.fixture
def own() -> Iterator[Server]:
    with Server() as server:
        yield server


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
        assert _listens(port)
        tests.send_signal(signal.SIGKILL)
    eventually(lambda: not _listens(port))


def _listens(port: int) -> bool:
    with socket.socket() as sock:
        return sock.connect_ex(("127.0.0.1", port)) == 0


@pytest.mark.parametrize("lost", ["reply", "request"])
def test_what_a_proxy_loses(own: Server, lost: str) -> None:
    """The server has acted on a request whose reply is lost, and never hears of a request that is lost."""
    with Proxy(own) as proxy, redis.Redis(port=proxy.port, retry=Retry(NoBackoff(), 0)) as client:
        client.ping()
        fault = getattr(proxy, f"drop_{lost}")(2, to=b"incr")
        assert client.incr("a") == 1
        assert client.ping()
        assert not fault.happened
        with pytest.raises(redis.ConnectionError):
            client.incr("a")
        fault.wait()
        assert own.command("GET", "a") == ("2" if lost == "reply" else "1")
        assert client.incr("a") == (3 if lost == "reply" else 2)
