"""Servers that import the application once, and then fork their workers."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.contract.engines import ENGINES
from tests.servers.ports import free_port
from tests.servers.process import spawn
from tests.support.waiting import PATIENCE, eventually

from .sites import GUNICORN, TOP

APP = "tests.e2e.forking_app:app"

UWSGI = (
    "-c import&pyuwsgi;pyuwsgi.run() --http-socket=127.0.0.1:{port} --need-app --die-on-term"
    f" --master --processes=4 --module={APP}"
)

Ask = Callable[[str], Any]


@contextmanager
def serving(command: str, folder: Path, engine: str | list[str]) -> Iterator[Ask]:
    """Yields a function that sends a request; a server that does not end in time fails the test."""
    port, log = free_port(), folder / "log"

    def ask(path: str) -> Any:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=PATIENCE) as answer:
            return json.load(answer)

    def answers() -> bool:
        assert server.poll() is None, log.read_text()
        try:
            return bool(ask("/engine"))
        except OSError:
            return False

    words = [word.replace("&", " ") for word in command.format(port=port).split()]
    env = {
        "LOCKS": json.dumps(engine),
        "NAMESPACE": f"port-{port}",
        "COUNTER": f"{folder}/counter",
        "PYTHONPATH": str(TOP),
    }
    server = spawn([sys.executable, *words], log=log, env=env)
    try:
        eventually(answers)
        yield ask
    finally:
        server.terminate()
        server.wait(timeout=PATIENCE)
    assert "Traceback" not in log.read_text(), log.read_text()


CALLS = {
    "unannounced": "",
    "threads": "--enable-threads --threads=2",
    "osafterfork": "--py-call-osafterfork",
    "fork-hooks": "--py-call-uwsgi-fork-hooks --enable-threads",
}
"""What uWSGI calls in its workers: nothing, only the hooks after a fork, or all of them."""

SERVED = [
    *((each, "unannounced") for each, promises in ENGINES.items() if promises.processes),
    *(("file", call) for call in CALLS if call != "unannounced"),
]


@pytest.mark.parametrize(("engine", "call"), SERVED)
def test_workers_of_uwsgi_exclude_one_another(tmp_path: Path, engine: str, call: str) -> None:
    """Workers of a master that used its locks lose no update, renew their leases, and leave the master its own."""
    pytest.importorskip("pyuwsgi")
    if sys.version_info >= (3, 13) and call != "fork-hooks":
        pytest.skip("on Python 3.13, workers of uWSGI 2.0.30 need its fork hooks to end")
    url = ENGINES[engine].fresh_url(tmp_path)
    with serving(f"{UWSGI} {CALLS[call]}", tmp_path, url) as ask, ThreadPoolExecutor(8) as clients:
        counted = list(clients.map(ask, ["/count"] * 100))
        assert sorted(number for _worker, number in counted) == list(range(1, 101))
        assert ask("/renewed") > 0
        assert ask("/lease") == [False, 0, "forked", "forked", "forked", 0]
        assert ask("/locked")


@pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root changes users"
)
def test_workers_with_another_user_lock_in_its_directory() -> None:
    """Where a master of gunicorn imports the application as root, its workers lock in their own directory."""
    user = 40_000 + free_port()  # One that no process of this machine has.
    command = f"{GUNICORN} {APP} --preload --workers=2 --user={user}"
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="wl-")))
        folder.chmod(0o777)
        stack.callback(shutil.rmtree, f"/tmp/weblock-{user}", ignore_errors=True)
        ask = stack.enter_context(serving(command, folder, "file://"))
        clients = stack.enter_context(ThreadPoolExecutor(8))
        counted = list(clients.map(ask, ["/count"] * 100))
        assert sorted(number for _worker, number in counted) == list(range(1, 101))
        assert ask("/engine") == f"file:///tmp/weblock-{user}"
