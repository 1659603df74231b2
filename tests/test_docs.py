"""Every page of the docs: what it shows is run."""

import subprocess
import sys
from pathlib import Path
from subprocess import PIPE

import pytest

from tests.support.nursery import AVAILABLE, Forked, nursery

from .pages import blocks_of

TOP = Path(__file__).parents[1]
PAGES = sorted(
    path
    for path in TOP.glob("docs/**/*.md")
    if any(block.language == "python" for block in blocks_of(path.read_text()))
)

IMPORTED = (
    "tests.pages",
    "httpx",
    "fastapi",
    "redis.asyncio",
    "sqlalchemy.ext.asyncio",
    "django.test",
    "flask",
)
"""What takes longest to import. Of weblock nothing: each page shows itself what has to be imported."""


def run(page, folder):
    """Runs a page in a process and a folder of its own, since a page may change both; how it ends."""
    if AVAILABLE:
        process = Forked(nursery(*IMPORTED), "tests.pages", str(page), str(folder))
    else:
        command = [sys.executable, "-m", "tests.pages", str(page), str(folder)]
        process = subprocess.Popen(command, cwd=TOP, stdin=PIPE, stdout=PIPE)
    with process.stdin, process.stdout as said:
        text = said.read().decode()
    return process.wait(), text


@pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(TOP / "docs")) for page in PAGES])
def test_the_code_of_a_page_runs(page, tmp_path):
    """Whoever copies the blocks of a page, from top to bottom, has a program that works."""
    code, said = run(page, tmp_path)
    assert code == 0, said


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("```python\nx = 1\n```\n\n<!-- test\nassert x == 1\nassert x == 2\n-->\n", 7),
        ("```python\nimport asyncio\nawait asyncio.sleep(0)\n\nraise KeyError\n```\n", 5),
    ],
    ids=["claim", "error"],
)
def test_a_wrong_page_is_found_out(text, line, tmp_path):
    """A block that fails, or a claim that is not true, fails at its line."""
    page = tmp_path / "page.md"
    page.write_text(text)
    code, said = run(page, tmp_path)
    assert code
    assert f'page.md", line {line}, in' in said
