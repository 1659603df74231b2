"""``limit=`` and ``shared=`` in the adapters: they pass on, and of two locks of one key the stricter counts."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from celery import Celery
from fastapi import Depends, FastAPI
from flask import Flask

from tests.support.http import client_of
from weblock import AlreadyHeld, AsyncLocks, Locks
from weblock.contrib.celery import LockedTask, WebLock
from weblock.contrib.celery import lease_of as lease_of_task
from weblock.contrib.fastapi import install, lock
from weblock.contrib.flask import WebLock as FlaskLock
from weblock.contrib.flask import lease_of
from weblock.contrib.kit import Book, LockSpec
from weblock.keys import in_order


async def test_fastapi_shares_and_refuses_an_upgrade(locks: AsyncLocks) -> None:
    """A request reads beside a reader; one that reads and then wants to write is a bug, and says so."""
    app = FastAPI()
    install(app, locks)

    @app.get("/reads", dependencies=[Depends(lock("x", shared=True, wait=0))])
    async def reads() -> str:
        return "read"

    @app.post(
        "/both",
        dependencies=[Depends(lock("x", shared=True, wait=0)), Depends(lock("x", wait=0))],
    )
    async def both() -> str:
        return "never"

    @app.post(
        "/writes",
        dependencies=[Depends(lock("x", wait=0)), Depends(lock("x", shared=True, wait=0))],
    )
    async def writes() -> str:
        return "written"

    async with client_of(app, raises=True) as client:
        async with locks.hold("x", shared=True):
            assert (await client.get("/reads")).json() == "read"
            assert (await client.post("/writes")).status_code == 409
        assert (await client.post("/writes")).json() == "written"
        with pytest.raises(AlreadyHeld) as refused:
            await client.post("/both")
        assert refused.value.upgrade
    assert await locks.inspect("x") is None


def test_flask_takes_the_stricter_of_two_locks(url: str) -> None:
    """Whichever of two decorators names it; a view with a shared lock runs beside another reader."""
    with Locks.from_url(url, wait=0) as locks:
        web, app = FlaskLock(locks=locks), Flask(__name__)
        web.init_app(app)

        @app.get("/reads")
        @web.lock("x", shared=True)
        def reads() -> str:
            return str(lease_of().shared)

        @app.get("/outside")
        @web.lock("x", shared=True)
        @web.lock("x")
        def outside() -> str:
            return str(lease_of().shared)

        @app.get("/inside")
        @web.lock("x")
        @web.lock("x", limit=3)
        def inside() -> str:
            return str(lease_of().limit)

        client = app.test_client()
        assert [client.get(f"/{name}").text for name in ("reads", "outside", "inside")] == [
            *("True", "False", "1")
        ]
        with ThreadPoolExecutor(1) as reader:
            lease = reader.submit(locks.acquire, "x", shared=True).result()
            assert client.get("/reads").text == "True"
            assert client.get("/outside").status_code == 409
            reader.submit(lease.release).result()


def test_a_celery_task_shares_its_key(url: str) -> None:
    """``lock_shared=True``, because ``shared=`` of ``@app.task`` is Celery's own; and ``limit=3``."""
    app = Celery("several", broker="memory://", set_as_current=False)
    with Locks.from_url(url, wait=0) as locks:
        WebLock(app, locks)

        @app.task(base=LockedTask, lock="x", lock_shared=True, shared=False)
        def reads() -> bool:
            return lease_of_task().shared

        @app.task(base=LockedTask, lock="y", limit=3, shared=False)
        def one_of_three() -> int:
            return lease_of_task().limit

        with ThreadPoolExecutor(1) as reader:
            lease = reader.submit(locks.acquire, "x", shared=True).result()
            assert reads() is True
            assert one_of_three() == 3
            reader.submit(lease.release).result()
    app.close()


@pytest.mark.parametrize("turned", [False, True])
def test_keys_are_acquired_in_one_order_whatever_engine_each_is_on(turned: bool) -> None:
    """Two engines of one server, with other options, are told apart, and by no number of their process."""
    engines = [Locks.from_url(f"redis://127.0.0.1:1?timeout={timeout}") for timeout in (1, 2)]
    try:
        one, two = reversed(engines) if turned else engines
        book = Book("POST", "/")
        y, x = (LockSpec.of([key], {}) for key in "yx")
        wanted = [(y, one, in_order(["y"])), (x, two, in_order(["x"]))]
        assert [spec for spec, _, _ in book.in_turn(wanted)] == [x, y]
    finally:
        for each in engines:
            each.close()
