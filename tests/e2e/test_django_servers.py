"""Django on real servers of several processes, with a real PostgreSQL and real clients."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest

from tests.servers import Postgres, fresh_url
from tests.servers.ports import free_port
from tests.servers.process import spawn
from tests.support.waiting import PATIENCE, eventually

TOP = Path(__file__).parents[2]
BOUND = 3
LONG = "WEBLOCK_LONG" in os.environ
ROUNDS, REQUESTS = (20, 200) if LONG else (1, 40)
"""The long run takes minutes of processor time: WEBLOCK_LONG=1 scripts/test tests/e2e -k django"""

SLOW_COMMITS = """
CREATE TABLE shop_item (id bigserial PRIMARY KEY, name varchar(100) NOT NULL);
CREATE FUNCTION linger() RETURNS trigger AS
    'BEGIN PERFORM pg_sleep(0.1); RETURN NULL; END' LANGUAGE plpgsql;
CREATE CONSTRAINT TRIGGER slow AFTER INSERT ON shop_item
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION linger();
"""
"""A COMMIT takes its time, in which a lock that was released too early lets another in."""

GUNICORN = (
    "gunicorn --no-control-socket --workers 2 --timeout 100 --log-level warning"
    " tests.e2e.django_apps:wsgi"
)
SERVERS = {
    "gunicorn-sync": (f"{GUNICORN} --bind 127.0.0.1:{{port}}", 1),
    "gunicorn-gthread": (
        f"{GUNICORN} --worker-class gthread --threads 8 --bind 127.0.0.1:{{port}}",
        1,
    ),
    "gunicorn-preload": (f"{GUNICORN} --preload --threads 4 --bind 127.0.0.1:{{port}}", 1),
    "uvicorn": (
        "uvicorn --workers 2 --log-level warning --port {port} tests.e2e.django_apps:asgi",
        1,
    ),
    "runserver": ("django runserver --noreload 127.0.0.1:{port}", 2),
}
ENGINES = {"gunicorn-gthread": "redis"}

databases = itertools.count()


@pytest.fixture(scope="module")
def postgres() -> Iterator[Postgres]:
    with Postgres() as server:
        yield server


class Site:
    """The project on one kind of server: several processes, and one database."""

    def __init__(self, kind: str, postgres: Postgres, folder: Path) -> None:
        command, copies = SERVERS[kind]
        self.signs = folder
        self.database = postgres.url(postgres.create_database(f"site{next(databases)}"))
        with psycopg.connect(self.database, autocommit=True) as connection:
            connection.execute(SLOW_COMMITS.encode())
        env = {
            "DJANGO_SETTINGS_MODULE": "tests.e2e.django_site",
            "SITE_DATABASE": self.database.rpartition("/")[2],
            "SITE_DATABASE_PORT": str(postgres.port),
            "SITE_LOCKS": fresh_url() if ENGINES.get(kind) == "redis" else f"file://{folder}/locks",
            "SITE_SIGNS": str(folder),
            "PYTHONPATH": str(TOP),
        }
        self.ports = [free_port() for _ in range(copies)]
        self.logs = [folder / f"{port}.log" for port in self.ports]
        self.processes = [
            spawn(
                [sys.executable, "-m", *command.format(port=port).split()],
                log=log,
                env=env,
            )
            for port, log in zip(self.ports, self.logs, strict=True)
        ]
        eventually(lambda: all(map(self._answers, self.ports)) or self._has_ended())
        assert not self._has_ended(), self.complaints()

    def _has_ended(self) -> bool:
        return any(process.poll() is not None for process in self.processes)

    def _answers(self, port: int) -> bool:
        try:
            return (
                httpx.get(f"http://127.0.0.1:{port}/nowhere", timeout=PATIENCE).status_code == 404
            )
        except httpx.TransportError:
            return False

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.ports[0]}/{path}"

    def post(self, path: str, count: int) -> Counter[int]:
        return asyncio.run(self._post(path, count))

    async def _post(self, path: str, count: int) -> Counter[int]:
        ports = itertools.islice(itertools.cycle(self.ports), count)
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(timeout=PATIENCE, limits=limits) as client:
            posts = (client.post(f"http://127.0.0.1:{port}/{path}") for port in ports)
            return Counter(answer.status_code for answer in await asyncio.gather(*posts))

    def items(self) -> int:
        with psycopg.connect(self.database) as connection:
            row = connection.execute("SELECT count(*) FROM shop_item").fetchone()
        assert row
        return int(row[0])

    def start_anew(self) -> None:
        with psycopg.connect(self.database) as connection:
            connection.execute("TRUNCATE shop_item")

    def complaints(self) -> str:
        return "\n".join(log.read_text(errors="replace") for log in self.logs)

    def end(self) -> None:
        for process in self.processes:
            process.terminate()
        for process in self.processes:
            process.wait(PATIENCE)


@pytest.fixture(scope="module")
def site(
    request: pytest.FixtureRequest, postgres: Postgres, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Site]:
    """The project, on the kind of server that the test names; tests of one kind share it."""
    site = Site(request.param, postgres, tmp_path_factory.mktemp("site"))
    try:
        yield site
    finally:
        site.end()


def served_by(*kinds: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("site", kinds, indirect=True, scope="module")


@pytest.mark.timeout(1800)
@served_by(*SERVERS)
def test_the_bound_is_kept(site: Any) -> None:
    """Of all requests at once, as many make an item as there is room for; all are answered."""
    for _ in range(ROUNDS):
        site.start_anew()
        told = site.post("ours", REQUESTS)
        assert told == {201: BOUND, 422: REQUESTS - BOUND}, site.complaints()
        assert site.items() == BOUND


@served_by("gunicorn-sync")
def test_a_worker_that_was_stopped_does_not_commit(site: Any) -> None:
    """It wakes up when another has had the lock: its work is rolled back, and its client told."""
    site.start_anew()
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(lambda: httpx.post(site.url("linger"), timeout=PATIENCE))
        inside = site.signs / "inside"
        eventually(lambda: inside.exists() and inside.read_text())
        worker = int(inside.read_text())
        os.kill(worker, signal.SIGSTOP)
        try:
            second = httpx.post(site.url("ours"), timeout=PATIENCE)
            assert second.status_code == 201
            (site.signs / "go on").touch()
        finally:
            os.kill(worker, signal.SIGCONT)
        answer = first.result(PATIENCE)
    assert (answer.status_code, answer.json()["code"]) == (503, "lease_lost")
    assert site.items() == 1
