"""The README: its programs run, and its facts are true."""

from __future__ import annotations

import json
import re
import sys
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from tests.pages import blocks_of
from tests.servers import fresh_url
from tests.servers.ports import free_port
from tests.servers.process import spawn
from tests.support.waiting import PATIENCE, eventually
from weblock import LockTimeout
from weblock.contrib.kit.problems import problem_of

TOP = Path(__file__).parents[2]
README = (TOP / "README.md").read_text()
START = "import os, sys; os.chdir(sys.argv.pop(1)); import uvicorn; uvicorn.main()"
"""Starts uvicorn in a folder, where the program then keeps its database."""


def block(language: str, beginning: str) -> str:
    (text,) = (
        each.text
        for each in blocks_of(README)
        if each.language == language and each.text.startswith(beginning)
    )
    return text


def test_the_program_of_the_readme_makes_three_items(tmp_path: Path) -> None:
    """Of eight simultaneous requests to the README's application, three make an item, as it shows."""
    (tmp_path / "app.py").write_text(block("python", "# app.py"))
    shown = re.findall(r"^\d{3}$", block("console", "$ pip install"), re.MULTILINE)
    assert shown == ["201"] * 3 + ["422"] * 5
    port = free_port()
    options = ["--workers=4", f"--port={port}", f"--app-dir={tmp_path}", "--log-level=warning"]
    server = spawn(
        [sys.executable, "-c", START, str(tmp_path), "app:app", *options], log=tmp_path / "log"
    )
    try:
        url = f"http://127.0.0.1:{port}"
        eventually(lambda: httpx.get(url).status_code == 404, despite=httpx.TransportError)

        def post(_number: int) -> str:
            # On a slow machine, a request can wait for longer than the 5 s that are the default.
            while (status := httpx.post(f"{url}/items", timeout=PATIENCE).status_code) == 409:
                pass
            return str(status)

        with ThreadPoolExecutor(8) as pool:
            assert sorted(pool.map(post, range(8))) == shown
    finally:
        server.terminate()
        server.wait()


def test_the_locks_of_the_readme_work() -> None:
    """The example without a framework runs on a real Redis."""
    names: dict[str, object] = {}
    source = block("python", "from weblock import Locks")
    exec(source.replace("redis://redis.internal", fresh_url()), names)
    names["locks"].close()


def test_a_client_gets_the_problem_that_the_readme_shows() -> None:
    """The body in the README is the body that a client gets for a busy key."""
    problem = problem_of(LockTimeout("item:7", wait=5))
    assert json.loads(block("json", "{")) == json.loads(problem.body)


@pytest.mark.parametrize("extra", ["redis", "postgresql", "zookeeper", "memcached", "fastapi"])
def test_the_extras_of_the_readme_exist(extra: str) -> None:
    """Each extra that the README tells a reader to install is one of the distribution."""
    project = tomllib.loads((TOP / "pyproject.toml").read_text())["project"]
    assert extra in project["optional-dependencies"]
    assert f"| `{extra}` |" in README or f"pyweblock[{extra}]" in README


def test_the_pages_of_newcomers_are_short() -> None:
    """The README has at most 900 words without its code, and the changelog at most 600."""
    changelog = (TOP / "CHANGELOG.md").read_text()
    assert words(README) <= 900
    assert len(changelog.split()) <= 600


def words(page: str) -> int:
    """Count the words of a page, without its code blocks and the targets of its links."""
    prose = re.sub(r"^```.*?^```|\]\([^)]*\)", " ", page, flags=re.MULTILINE | re.DOTALL)
    return sum(bool(re.search(r"\w", word)) for word in prose.split())
