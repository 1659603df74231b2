"""The documented cases of celery-once, celery-singleton and rq's ``unique``, by the options of a unique task.

Each case is a task, two calls of it, and whether the second is a duplicate of the first while that one is
queued. What these packages do otherwise on purpose is in ``docs/celery.md``.
"""

import functools
import itertools
import uuid

import pytest
from celery import Celery

from weblock import Locks
from weblock.contrib.celery import AlreadyQueued, WebLock

numbers = itertools.count()
SOME_ID = uuid.UUID(int=7)


def none():
    """A task without arguments."""


def pair(a, b=2):
    """A task whose key may name one of its arguments, or both."""


def bound(self, a, b=2):
    """A task that gets itself."""


def many(*args):
    """A task with any arguments."""


def every(**arguments):
    """Return a key of all arguments, as these packages make it unless they are told which."""
    return f"all:{sorted(arguments.items())}"


CASES = {
    # celery-once: README, tests/unit/test_tasks.py, tests/unit/test_helpers.py
    "once: no arguments": (none, "job", ((), {}), ((), {}), True),
    "once: equal arguments": (pair, "job:{a}:{b}", ((1, 1), {}), ((1, 1), {}), True),
    "once: other arguments": (pair, "job:{a}:{b}", ((1, 1), {}), ((1, 2), {}), False),
    "once: by place and by name": (pair, "job:{a}:{b}", ((1, 2), {}), ((), {"a": 1, "b": 2}), True),
    "once: keys=['a']": (pair, "job:{a}", ((1, 1), {}), ((1, 2), {}), True),
    "once: keys=['a'], another a": (pair, "job:{a}", ((1, 1), {}), ((2, 1), {}), False),
    "once: keys=[]": (pair, "job", ((1, 1), {}), ((2, 2), {}), True),
    "once: bind=True": (bound, "job:{a}:{b}", ((1, 2), {}), ((), {"a": 1, "b": 2}), True),
    "once: not ASCII": (pair, "é:{a}", (("é",), {}), (("é",), {}), True),
    "once: nested": (pair, every, (({"a": [1, "2"]},), {}), (({"a": [1, "2"]},), {}), True),
    # celery-singleton: README, tests/test_singleton.py
    "singleton: duplicates": (many, every, ((1, 2, 3), {}), ((1, 2, 3), {}), True),
    "singleton: others": (many, every, ((1, 2, 3), {}), ((2, 3, 4), {}), False),
    "singleton: unique_on, a default": (pair, "job:{b}", ((1,), {}), ((3,), {"b": 2}), True),
    "singleton: JSON encoder": (pair, "job:{a}", ((SOME_ID,), {}), ((str(SOME_ID),), {}), True),
    # rq: the page on jobs, where an id is given
    "rq: job_id": (many, "daily", ((1,), {}), ((2,), {}), True),
}


@pytest.fixture
def app(url):
    """An application whose messages no worker gets."""
    name = f"cases{next(numbers)}"
    app = Celery(name, broker="memory://", backend="cache+memory://", set_as_current=False)
    app.task = functools.partial(app.task, shared=False, unique_for=600)
    with Locks.from_url(url) as locks:
        WebLock(app, locks)
        yield app
    app.close()


@pytest.mark.parametrize("case", CASES)
def test_a_documented_case(app, case):
    """The second call is a duplicate where theirs is one, and is told of the first in each of three ways."""
    work, lock, first, second, is_duplicate = CASES[case]
    bind = work is bound
    job, joining, dropped = (
        app.task(name=how, lock=lock, unique=how, bind=bind)(work)
        for how in ("raise", "join", "drop")
    )
    queued = job.apply_async(*first)
    if not is_duplicate:
        assert job.apply_async(*second).id != queued.id
        return
    with pytest.raises(AlreadyQueued) as error:
        job.apply_async(*second)
    assert error.value.task_id == queued.id
    assert joining.apply_async(*second) == queued
    assert dropped.apply_async(*second) is None
