"""Applications on servers, each in a process of its own, as the tests of both use them."""

from __future__ import annotations

import re
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.servers import fresh_url
from tests.servers.ports import free_port
from tests.servers.process import spawn
from tests.support.waiting import PATIENCE, eventually, queue_of
from weblock import Locks

TOP = Path(__file__).parents[2]

GUNICORN = "-m gunicorn --no-control-socket --bind=127.0.0.1:{port}"
"""Without the socket by which it is told things: all of a user's servers have the same, and quarrel over it."""

APP = "tests.e2e.asgi_app:app"
FASTAPI = "-W error -m tests.e2e.uvicorn_app {port}"


def on_files(folder: Path) -> str:
    """The URL of an engine in the folder."""
    return f"file://{folder}/locks"


def on_redis(_folder: Path) -> str:
    """The URL of an engine on the shared Redis."""
    return fresh_url()


@dataclass(frozen=True)
class Kind:
    """How Python is told to run an application on a server, and where that keeps its locks."""

    arguments: str
    engine: Callable[[Path], str] = on_files


KINDS = {
    "uvicorn": Kind(f"-m uvicorn {APP} --port={{port}} --log-level=warning --ws=none"),
    "hypercorn": Kind(f"-m hypercorn {APP} --bind=127.0.0.1:{{port}} --log-level=warning"),
    "granian": Kind(
        f"-m granian {APP} --interface=asgi --port={{port}} --log-level=warning --no-ws"
    ),
    "gunicorn": Kind(f"{GUNICORN} {APP} --worker-class=asgi --log-level=warning"),
    "fastapi-file": Kind(FASTAPI),
    "fastapi-redis": Kind(FASTAPI, on_redis),
}
"""``LockMiddleware`` on every kind of ASGI server, and FastAPI on both engines of several processes."""

WSGI = "tests.e2e.wsgi_app:app"

WSGI_KINDS = {
    "sync": Kind(f"{GUNICORN} {WSGI} --workers=2 --preload"),
    "gthread": Kind(f"{GUNICORN} {WSGI} --worker-class=gthread --threads=4"),
    "gevent": Kind(f"{GUNICORN} {WSGI} --worker-class=gevent"),
    "waitress": Kind(
        f"-m waitress --listen=127.0.0.1:{{port}} --channel-request-lookahead=1 {WSGI}"
    ),
    "werkzeug": Kind(f"-m flask --app={WSGI} run --port={{port}} --no-reload"),
}
"""Flask and ``LockMiddleware`` on every kind of WSGI server."""

ALL_KINDS = KINDS | WSGI_KINDS

FASTAPI_KINDS = [kind for kind in KINDS if kind.startswith("fastapi")]


class Server:
    """A server with its application, its folder, and what its engine knows of its keys."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.folder = folder
        self.address = ("127.0.0.1", free_port())
        self.url = "http://{}:{}".format(*self.address)
        self.buffers = kind == "waitress"  # It calls the application when it has the whole body.
        engine = ALL_KINDS[kind].engine(folder)
        self.process = spawn(
            [sys.executable, *ALL_KINDS[kind].arguments.format(port=self.address[1]).split()],
            log=folder / "log",
            env={
                "WEBLOCK_TEST_FOLDER": str(folder),
                "WEBLOCK_TEST_ENGINE": engine,
                "PYTHONPATH": str(TOP),
            },
        )
        self.probe = Locks.from_url(engine, wait=PATIENCE)
        eventually(lambda: self.serves() or self.process.poll() is not None)
        assert self.process.poll() is None, self.log()

    def serves(self) -> bool:
        try:
            socket.create_connection(self.address).close()
        except ConnectionRefusedError:
            return False
        return True

    def log(self) -> str:
        return (self.folder / "log").read_text()

    def noted(self, name: str) -> bool:
        return (self.folder / name).exists()

    def goes_on(self, name: str) -> None:
        (self.folder / f"{name}-goes-on").touch()

    def waiting_for(self, key: str) -> int | None:
        """How many wait for a key; ``None`` if nobody holds it."""
        with ThreadPoolExecutor(1) as stranger:  # The test's own thread may hold the key.
            return stranger.submit(queue_of, self.probe, key).result()

    def raw(self, path: str, *, method: str = "POST", length: int = 0) -> socket.socket:
        """A connection that has sent the head of a request, and reads nothing by itself."""
        client = socket.socket()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16 * 1024)
        client.settimeout(PATIENCE)
        client.connect(self.address)
        head = f"{method} {path} HTTP/1.1\r\nHost: shop\r\nContent-Length: {length}\r\n"
        client.sendall(f"{head}Connection: close\r\n\r\n".encode())
        return client

    def answer(self, path: str, method: str = "POST") -> bytes:
        """What a request is answered, whole."""
        with self.raw(path, method=method) as client:
            return read_all(client)

    def memory(self) -> int:
        """The most memory that the serving process has ever had, in bytes."""
        return int(self.answer("/memory", "GET").rpartition(b"\r\n\r\n")[2])

    def resources(self) -> tuple[int, int]:
        """How many files and threads its process has."""
        process = Path(f"/proc/{self.process.pid}")
        return len(list(process.glob("fd/*"))), len(list(process.glob("task/*")))

    def end(self) -> None:
        """Has it shut down."""
        self.probe.close()
        self.process.terminate()
        self.process.wait(timeout=PATIENCE)


@contextmanager
def serving(kind: str) -> Iterator[Server]:
    """A server of that kind, which has to end without a complaint."""
    with tempfile.TemporaryDirectory(prefix="wl-") as folder:
        server = Server(kind, Path(folder))
        try:
            yield server
        finally:
            server.end()
        if kind in KINDS:  # WSGI tells an application neither.
            assert server.noted("started")
            assert server.noted("shut-down")
        assert not re.search(r"Traceback|ERROR|Exception|Warning", server.log()), server.log()


def read_all(client: socket.socket) -> bytes:
    """What it is sent until the server closes."""
    parts = []
    while part := client.recv(65536):
        parts.append(part)
    return b"".join(parts)
