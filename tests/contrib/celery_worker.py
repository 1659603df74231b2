"""An application of Celery for a real worker, whose tasks tell what they do, and wait to be let go."""

import os
import signal
import time
from pathlib import Path

from celery import Celery

from weblock.contrib.celery import WebLock, lease_of

FOLDER = Path(os.environ.get("TASKS_FOLDER", "."))
"""A task that has begun is a file ``begun-NAME`` there, one that may end ``go-NAME``, one that has ended
``ended-NAME``.
"""

app = Celery("worker", set_as_current=False)
app.conf.update(
    broker_url=os.environ.get("TASKS_BROKER"),
    broker_connection_retry_on_startup=True,
    broker_transport_options={
        "visibility_timeout": int(os.environ.get("TASKS_VISIBILITY", "3600"))
    },
    worker_prefetch_multiplier=1,
)
web = WebLock(app, os.environ.get("TASKS_LOCKS"), wait=None)

if "TASKS_LOCKS" in os.environ:
    with web.locks.hold(f"used before the fork by {os.getpid()}"):
        pass


@app.task(name="section", lock="section:{0}", acks_late=True)
def section(_key, name):
    """Ends when it may; another one in here at the same time would be noticed."""
    inside = FOLDER / "inside"
    inside.touch(exist_ok=False)
    begun(name)
    while not (FOLDER / f"go-{name}").exists():
        time.sleep(0.01)
    inside.unlink()
    lease_of().check()
    (FOLDER / f"ended-{name}").touch()


@app.task(
    name="killed", lock="killed", ttl=2, on_busy="skip", acks_late=True, reject_on_worker_lost=True
)
def killed():
    if begun("killed"):
        os.kill(os.getpid(), signal.SIGKILL)
    (FOLDER / "ended-killed").touch()


@app.task(
    name="unique",
    bind=True,
    lock="unique:{0}",
    unique="raise",
    unique_for=60,
    ttl=2,
    acks_late=True,
    reject_on_worker_lost=True,
)
def unique(self, _key, name):
    """Is killed inside its lock, or tries again, the first time if its name says so; ends when it may."""
    first = begun(name)
    if first and name == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if first and name == "retried":
        raise self.retry(countdown=3)
    while not (FOLDER / f"go-{name}").exists():
        time.sleep(0.01)
    lease_of().check()
    (FOLDER / f"ended-{name}").touch()


def begun(name):
    """Says that a task has begun; whether that is the first time."""
    file = FOLDER / f"begun-{name}"
    first = not file.exists()
    file.write_text(str(os.getpid()))
    return first
