"""FastAPI on a real uvicorn in a process of its own, with real engines and real clients."""

from __future__ import annotations

import contextlib
import json
import signal
import tempfile
from pathlib import Path

from tests.support.waiting import PATIENCE, eventually

from .sites import FASTAPI_KINDS, Server, read_all

SERVED = FASTAPI_KINDS


def calls_for_health(server: Server) -> int:
    """The calls that the event loop makes while it answers a request that locks nothing."""
    answer = server.answer("/health")
    assert b" 200 OK" in answer
    return int(answer.partition(b"x-calls: ")[2].split()[0])


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
