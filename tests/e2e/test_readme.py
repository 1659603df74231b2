"""The programs that a reader of the README pastes and runs."""

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


def test_the_programs_of_the_readme_keep_their_bounds(tmp_path: Path) -> None:
    """Two workers of each complete program, one after the other in one folder, make three items of eight."""
    for file, application in [("app.py", "app:app"), ("shop.py", "shop:application")]:
        assert answers_of(file, application, tmp_path) == [201] * 3 + [422] * 5, file


def answers_of(file: str, application: str, folder: Path) -> list[int]:
    """Run a program in a folder, send it eight requests at once, and return the sorted status codes."""
    programs = [
        block.text for block in blocks_of(README.read_text()) if block.text.startswith(f"# {file}")
    ]
    (folder / file).write_text(programs[0])
    port = free_port()
    options = ["--workers=2", f"--port={port}", f"--app-dir={folder}", "--log-level=warning"]
    server = spawn(
        [sys.executable, "-c", START, str(folder), application, *options], log=folder / "log"
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
            return sorted(pool.map(post, range(8)))
    finally:
        server.terminate()
        server.wait()


START = "import os, sys; os.chdir(sys.argv.pop(1)); import uvicorn; uvicorn.main()"
"""Uvicorn in a folder, where the program then keeps its database."""
