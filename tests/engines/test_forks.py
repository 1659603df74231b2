"""Children that share what their parent had open."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.waiting import PATIENCE, eventually, waiters
from weblock import Locks, LockTimeout

from .keys import keys_in, record_of
from .processes import Child

COLLECTED = """
import gc, os, sys
# Others that heed forks come first, and the collector may run in any of them.
os.register_at_fork(after_in_child=lambda: gc.isenabled() and gc.collect())
from weblock import Locks

def section(cycle, leases):
    with Locks.from_url(sys.argv[1]) as locks, locks.hold("k", ttl=3600) as lease:
        leases.append(lease)
        yield cycle

def forgotten():
    cycle, leases = [], []
    cycle.append(section(cycle, leases))
    next(cycle[0])
    return leases.pop()

gc.set_threshold(1_000_000)  # The parent itself does not come to it.
lease = forgotten()
pid = os.fork()
if pid == 0:
    os._exit(0)
os.waitpid(pid, 0)
print(lease.held, flush=True)
sys.stdin.read()
"""
"""Leaves locks to the collector, which may not have come to them when the process forks."""

FORK = """
if os.fork() == 0:
    os.read(0, 1)  # Lives until the test closes the pipe to its parent.
    os._exit(0)
"""


def test_the_death_of_a_holder_is_noticed_although_its_child_lives(
    locks: Locks, child: Callable[..., Child]
) -> None:
    """A forked child does not keep its parent alive in the eyes of others."""
    parent = child().open(ttl=3600)
    parent.run("lease = locks.acquire('k')")
    parent.run(FORK)
    with pytest.raises(LockTimeout):
        locks.acquire("k", wait=0)
    parent.kill()
    locks.acquire("k", wait=PATIENCE).release()


def test_one_who_waits_notices_the_death_of_a_holder_although_its_child_lives(
    locks: Locks, child: Callable[..., Child]
) -> None:
    """The same for one who was already waiting when the parent died."""
    parent, waiter = child().open(ttl=3600), child().open()
    parent.run("lease = locks.acquire('k')")
    parent.run(FORK)
    waiter.begin("locks.acquire('k', wait=None).fence")
    eventually(lambda: waiters(locks, "k") == 1)
    parent.kill()
    assert waiter.outcome() > 0


def test_a_fork_while_threads_are_inside_record_files_leaves_nothing_locked(
    locks: Locks, folder: Path, child: Callable[..., Child]
) -> None:
    """Neither the children nor the files are stuck, and the death of the parent frees its keys."""
    keys = keys_in(record_of(folder, "k"), 4)
    parent = child().open(ttl=3600, wait=None)
    parent.run(f"""
    import threading
    def hammer(key):
        while True:
            with locks.hold(key):
                pass
    for key in {keys!r}:
        threading.Thread(target=hammer, args=(key,), daemon=True).start()
    """)
    fences = parent.run("""
    heard, told = os.pipe()
    def child():
        os.write(told, b"%d\\n" % locks.acquire("of the children").fence)
        os.read(0, 1)
    for _ in range(20):
        if os.fork() == 0:
            try:
                child()
            finally:
                os._exit(0)
    lines = b""
    while lines.count(b"\\n") < 1:
        lines += os.read(heard, 1000)
    [int(line) for line in lines.split()]
    """)
    assert fences[0] > 0
    parent.kill()
    for key in keys:
        locks.acquire(key, wait=PATIENCE).release()


def test_a_fork_while_a_record_file_is_opened_inherits_none(child: Callable[..., Child]) -> None:
    """It comes before or after: a child would keep a file locked that it does not know of."""
    slow = """
    import threading
    from weblock.stores.file.directory import Directory
    opening, open_file = threading.Event(), Directory.open_file
    def open_slowly(self, name):
        fd = open_file(self, name)
        if name.startswith("records-"):
            opening.set()
            threading.Event().wait(0.1)
        return fd
    Directory.open_file = open_slowly
    """
    parent = child(before=slow).open()
    inherited = parent.run("""
    threading.Thread(target=locks.acquire, args=("k",), daemon=True).start()
    opening.wait()
    heard, told = os.pipe()
    if os.fork() == 0:
        links = [os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")
                 if os.path.exists(f"/proc/self/fd/{fd}")]
        os.write(told, b"%d\\n" % sum("records-" in link for link in links))
        os._exit(0)
    int(os.read(heard, 100))
    """)
    assert inherited == 0


def test_what_a_child_collects_first_is_not_ended_for_its_parent(locks: Locks) -> None:
    """A generator that has locks open may be collected in the child before that knows whose they are."""
    code = [sys.executable, "-c", COLLECTED, locks.engine]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(code, text=True, **pipes) as parent:  # type: ignore[call-overload]
        assert parent.stdout.readline() == "True\n"
        with pytest.raises(LockTimeout):
            locks.acquire("k", wait=0)


def test_no_thread_of_a_child_collects_what_one_of_its_parent_did(
    child: Callable[..., Child],
) -> None:
    """A lease ends in the thread that releases it, though its parent forked while another collected."""
    parent = child().open(wait=PATIENCE)
    elsewhere = parent.run("""
    import gc, threading
    from weblock._platform.threads import runs_here
    collects, goes_on = threading.Event(), threading.Event()
    class Slow:
        def __init__(self):
            self.itself = self
        def __del__(self):
            collects.set()
            goes_on.wait()
    def collect():
        Slow()
        gc.collect()
    collecting = threading.Thread(target=collect)
    collecting.start()
    collects.wait()
    heard, told = os.pipe()
    def section(all_run):
        all_run.wait()
        with locks.hold("k"):
            os.write(told, b"%d" % runs_here())
    if os.fork() == 0:
        try:
            all_run = threading.Barrier(8)  # One of them has the identifier of the parent's thread.
            threads = [threading.Thread(target=section, args=(all_run,)) for _ in range(8)]
            for each in threads:
                each.start()
            for each in threads:
                each.join()
        finally:
            os._exit(0)
    os.wait()
    goes_on.set()
    collecting.join()
    os.read(heard, 100).decode()
    """)
    assert elsewhere == "00000000"


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_workers_of_multiprocessing_exclude_one_another(
    tmp_path: Path, method: str, child: Callable[..., Child]
) -> None:
    """However they are started, also by a parent that holds a lease and has threads."""
    counter = tmp_path / "counter"
    counter.write_text("0")
    parent = child().open(wait=None)
    parent.run(f"""
    import multiprocessing
    from tests.engines.child import count_up
    context = multiprocessing.get_context({method!r})
    with locks.hold("counter"):
        workers = [
            context.Process(target=count_up, args=(url, {str(counter)!r}, 25)) for _ in range(3)
        ]
        for worker in workers:
            worker.start()
    count_up(url, {str(counter)!r}, 25)
    for worker in workers:
        worker.join()
    """)
    assert counter.read_text() == "100"
