"""``weblock answers``, ``forget`` and ``ddl --answers``: the stored answers to idempotent requests."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable

import httpx
import pytest
from sqlalchemy import MetaData, create_engine, inspect, text

from tests.servers.postgres import shared_postgres
from weblock import Locks
from weblock.contrib.kit.idempotency import Answer, Answers, IdempotencySpec
from weblock.contrib.sqlalchemy import answer_table
from weblock.contrib.wsgi import LockMiddleware

from .programs import Typed

CALLERS = ("anna", "bert")


@pytest.fixture(params=["engine", "database"])
def where(request, run, locks: Locks, tmp_path) -> list[str]:
    """Options for a place that stores the answers to one key of two callers, and to another key."""
    orders = [("k1", "anna"), ("k1", "bert"), ("k2", "anna")]
    if request.param == "engine":

        def shop(_environ, start_response):
            start_response("201 Created", [])
            return [b"ordered"]

        once = {"caller": lambda environ: environ["HTTP_X_USER"]}
        rule = {"path": "/orders", "methods": ["POST"], "idempotent": once}
        app = LockMiddleware(shop, locks, [rule])
        with httpx.Client(transport=httpx.WSGITransport(app), base_url="http://shop") as client:
            for key, user in orders:
                headers = {"Idempotency-Key": key, "X-User": user}
                assert client.post("/orders", headers=headers).status_code == 201
        return []
    with sqlite3.connect(tmp_path / "db") as database:
        database.executescript(run("ddl", "--answers", "sqlite").stdout)
        spec = IdempotencySpec.written(lambda: None)
        for key, user in orders:
            asked = spec.asked(caller=user, method="POST", path="/orders", sent=[key], parts=[])
            Answers(
                *(spec, asked, locks, "sqlite", lambda *sent: database.execute(*sent).fetchall()),
                failures=(),
                remedy="",
            ).store(Answer(201, [], b"ordered"))
    database.close()
    return ["--database", f"sqlite:///{tmp_path}/db"]


def test_answers_are_listed_and_forgotten(run, told, where: list[str]) -> None:
    """All, or those of one key; forgetting deletes those of all callers, and only the named request's."""
    found = told("answers", *where)
    assert sorted(each["idempotency_key"] for each in found) == ["k1", "k1", "k2"]
    assert {(each["request"], each["status"]) for each in found} == {("POST /orders", 201)}
    assert len({each["caller"] for each in found}) == 2
    assert "POST /orders" in run("answers", "k1", *where).stdout
    unasked = run("forget", "k1", *where, input="y\n")
    assert (unasked.exit_code, len(told("answers", "k1", *where))) == (2, 2)
    other = run("forget", "k1", "--request", "POST /x", "--force", *where)
    assert (other.exit_code, len(told("answers", "k1", *where))) == (1, 2)
    assert told("forget", "k1", "--force", *where) == {"forgotten": 2}
    assert [each["idempotency_key"] for each in told("answers", *where)] == ["k2"]
    assert run("answers", "k1", *where).stdout == "No answer is stored.\n"


@pytest.mark.parametrize(("answer", "left"), [("y", 0), ("n", 1)])
def test_a_person_is_asked(run, told, where: list[str], answer: str, left: int) -> None:
    """At a terminal the command shows the answers, and deletes only if told to."""
    done = run("forget", "k2", *where, input=Typed(answer.encode()))
    assert "POST /orders" in done.stderr
    assert (done.exit_code, len(told("answers", "k2", *where))) == (left, left)


@pytest.mark.parametrize(
    ("url", "code", "said"),
    [
        ("sqlite://", 2, "has no table weblock_answer"),
        ("nonsense", 2, "--database must be the URL of a database"),
        ("postgresql+psycopg://anna:s3cr3t@host:port/shop", 2, "--database must be the URL"),
        ("postgresql+asyncpg://host/shop", 2, "has the async driver asyncpg"),
        ("postgresql+psycopg://127.0.0.1:1/none", 69, "did not return the stored answer"),
    ],
)
def test_a_database_that_cannot_be_read(run, url: str, code: int, said: str) -> None:
    """It is said what is wrong with it."""
    done = run("answers", "--database", url)
    assert (done.exit_code, said in done.stderr) == (code, True), done.stderr
    assert "s3cr3t" not in done.output


def test_the_table_is_the_one_of_the_metadata(run) -> None:
    """What ``ddl --answers`` prints makes on PostgreSQL the columns and indexes that SQLAlchemy makes."""
    engine = create_engine(shared_postgres().url(driver="psycopg"))

    def shape(create: Callable[..., object]) -> object:
        with engine.begin() as connection:
            connection.execute(text("CREATE SCHEMA ddl; SET LOCAL search_path = ddl"))
            create(connection)
            found = inspect(connection)
            made = found.get_columns("weblock_answer"), found.get_indexes("weblock_answer")
            connection.execute(text("DROP SCHEMA ddl CASCADE"))
            return str(made)

    printed = run("ddl", "--answers", "postgresql").stdout
    metadata = MetaData()
    answer_table(metadata)
    assert shape(lambda found: found.execute(text(printed))) == shape(metadata.create_all)
    engine.dispose()
    assert "body LONGBLOB NOT NULL" in run("ddl", "--answers", "mysql").stdout
