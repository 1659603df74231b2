"""A client that retries, and workers that are killed at every step: each order is made once."""

from __future__ import annotations

import sys
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from sqlalchemy import create_engine, func, select
from sqlalchemy.orm import Session

from tests.servers.ports import free_port
from tests.servers.postgres import shared_postgres
from tests.servers.process import spawn
from tests.support.waiting import PATIENCE, eventually

from .idempotent_app import STEPS, Base, Order

TOP = Path(__file__).parents[2]


class Shop:
    """Two workers of uvicorn, which starts another one when one is killed."""

    def __init__(self, folder: Path, database: str, sessions: str) -> None:
        self.folder = folder
        self.url = f"http://127.0.0.1:{free_port()}"
        command = [sys.executable, "-m", "uvicorn", "tests.e2e.idempotent_app:app", "--workers=2"]
        command += [f"--port={self.url.rpartition(':')[2]}", "--log-level=warning"]
        environment = {
            "DATABASE": database,
            "ENGINE": f"file://{folder}/locks",
            "SESSIONS": sessions,
            "FOLDER": str(folder),
            "PYTHONPATH": str(TOP),
        }
        self.process = spawn(command, log=folder / "log", env=environment)
        eventually(self.serves, within=PATIENCE)

    def serves(self) -> bool:
        """Whether a worker responds."""
        try:
            return httpx.get(f"{self.url}/openapi.json").is_success
        except httpx.HTTPError:
            return False

    def order(self, text: str, key: str, user: str = "anna") -> httpx.Response:
        """Send an order until it is answered with a success or a mistake of the client."""
        deadline, pause = time.monotonic() + PATIENCE, 0.05
        while True:
            try:
                answer = httpx.post(
                    f"{self.url}/orders",
                    params={"text": text},
                    headers={"Idempotency-Key": key, "X-User": user},
                    timeout=PATIENCE,
                )
                if answer.status_code < 500 and answer.status_code != 409:
                    return answer
                problem = answer.text
            except httpx.HTTPError as error:
                problem = repr(error)
            log = (self.folder / "log").read_text()
            assert time.monotonic() < deadline, f"{problem}\n{log}"
            time.sleep(pause)
            pause = min(2 * pause, 1)


@pytest.fixture(scope="module", params=["sqlite-sync", "postgresql-sync", "postgresql-async"])
def shop(request, tmp_path_factory) -> Iterator[Shop]:
    """A shop for each kind of database and session."""
    folder = tmp_path_factory.mktemp("shop")
    database, _, sessions = request.param.partition("-")
    url = f"sqlite:///{folder}/db"
    if database == "postgresql":
        url = shared_postgres().url(driver="psycopg")
    engine = create_engine(url)
    Base.metadata.drop_all(engine)
    Base.metadata.create_all(engine)
    driver = "asyncpg" if sessions == "async" else "psycopg"
    shop = Shop(folder, url.replace("psycopg", driver), sessions)
    shop.engine = engine
    yield shop
    shop.process.terminate()
    shop.process.wait()
    engine.dispose()


def orders(shop: Shop, text: str) -> int:
    """How many orders of a text there are."""
    with Session(shop.engine) as session:
        return session.scalar(select(func.count()).where(Order.text == text)) or 0


@pytest.mark.parametrize("step", STEPS)
def test_a_worker_that_is_killed_makes_no_second_order(shop, step):
    """The client repeats its request until it has an answer: there is one order, and its answer."""
    text = key = uuid.uuid4().hex
    (shop.folder / step).touch()
    answer = shop.order(text, key)
    assert not (shop.folder / step).exists()
    assert answer.status_code == 201
    replayed = step in ("response", "sending")
    assert answer.headers.get("idempotency-replayed") == ("true" if replayed else None)
    assert orders(shop, text) == 1
    assert shop.order(text, key).text == answer.text
    assert orders(shop, text) == 1


def test_races_are_executed_once(shop):
    """Clients that send the same order at once, to both workers, get one answer."""
    with ThreadPoolExecutor(8) as clients:
        for _ in range(10):
            text = uuid.uuid4().hex
            answers = list(clients.map(shop.order, [text] * 8, [text] * 8))
            assert len({each.text for each in answers}) == 1
            assert orders(shop, text) == 1
