"""Threads where Python has other rules for them: ones that inherit a context, and subinterpreters."""

from __future__ import annotations

import ast
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from weblock import ConfigurationError, Locks
from weblock._platform import threads

SOURCE = Path(__file__).parents[1] / "src" / "weblock"

INHERITING = (sys.executable, "-X", "thread_inherit_context=1")
"""Python, whose threads inherit the context of what starts them from 3.14 on. Older ones ignore the option."""


def test_threads_of_applications_are_made_in_one_place() -> None:
    """``background_thread`` makes every thread but those of the commands, and those for tests."""
    found = {
        str(path.relative_to(SOURCE))
        for path in SOURCE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and node.attr in {"Thread", "ThreadPoolExecutor"}
    }
    assert {each for each in found if not each.startswith(("cli/", "testing/"))} == {
        "_platform/threads.py"
    }


def test_the_threads_of_an_engine_have_an_empty_context() -> None:
    """What its first user has in its context is not there when an observer or callback runs in them."""
    code = """
import contextvars, queue, weblock
request = contextvars.ContextVar("request", default=None)
request.set("the first")
lost = queue.SimpleQueue()
with weblock.Locks.from_url("memory://") as locks:
    locks.acquire("key", ttl=0.2, renew=False).on_lost(lambda: lost.put(request.get()))
    print(lost.get())
"""
    done = subprocess.run([*INHERITING, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "None\n"


def test_a_thread_that_inherits_a_context_waits_for_its_parent() -> None:
    """It is another caller than the thread that has started it while it held the key."""
    code = """
import threading, time, weblock
with weblock.Locks.from_url("memory://", wait=60) as locks:
    def work():
        with locks.hold("key"):
            print("the thread")
    with locks.hold("key"):
        thread = threading.Thread(target=work)
        thread.start()
        while not locks.inspect("key").waiters and thread.is_alive():
            time.sleep(0.01)
        print("its parent")
    thread.join()
"""
    done = subprocess.run([*INHERITING, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "its parent\nthe thread\n"


def test_without_daemon_threads_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where Python refuses a daemon thread, locks are refused when they are opened."""

    class Refused(threading.Thread):
        def __init__(self, **_: object) -> None:
            raise RuntimeError("daemon threads are disabled")

    monkeypatch.setattr(threads.threading, "Thread", Refused)
    with pytest.raises(ConfigurationError, match="Use it in the main interpreter"):
        Locks.from_url("memory://?of=nobody")


@pytest.mark.skipif(sys.version_info < (3, 14), reason="there is no module for it before")
@pytest.mark.parametrize("url", ["memory://", "redis://localhost"])
def test_a_subinterpreter_is_refused(url: str) -> None:
    """Before the driver fails, which cannot be imported there either."""
    code = f"""
from concurrent import interpreters
import sys
inner = interpreters.create()
inner.exec('''
import weblock
try:
    weblock.Locks.from_url("{url}")
except weblock.ConfigurationError as error:
    print(error)
''')
inner.close()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "cannot be used in this subinterpreter" in done.stdout
