"""The bounded "create item" with SQLAlchemy on PostgreSQL, in two processes of uvicorn."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from subprocess import Popen

import httpx
import pytest
from sqlalchemy import create_engine, delete, func, select, text
from sqlalchemy.orm import Session

from tests.servers import Postgres
from tests.servers.ports import free_port
from tests.servers.process import spawn
from tests.support.waiting import PATIENCE, eventually
from weblock import Locks

from .postgres_app import BOUND, SLOW_COMMITS, WAYS, Base, Item

REQUESTS = 8
BUSY = """
    SELECT count(*) FROM pg_stat_activity
    WHERE datname = current_database() AND pid <> pg_backend_pid() AND state <> 'idle'
"""
TOP = Path(__file__).parents[2]


class Shop:
    """Two servers, one database, one engine."""

    def __init__(self, database: str, servers: dict[str, Popen], probe: Locks) -> None:
        self.database = create_engine(database)
        self.servers = servers
        self.urls = list(servers)
        self.probe = probe

    def items(self) -> int:
        """How many have been committed."""
        with Session(self.database) as session:
            return session.scalar(select(func.count(Item.id))) or 0

    def start_anew(self) -> None:
        eventually(self._is_at_rest)
        with self.probe.hold("create_item"), Session(self.database) as session:
            session.execute(delete(Item))
            session.commit()

    def _is_at_rest(self) -> bool:
        """Whether nobody has anything to commit: naive locks answer before they do."""
        with Session(self.database) as session:
            return not session.scalar(text(BUSY))

    async def create(self, path: str, count: int = REQUESTS) -> Counter[int]:
        """How often each status came, of concurrent requests to both servers in turn."""
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(timeout=PATIENCE, limits=limits) as client:
            urls = itertools.islice(itertools.cycle(self.urls), count)
            answers = await asyncio.gather(*(client.post(f"{url}{path}") for url in urls))
        return Counter(answer.status_code for answer in answers)


@pytest.fixture(scope="module")
def shop():
    """It is started once; each test empties it."""
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(Postgres())
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="wl-")))
        url = server.url(driver="psycopg")
        engine = create_engine(url)
        Base.metadata.create_all(engine)
        with engine.begin() as connection:
            connection.execute(text(SLOW_COMMITS))
        engine.dispose()
        probe = stack.enter_context(Locks.from_url(f"file://{folder}/locks", wait=PATIENCE))
        environment = {"DATABASE": url.partition("//")[2], "ENGINE": probe.engine}
        logs = [folder / "one.log", folder / "other.log"]
        servers = dict(stack.enter_context(served(log, environment)) for log in logs)
        shop = Shop(url, servers, probe)
        stack.callback(shop.database.dispose)
        yield shop


@contextlib.contextmanager
def served(log: Path, environment: dict[str, str]) -> Iterator[tuple[str, Popen]]:
    """The URL of the application, and the process of its own that it runs in."""
    url = f"http://127.0.0.1:{free_port()}"
    command = [sys.executable, "-m", "uvicorn", "tests.e2e.postgres_app:app"]
    command += ["--app-dir", str(TOP), f"--port={url.rpartition(':')[2]}", "--log-level=warning"]
    process = spawn(command, log=log, env=environment)
    try:
        eventually(lambda: answers(url) or process.poll() is not None, within=PATIENCE)
        assert process.poll() is None, log.read_text()
        yield url, process
    finally:
        process.terminate()
        process.wait()


def answers(url: str) -> bool:
    """Whether somebody serves there."""
    try:
        return httpx.get(f"{url}/openapi.json").is_success
    except httpx.HTTPError:
        return False


@pytest.mark.parametrize("way", WAYS)
def test_the_bound_is_kept(shop, way):
    """With each driver, scope and order, as many rows are committed as there is room for."""
    shop.start_anew()
    told = asyncio.run(shop.create(f"/ours/{way}"))
    assert told == {201: BOUND, 422: REQUESTS - BOUND}
    assert shop.items() == BOUND


@pytest.mark.parametrize("way", [way for way in WAYS if way.endswith("lock-first")])
def test_a_commit_that_fails_is_a_500(shop, way):
    """What COMMIT itself refuses was not reported as done, and the lock is free."""
    shop.start_anew()
    told = asyncio.run(shop.create(f"/ours/{way}?note=fails", 2))
    assert told == {500: 2}
    assert shop.items() == 0
    shop.probe.acquire("create_item").release()


@pytest.mark.parametrize("way", ["yield", "early", "middleware"])
def test_a_naive_lock_breaks_the_bound(shop, way):
    """``yield`` dependencies and ``BaseHTTPMiddleware`` release before the commit: too many rows."""
    made = 0
    for _ in range(20):
        shop.start_anew()
        made = max(made, asyncio.run(shop.create(f"/naive/{way}"))[201])
        if made > BOUND:
            break
    assert made > BOUND
    eventually(lambda: shop.items() > BOUND)  # Some have been told before they commit.


@pytest.mark.parametrize("world", ["def", "async"])
def test_a_process_that_stood_still_commits_nothing(shop, tmp_path, world):
    """Stopped for longer than its lease, it comes back while another has the key: 503, no row."""
    shop.start_anew()
    url, process = next(iter(shop.servers.items()))
    signs = {"begun": tmp_path / "begun", "go_on": tmp_path / "go-on"}
    with ThreadPoolExecutor(1) as client:
        post = client.submit(httpx.post, f"{url}/guarded/{world}", params=signs, timeout=PATIENCE)
        eventually(signs["begun"].exists, within=PATIENCE)
        process.send_signal(signal.SIGSTOP)
        try:
            other = shop.probe.acquire("frozen")
        finally:
            signs["go_on"].touch()
            process.send_signal(signal.SIGCONT)
        with other:
            answer = post.result()
    assert (answer.status_code, answer.json()["code"]) == (503, "lease_lost")
    assert shop.items() == 0
