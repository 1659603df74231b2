"""The programs that a reader of the README pastes and runs."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from tests.pages import blocks_of
from tests.servers.ports import free_port
from tests.servers.process import spawn
from tests.support.waiting import PATIENCE, eventually

README = Path(__file__).parents[2] / "README.md"


@pytest.mark.parametrize(
    ("file", "application"), [("app.py", "app:app"), ("shop.py", "shop:application")]
)
def test_a_program_of_the_readme_keeps_its_bound(
    file: str, application: str, tmp_path: Path
) -> None:
    """Two workers of each complete program get eight requests at once and make three items."""
    programs = [
        block.text for block in blocks_of(README.read_text()) if block.text.startswith(f"# {file}")
    ]
    (tmp_path / file).write_text(programs[0])
    port = free_port()
    options = ["--workers=2", f"--port={port}", f"--app-dir={tmp_path}", "--log-level=warning"]
    server = spawn(
        [sys.executable, "-c", START, str(tmp_path), application, *options], log=tmp_path / "log"
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
