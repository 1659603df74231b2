"""Skipped tasks wherever a canvas of Celery can have a task, with a worker in this process."""

import functools
import gc
from concurrent.futures import ThreadPoolExecutor
from uuid import uuid4

import pytest
import redis
from celery import Celery, chord, group
from celery.contrib.testing.worker import start_worker
from celery.signals import setup_logging

from tests.servers import Server
from tests.support.waiting import PATIENCE
from weblock import Locks
from weblock.contrib.celery import WebLock

pytestmark = [  # They are Celery's.
    pytest.mark.filterwarnings("ignore:Call to deprecated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),
]

setup_logging.connect(
    lambda **_options: None, weak=False
)  # Else a worker sets the root logger's level.

HAS_REDIS = tuple(map(int, redis.__version__.split(".")[:2])) >= (6, 1)
"""Whether redis-py is as new as Celery's own transport needs it."""


@pytest.fixture(
    scope="module",
    params=[("cache+memory", "raise"), ("redis", "skip")],
    ids=" ".join,
)
def app(request):
    """A worker whose result backend counts the parts of a chord as most do, or as Redis does.

    The key of its task ``part`` is busy, when it runs (``on_busy="skip"``) or when it is sent (``unique``);
    ``app.ran`` lists the other tasks that have run.
    """
    engine, how = request.param
    if engine == "redis" and not HAS_REDIS:
        pytest.skip("Celery's own transport needs redis-py 6.1")
    options = {"on_busy": "skip"} if how == "skip" else {"unique": how, "unique_for": 60}
    server = Server() if engine == "redis" else None
    backend = f"redis://127.0.0.1:{server.port}/1" if server else "cache+memory://"
    app = Celery(uuid4().hex, broker="memory://", backend=backend, set_as_current=False)
    app.conf.task_default_queue = uuid4().hex  # All of one process share the broker.
    app.ran = ran = []
    task = functools.partial(app.task, shared=False)
    with Locks.from_url("memory://") as locks, ThreadPoolExecutor(1) as other:
        WebLock(app, locks)

        @task(name="part", lock="busy", **options)
        def part(*_args):
            ran.append("part")

        @task(name="work")
        def work(result):
            ran.append(result)
            return result

        @task(name="collect")
        def collect(results):
            return results

        @task(name="replaced", bind=True)
        def replaced(self):
            raise self.replace(part.si())

        app.how = how
        label = "somebody part[their-id]"
        lease = other.submit(locks.acquire, "busy", label=label).result()
        with start_worker(app, pool="solo", perform_ping_check=False):
            yield app
        other.submit(lease.release).result()
    gc.collect()  # The results that are left unsubscribe while there is a server.
    app.close()
    if server:
        server.close()


def named(app):
    """The signatures that canvases are made of: skipped, not run after it, run, a chord's body, replaced."""
    tasks = app.tasks
    return (
        tasks["part"].si(),
        tasks["work"].si("after"),
        tasks["work"].si("x"),
        tasks["collect"].s(),
        tasks["replaced"].si(),
    )


CANVASES = {
    "alone": (lambda s, a, x, c, r: s, None),
    "replaced": (lambda s, a, x, c, r: r, None),
    "chain": (lambda s, a, x, c, r: x | s | a | a, None),
    "chain with group": (lambda s, a, x, c, r: s | group(a, a), [None, None]),
    "chain with chord": (lambda s, a, x, c, r: s | chord([a, a], a) | a, None),
    "group": (lambda s, a, x, c, r: group(s, s | a, x), [None, None, "x"]),
    "header": (lambda s, a, x, c, r: chord([s, x | s | a, r, x], c), [None, None, None, "x"]),
    "replaced in header": (lambda s, a, x, c, r: chord([r | a, x], c), [None, "x"]),
    "group in header": (lambda s, a, x, c, r: chord([group(s, s), x], c), [None, None, "x"]),
    "chord in header": (
        lambda s, a, x, c, r: chord([chord([s, x], c), s | chord([a, a], a | a), x], c),
        [[None, "x"], None, "x"],
    ),
    "body": (lambda s, a, x, c, r: chord([x, x], s), None),
    "body with chain": (lambda s, a, x, c, r: chord([chord([x, x], s | a), x], c), [None, "x"]),
    "body with group": (lambda s, a, x, c, r: chord([x, x], s | group(a, a)), [None, None]),
    "link": (lambda s, a, x, c, r: s.set(link=[a, a | a], link_error=[a]), None),
    "groups in chain in header": (
        lambda s, a, x, c, r: chord([s | group(a | a, group(a, a)), x], c),
        [[None, None, None], "x"],
    ),
}


@pytest.mark.parametrize("canvas", CANVASES)
def test_a_canvas_ends_with_a_task_that_is_skipped(app, canvas):
    """Its result is ``None``, and so are those of what follows it and does not run; all else goes on."""
    if canvas == "groups in chain in header" and "redis" not in app.conf.result_backend:
        pytest.skip("Celery itself counts its parts wrong with other backends")
    if canvas in ("alone", "link") and app.how != "skip":
        pytest.skip("it is no part of a canvas, so its sender learns that it is a duplicate")
    make, expected = CANVASES[canvas]
    app.ran.clear()
    assert make(*named(app)).apply_async().get(timeout=PATIENCE, interval=0.01) == expected
    assert set(app.ran) <= {"x"}


def test_an_error_callback_is_skipped(app):
    """The task that called it keeps its own error."""
    failing = app.signature("collect", args=("one", "too many"), link_error=[app.signature("part")])
    with pytest.raises(TypeError, match="positional"):
        failing.apply_async().get(timeout=PATIENCE, interval=0.01)
