"""docs/command-line.md: each example has the output that it shows."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.pages import blocks_of
from tests.servers import fresh_url
from tests.support.busy import busy
from weblock import Locks

from .programs import Program

PAGE = Path(__file__).parents[2] / "docs" / "command-line.md"
SHOP = """
import os
from typing import Annotated

from fastapi import Depends, FastAPI
from fastapi.security import OAuth2PasswordBearer
from weblock.contrib.fastapi import install, lock

app = FastAPI()
install(app, os.environ["WEBLOCK_URL"])

def current_user(token: Annotated[str, Depends(OAuth2PasswordBearer("token"))]): ...

locked = [Depends(current_user), Depends(lock("shop:{shop}", wait=1))]

@app.post("/shops/{shop}/items", dependencies=locked)
def create_item(shop: int): ...

@app.get("/shops/{shop}/items")
def list_items(shop: int): ...
"""


def examples() -> Iterator[tuple[str, str]]:
    for block in blocks_of(PAGE.read_text()):
        if block.language == "console":
            yield from re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", block.text, re.MULTILINE)


def normal(text: str) -> str:
    """What must be the same: not numbers and widths, nor which server it was."""
    # The servers of the tests have recovery=off and other tests' keys, which the doctor warns of.
    text = re.sub(
        r"^ +\w+ +(database|persistence|ttl) .*\n( +(Give the|Leave recovery|Set appendonly).*\n)?",
        "",
        text,
        flags=re.MULTILINE,
    )
    text = re.sub(r"127\.0\.0\.1|localhost", "HOST", text)
    text = re.sub(r"weblock:[0-9a-f]{32}", "weblock", text)
    text = re.sub(r"It is \w+ [\d.]+", "It is SERVER", text)
    text = re.sub(r"up for \d+ (s|min)\b", "up for N s", text)
    text = re.sub(r"(ahead of|behind) ours", "from ours", text)
    text = re.sub(r"\[[\d, ]+\]", "[N]", re.sub(r"\d+([.:e+-]+\d+)*", "N", text))
    return re.sub(r" +", " ", text)


@pytest.fixture
def url() -> str:
    return fresh_url()


@pytest.mark.usefixtures("patient")
def test_the_examples_are_true(run, url: str, tmp_path: Path, monkeypatch) -> None:
    """Whoever types the commands of the page sees what it shows, but for the numbers."""
    monkeypatch.setenv("WEBLOCK_URL", url)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shop.py").write_text(SHOP)
    done = set()
    with (
        Locks.from_url(url) as locks,
        busy(locks, "item:7", "web-1:4242", "web-2:977", "web-3:77"),
        busy(locks, "report:42", "web-3:77"),
    ):
        for command, shown in examples():
            _, name, *arguments = shlex.split(command)
            # In processes of their own only those that start one.
            ran = Program(url).run(name, *arguments) if name == "run" else run(name, *arguments)
            output = ran.stdout + ran.stderr
            assert normal(output) == normal(shown), f"$ {command}\n{output}"
            done.add(name)
    assert done == {
        *("list", "show", "watch", "release", "ping", "doctor", "run", "check"),
    }


def test_all_commands_and_codes_are_told(run) -> None:
    """The page has each command, each option and each exit code."""
    from weblock.cli import Code
    from weblock.cli.app import COMMANDS, App, app

    text = PAGE.read_text()
    assert isinstance(app, App)
    for name in COMMANDS:
        assert f"`{name}`" in text
        assert run(name, "--help").exit_code == 0
    assert all(f"| {code.value}" in text or code.value in (126, 127, 128) for code in Code)
    options = {
        option
        for each in (app.get_command(None, "run"),)  # type: ignore[arg-type]
        for parameter in each.params  # type: ignore[union-attr]
        for option in parameter.opts
        if option.startswith("--")
    }
    assert not {
        each for each in options - {"--label"} if f"`{each}" not in text and each not in text
    }
