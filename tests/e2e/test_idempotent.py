"""A client that retries, and workers that are killed at every step: each order is made once."""

from __future__ import annotations

import itertools
import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from threading import Thread

import httpx
import pytest
from sqlalchemy import create_engine, func, select
from sqlalchemy.orm import Session

from tests.servers.mariadb import MariaDB
from tests.servers.postgres import shared_postgres
from tests.servers.process import spawn
from tests.support.waiting import PATIENCE, eventually

from .idempotent_app import STEPS, Base, Order

TOP = Path(__file__).parents[2]


class Shop:
    """Two workers that share a socket; another one starts at once when one is killed.

    Not uvicorn's own supervisor: it waits a minute for the answer of a worker that is killed while it asks.
    """

    def __init__(self, folder: Path, database: str, sessions: str) -> None:
        self.folder = folder
        self.listening = socket.create_server(("127.0.0.1", 0))
        fd = self.listening.fileno()
        if sessions == "django":
            command = ["gunicorn", "tests.e2e.idempotent_django:app", f"--bind=fd://{fd}"]
            command += ["--threads=8"]
        else:
            command = ["uvicorn", "tests.e2e.idempotent_app:app", f"--fd={fd}"]
            command += ["--log-level=warning"]
        self.command = [sys.executable, "-m", *command]
        self.environment = {
            "DATABASE": database,
            "ENGINE": f"file://{folder}/locks",
            "SESSIONS": sessions,
            "FOLDER": str(folder),
            "PYTHONPATH": str(TOP),
        }
        url = f"http://127.0.0.1:{self.listening.getsockname()[1]}"
        self.client = httpx.Client(base_url=url, timeout=PATIENCE, verify=False)
        self.closed = False
        self.workers: dict[str, subprocess.Popen[bytes]] = {}
        self.keepers = [Thread(target=self.keep, args=(name,)) for name in ("first", "second")]
        for keeper in self.keepers:
            keeper.start()
        eventually(self.serves, within=PATIENCE)

    def keep(self, name: str) -> None:
        """Start a worker, and another one whenever it has died."""
        for number in itertools.count():
            if self.closed:
                return
            log, fds = self.folder / f"{name}-{number}.log", [self.listening.fileno()]
            self.workers[name] = spawn(self.command, log=log, env=self.environment, pass_fds=fds)
            self.workers[name].wait()

    def close(self) -> None:
        """Stop the workers."""
        self.closed = True
        while any(keeper.is_alive() for keeper in self.keepers):
            for worker in list(self.workers.values()):
                worker.kill()
            for keeper in self.keepers:
                keeper.join(0.05)
        self.listening.close()
        self.client.close()

    def serves(self) -> bool:
        """Whether a worker responds."""
        try:
            return self.client.get("/openapi.json").is_success
        except httpx.HTTPError:
            return False

    def order(self, text: str) -> httpx.Response:
        """Send an order until it is answered with a success or a mistake of the client."""
        deadline, pause = time.monotonic() + PATIENCE, 0.05
        while True:
            try:
                headers = {"Idempotency-Key": text, "X-User": "anna"}
                answer = self.client.post("/orders", params={"text": text}, headers=headers)
                if answer.status_code < 500 and answer.status_code != 409:
                    return answer
                problem = answer.text
            except httpx.HTTPError as error:
                problem = repr(error)
            log = "\n".join(each.read_text() for each in self.folder.glob("*.log"))
            assert time.monotonic() < deadline, f"{problem}\n{log}"
            time.sleep(pause)
            pause = min(2 * pause, 1)


@pytest.fixture(
    params=[
        "sqlite-sync",
        "sqlite-django",
        "postgresql-sync",
        "postgresql-async",
        "postgresql-django",
        "mariadb-sync",
    ]
)
def shop(request, tmp_path) -> Iterator[Shop]:
    """A shop for each kind of database and session."""
    database, _, sessions = request.param.partition("-")
    url = f"sqlite:///{tmp_path}/db"
    with ExitStack() as stack:
        if database == "postgresql":
            url = shared_postgres().url(driver="psycopg")
        elif database == "mariadb":
            url = stack.enter_context(MariaDB()).url()
        engine = create_engine(url)
        Base.metadata.drop_all(engine)
        Base.metadata.create_all(engine)
        driver = "asyncpg" if sessions == "async" else "psycopg"
        shop = Shop(tmp_path, url.replace("psycopg", driver), sessions)
        shop.engine = engine
        yield shop
        shop.close()
        engine.dispose()


def orders(shop: Shop, text: str) -> int:
    """How many orders of a text there are."""
    with Session(shop.engine) as session:
        return session.scalar(select(func.count()).where(Order.text == text)) or 0


@pytest.mark.timeout(600)
def test_each_order_is_made_once(shop):
    """However often it is sent, and wherever a worker is killed meanwhile: there is one, with one answer."""
    for step in STEPS:
        text = uuid.uuid4().hex
        (shop.folder / step).touch()
        answer = shop.order(text)
        assert not (shop.folder / step).exists()
        assert answer.status_code == 201
        was_committed = step in ("response", "sending")
        assert answer.headers.get("idempotency-replayed") == ("true" if was_committed else None)
        assert shop.order(text).text == answer.text
        assert orders(shop, text) == 1
    with ThreadPoolExecutor(8) as clients:
        for _ in range(5):
            answers = list(clients.map(shop.order, [uuid.uuid4().hex] * 8))
            assert len({each.text for each in answers}) == 1
            assert orders(shop, answers[0].request.url.params["text"]) == 1


on_postgresql = pytest.mark.parametrize(
    "shop", ["postgresql-sync", "postgresql-async", "postgresql-django"], indirect=True
)


@on_postgresql
@pytest.mark.timeout(600)
def test_a_worker_that_was_stopped_commits_nothing(shop):
    """It continues when another worker has executed its request, and the client gets that answer."""
    text, stopped = uuid.uuid4().hex, shop.folder / "stopped"
    (shop.folder / "stop").touch()
    with ThreadPoolExecutor(1) as clients:
        first = clients.submit(shop.order, text)
        eventually(stopped.exists, within=PATIENCE)
        try:
            answer = shop.order(text)
        finally:
            os.kill(int(stopped.read_text()), signal.SIGCONT)
        assert "idempotency-replayed" not in answer.headers
        assert first.result().headers["idempotency-replayed"] == "true"
        assert first.result().text == answer.text
    assert orders(shop, text) == 1


@on_postgresql
@pytest.mark.timeout(600)
def test_a_handler_that_outlasts_its_lock_is_executed_once(shop):
    """The lock is renewed: a request that is sent again meanwhile gets the first one's answer."""
    text, outlast = uuid.uuid4().hex, shop.folder / "outlast"
    outlast.touch()
    with ThreadPoolExecutor(1) as clients:
        first = clients.submit(shop.order, text)
        eventually(lambda: not outlast.exists(), within=PATIENCE)
        assert shop.order(text).headers["idempotency-replayed"] == "true"
        assert "idempotency-replayed" not in first.result().headers
    assert orders(shop, text) == 1
