"""The first thing that a reader of the README tries."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx

from tests.pages import blocks_of
from tests.servers.ports import free_port
from tests.servers.process import spawn
from tests.support.waiting import PATIENCE, eventually

README = Path(__file__).parents[2] / "README.md"


def test_the_first_program_keeps_its_bound(tmp_path: Path) -> None:
    """Four workers of the program that the README begins with get eight requests at once."""
    program = next(blocks_of(README.read_text()))
    (tmp_path / "app.py").write_text(program.text)
    port = free_port()
    options = ["--workers=4", f"--port={port}", f"--app-dir={tmp_path}", "--log-level=warning"]
    server = spawn(
        [sys.executable, "-c", START, str(tmp_path), "app:app", *options], log=tmp_path / "log"
    )
    try:
        url = f"http://127.0.0.1:{port}"
        eventually(lambda: httpx.get(url).status_code == 404, despite=httpx.TransportError)

        def post(_number: int) -> int:
            # On a slow machine a request may wait for longer than the five seconds of the default.
            while (status := httpx.post(f"{url}/items", timeout=PATIENCE).status_code) == 409:
                pass
            return status

        with ThreadPoolExecutor(8) as pool:
            statuses = sorted(pool.map(post, range(8)))
        assert statuses == [201] * 3 + [422] * 5
    finally:
        server.terminate()
        server.wait()


START = "import os, sys; os.chdir(sys.argv.pop(1)); import uvicorn; uvicorn.main()"
"""Uvicorn in a folder, where the program then keeps its database."""
