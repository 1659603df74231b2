"""A locked task that runs inside a request: eagerly, as in tests, or by a direct call."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from celery import Celery
from fastapi import Depends, FastAPI
from flask import Flask

from tests.support.http import client_of
from tests.support.waiting import PATIENCE
from weblock import Locks, LockTimeout
from weblock.contrib import flask
from weblock.contrib.celery import WebLock, lease_of
from weblock.contrib.fastapi import install, lock

Call = Callable[[Any], Any]

CALLS: dict[str, Call] = {
    "delay": lambda task: task.delay().get(),
    "apply": lambda task: task.apply().get(),
    "call": lambda task: task(),
}

calls = pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
impatient = pytest.mark.parametrize(
    "options", [{"wait": 0}, {"on_busy": "skip"}], ids=["wait", "skip"]
)


@pytest.fixture
def locks(url: str) -> Iterator[Locks]:
    """The locks of the tasks."""
    with Locks.from_url(url) as locks:
        yield locks


@pytest.fixture
def celery(locks: Locks) -> Iterator[Celery]:
    """An application whose tasks run at once."""
    app = Celery("shop", broker="memory://", set_as_current=False)
    app.conf.task_always_eager = True
    WebLock(app, locks)
    yield app
    app.close()


@pytest.fixture
def pay(celery: Celery, locks: Locks) -> Callable[..., Any]:
    """Makes a task that returns what is held, and whether its lease could be extended."""

    def pay(**options: Any) -> Any:
        @celery.task(name="pay", shared=False, lock=["a", "b"], **options)
        def paid() -> list[Any]:
            lease = lease_of()
            lease.extend(60)
            return [[info.key for info in locks.list()], list(lease.keys), lease.remaining() > 50]

        return paid

    return pay


PAID = [["a", "b"], ["a", "b"], True]


@calls
@impatient
def test_in_a_view_of_flask(
    pay: Callable[..., Any], call: Call, options: Any, locks: Locks, url: str
) -> None:
    """The task has the key that the view holds, acquires the other, and gives back that one."""
    app, task = Flask("shop"), pay(**options)
    web = flask.WebLock(app, url)

    @app.post("/pay")
    @web.lock("a")
    def view() -> list[Any]:
        return [call(task), [info.key for info in locks.list()]]

    assert app.test_client().post("/pay").json == [PAID, ["a"]]
    assert locks.list() == []


@calls
@impatient
@pytest.mark.parametrize("is_async", [True, False])
async def test_in_an_endpoint_of_fastapi(
    pay: Callable[..., Any], call: Call, options: Any, is_async: bool, url: str
) -> None:
    """The same, with a lease that blocks, as the code of the task expects it, also on an event loop."""
    app, task = FastAPI(), pay(**options)
    install(app, url)

    async def in_task() -> list[Any]:
        return [call(task)]

    def in_thread() -> list[Any]:
        return [call(task)]

    endpoint = in_task if is_async else in_thread
    app.post("/pay", dependencies=[Depends(lock("a", "b"))])(endpoint)
    async with client_of(app) as client:
        answer = await client.post("/pay")
    assert answer.json() == [PAID]


def test_a_task_beside_another_waits_for_it(celery: Celery, locks: Locks, url: str) -> None:
    """Of two tasks of one request, in two threads, the one does not hold what the other does."""
    app = Flask("shop")
    web = flask.WebLock(app, url)
    inside, go_on = threading.Event(), threading.Event()

    @celery.task(shared=False, lock="b")
    def first() -> str:
        inside.set()
        assert go_on.wait(PATIENCE)
        return "done"

    @celery.task(shared=False, lock="b", wait=0)
    def second() -> None: ...

    @app.post("/pay")
    @web.lock("a")
    def view() -> list[Any]:
        context = contextvars.copy_context()
        with ThreadPoolExecutor(1) as beside:
            running = beside.submit(context.run, first)
            assert inside.wait(PATIENCE)
            refused = second.apply().result
            go_on.set()
            return [type(refused).__name__, running.result()]

    assert app.test_client().post("/pay").json == [LockTimeout.__name__, "done"]
