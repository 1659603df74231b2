"""``weblock.contrib.celery`` on real workers with a real broker, which are killed and stopped."""

import os
import signal
import sys
from contextlib import contextmanager, suppress
from pathlib import Path

import celery
import pytest
import redis
from celery import Celery

from tests.servers import Server, fresh_url
from tests.servers.process import spawn
from tests.support.waiting import eventually, waiters
from weblock import Locks
from weblock.contrib.celery import AlreadyQueued, WebLock

pytestmark = pytest.mark.skipif(
    tuple(map(int, redis.__version__.split(".")[:2])) < (6, 1),
    reason="Celery's own transport needs redis-py 6.1",
)

LONG = "WEBLOCK_LONG" in os.environ
SKIPPED = pytest.mark.skip(reason="it starts several workers: WEBLOCK_LONG=1")
TOP = Path(__file__).parents[2]

POOLS = {
    "prefork": ("--pool", "prefork", "--concurrency", "2"),
    "threads": ("--pool", "threads", "--concurrency", "4"),
    "gevent": ("--pool", "gevent", "--concurrency", "4"),
    "solo": ("--pool", "solo"),
}


class Site:
    """A broker, an engine, and workers that share a folder."""

    def __init__(self, folder, broker):
        self.folder = folder
        url = f"redis://127.0.0.1:{broker.port}/0"
        engine = fresh_url(recovery="off")
        self.client = Celery(broker=url, set_as_current=False)
        self.locks = Locks.from_url(engine)
        self.env = {
            "C_FORCE_ROOT": "1",
            "PYTHONPATH": str(TOP),
            "PYTHONWARNINGS": "ignore",  # That it runs as root.
            "TASKS_BROKER": url,
            "TASKS_FOLDER": str(folder),
            "TASKS_LOCKS": engine,
        }

    @contextmanager
    def worker(self, name, pool, *options):
        """A worker that is ready; its log is shown if the test fails."""
        log = self.log_of(name)
        command = [
            sys.executable,
            "-m",
            "celery",
            "--app",
            "tests.contrib.celery_worker:app",
            "worker",
        ]
        alone = ("--without-gossip", "--without-mingle", "--without-heartbeat")
        named = ("--hostname", f"{name}@test", "--loglevel", "INFO")
        command += [*alone, *named, *POOLS[pool], *options]
        process = spawn(command, log=log, env=self.env)
        try:
            eventually(lambda: " ready." in log.read_text())
            yield process
        except BaseException:
            print(log.read_text())  # noqa: T201 - pytest shows it
            raise
        finally:
            process.kill()
            process.wait()

    def log_of(self, name):
        return self.folder / f"{name}.log"

    def send(self, *names):
        """Sends sections of one key; returns their ids."""
        return [self.client.send_task("section", ("k", name)).id for name in names]

    def told(self, *marks):
        """Waits until tasks have told this: ``begun-NAME`` or ``ended-NAME``."""
        eventually(lambda: all((self.folder / mark).exists() for mark in marks))

    def let_end(self, *names):
        for name in names:
            (self.folder / f"go-{name}").touch()

    @property
    def holder(self):
        info = self.locks.inspect("section:k")
        return info.holder if info else None


@pytest.fixture
def site(tmp_path):
    """A broker of this test's own, since a worker that is killed leaves messages in it."""
    broker = Server()
    site = Site(tmp_path, broker)
    with site.locks:
        yield site
    site.client.close()
    broker.close()


def test_a_worker_and_its_end(site):
    """No task is lost with its process, processes take turns, and a worker that stops ends its task."""
    with site.worker("one", "prefork") as worker:
        # Its process is killed, and the key busy, when it is delivered again: but by itself.
        site.client.send_task("killed")
        site.told("begun-killed", "ended-killed")

        (first,) = site.send("first")
        site.told("begun-first")
        (second,) = site.send("second")
        eventually(lambda: waiters(site.locks, "section:k") == 1)
        assert site.holder.endswith(f"section[{first}]")
        site.let_end("first")
        site.told("ended-first", "begun-second")

        worker.send_signal(signal.SIGTERM)
        eventually(lambda: "Warm shutdown" in site.log_of("one").read_text())
        assert site.holder.endswith(f"section[{second}]")
        site.let_end("second")
        assert worker.wait() == 0
        site.told("ended-second")
        assert site.holder is None


@pytest.mark.skipif(not LONG, reason="it starts several workers: WEBLOCK_LONG=1")
@pytest.mark.parametrize("pool", POOLS)
def test_another_worker_goes_on(site, pool):
    """A worker that is killed while it holds a key frees it within the ttl, whatever the pool."""
    with site.worker("one", pool) as worker:
        site.send("first")
        begun = site.folder / "begun-first"
        eventually(lambda: begun.exists() and begun.read_text())
        killed(worker, begun)
    (site.folder / "inside").unlink()
    with site.worker("two", pool):
        site.send("second", "third")
        site.let_end("second", "third")
        site.told("ended-second", "ended-third")
    eventually(lambda: site.holder is None)


def killed(worker, begun):
    """Kills a worker together with the process that has written its id into a file."""
    worker.kill()
    with suppress(ProcessLookupError):  # Only a process of a prefork pool is still there.
        os.kill(int(begun.read_text()), signal.SIGKILL)
    worker.wait()


@pytest.fixture
def unique(site):
    """The task ``unique`` of ``celery_worker``, as it is sent."""
    WebLock(site.client, site.locks)

    @site.client.task(name="unique", lock="unique:{0}", unique="raise", unique_for=60)
    def unique(_key, _name):
        """What the worker does is in ``celery_worker``."""

    return unique


def is_queued(unique):
    """Whether the key is taken, so that another task is not sent."""
    try:
        unique.delay("k", "another")
    except AlreadyQueued:
        return True
    return False


@pytest.mark.parametrize(
    "pool",
    [pool if pool == "prefork" or LONG else pytest.param(pool, marks=SKIPPED) for pool in POOLS],
)
def test_a_unique_task_in_a_worker(site, unique, pool):
    """Whatever becomes of a unique task, the next one is sent when it has ended, and not before."""

    def is_free():
        return site.locks.inspect("unique:k") is None

    lost = site.client.task(name="lost", lock="unique:k", unique="raise", unique_for=0.5)(is_free)
    lost.delay()
    site.client.control.purge()
    eventually(is_free)
    options = ("--max-tasks-per-child", "1") if pool == "prefork" else ()
    with site.worker("one", pool, *options) as worker:
        eventually(
            lambda: site.client.control.ping(timeout=1, limit=1)
        )  # It listens to revocations.
        revoked = unique.apply_async(("k", "revoked"), countdown=3)  # Longer than the worker's ttl.
        site.client.control.revoke(revoked.id)
        assert is_queued(unique)
        eventually(is_free)
        assert not (site.folder / "begun-revoked").exists()

        unique.apply_async(("k", "later"), countdown=3)
        assert is_queued(unique)
        site.told("begun-later")
        assert is_queued(unique)
        site.let_end("later")
        eventually(is_free)

        unique.delay("k", "retried")
        site.told("begun-retried")
        eventually(lambda: site.locks.inspect("unique:k").remaining > 30)  # It waits again.
        assert is_queued(unique)
        site.let_end("retried")
        site.told("ended-retried")
        eventually(is_free)

        if pool in {"prefork", "gevent"}:  # Celery cannot terminate a task of the others.
            terminated = unique.delay("k", "terminated")
            site.told("begun-terminated")
            site.client.control.revoke(terminated.id, terminate=True)
            eventually(is_free)
            assert not (site.folder / "ended-terminated").exists()
        if pool == "prefork":
            unique.delay("k", "killed")
            site.told("begun-killed")
            assert is_queued(unique)
            site.let_end("killed")
            site.told("ended-killed")
            eventually(is_free)
        unique.delay("k", "last")
        site.told("begun-last")
        assert is_queued(unique)
        worker.send_signal(signal.SIGTERM)
        eventually(lambda: "Warm shutdown" in site.log_of("one").read_text())
        site.let_end("last")
        assert worker.wait() == 0
        site.told("ended-later", "ended-last")
    assert is_free()


LOST = {"solo", "gevent"}
"""Celery acknowledges the message of a task that is stopped by a cold shutdown in these pools."""


@pytest.mark.parametrize(
    ("pool", "end"),
    [
        pytest.param(pool, end, marks=() if (pool, end) == ("prefork", "cold") or LONG else SKIPPED)
        for pool in POOLS
        for end in ("cold", "killed")
        # A worker of threads waits for its tasks, and one of solo did before Celery 5.7.
        if (pool, end) != ("threads", "cold")
        and ((pool, end) != ("solo", "cold") or celery.VERSION >= (5, 7))
    ],
)
def test_a_unique_task_outlives_its_worker(site, unique, pool, end):
    """After a cold shutdown or a kill, the key is free, and the next worker runs what is delivered again."""
    with site.worker("one", pool) as worker:
        unique.delay("k", "first")
        begun = site.folder / "begun-first"
        eventually(lambda: begun.exists() and begun.read_text())
        if end == "killed":
            killed(worker, begun)
        else:
            worker.send_signal(signal.SIGQUIT)
            worker.wait()
    assert not (site.folder / "ended-first").exists()
    begun.unlink()
    eventually(lambda: site.locks.inspect("unique:k") is None)
    if end == "cold" and pool in LOST:
        return
    with site.client.connection_for_write(transport_options={"visibility_timeout": 0}) as broker:
        broker.default_channel.qos.restore_visible()
    with site.worker("two", pool):
        site.told("begun-first")
        assert is_queued(unique)
        site.let_end("first")
        site.told("ended-first")
        eventually(lambda: site.locks.inspect("unique:k") is None)
