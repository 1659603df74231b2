"""Tasks with ``lock=``, which commit before they return. A call of a task takes the place of a request."""

from __future__ import annotations

import threading
from typing import Any, ClassVar, Self

from celery import Celery

from tests.contrib.contract.driver import Call, Response, some
from tests.contrib.contract.driver import Driver as Base
from tests.contrib.contract.promises import (
    FRESH,
    HELD_ALREADY,
    LEAVES_QUEUE,
    ROLLED_BACK,
    RUNS_TO_ITS_END,
    SLOW_CLIENT,
    SPELLINGS,
    STALE,
    STREAM,
    THREADS,
    TIMING,
)
from tests.support.waiting import PATIENCE
from weblock.contrib.celery import WebLock, lease_of
from weblock.contrib.kit import problem_of

NO_CLIENT = "A task has no client"


class Driver(Base):
    """An application whose tasks run in threads."""

    name = "Celery"
    folder = "celery"
    exempt: ClassVar = {
        **dict.fromkeys((SLOW_CLIENT, STREAM, LEAVES_QUEUE, RUNS_TO_ITS_END, TIMING), NO_CLIENT),
        THREADS: 'A task that waits keeps its place in the worker; `on_busy="retry"` gives it back',
        **dict.fromkeys(
            (ROLLED_BACK, STALE, FRESH),
            "A task opens its own sessions inside the lock, and guards them"
            " ([`guard(session, lease)`](guard.md#sqlalchemy))",
        ),
        SPELLINGS: "A task has no URL",
        HELD_ALREADY: "It raises `AlreadyHeld`",
    }

    def __enter__(self) -> Self:
        site = self.site
        app = self._app = Celery("contract", broker="memory://", set_as_current=False)
        WebLock(app, site.url, wait=site.wait)

        def work(*_: object) -> str:
            site.handle(lease_of())
            site.commit()
            return "done"

        keys: dict[str, Any] = {
            "items": "item:{0}",
            "names": "name:{0}",
            "pairs": ["item:{0}", "item:{1}"],
        }
        for name, key in keys.items():
            app.task(name=name, lock=key, shared=False)(work)

        @app.task(name="some", lock=lambda item_id: some(int(item_id)), shared=False)
        def of_some(item_id: str) -> str:
            site.handle(lease_of() if int(item_id) else None)
            return "done"

        app.finalize()  # As a worker does: tasks that several threads finalize at once are not ready.
        return self

    def __exit__(self, *_: object) -> None:
        self._app.close()

    def send(self, path: str, *, reading: bool = True) -> Call:
        name, *arguments = path.strip("/").split("/")
        return TaskCall(self._app.tasks[name], arguments)


class TaskCall(Call):
    """A task that is called as a worker calls it."""

    def __init__(self, task: Any, arguments: list[str]) -> None:
        self._run = lambda: task.apply(arguments)
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        self._result = self._run().result

    @property
    def response(self) -> Response:
        self._thread.join(PATIENCE)
        if not isinstance(self._result, BaseException):
            return Response(200, self._result.encode())
        problem = problem_of(self._result)
        if problem is None:
            return Response(500)
        headers = {name.lower(): value for name, value in problem.headers.items()}
        return Response(problem.status, problem.body, headers)
