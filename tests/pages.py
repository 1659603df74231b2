"""Runs the Python of a page of the docs: ``python -m tests.pages docs/middleware.md``.

Its blocks run from top to bottom, as one program that may ``await`` at its top level. What a reader
need not see stands in comments that begin with a line ``<!-- test``: what a block takes for granted
before it, and what it claims behind it. There, ``shown`` has the texts of all blocks so far, by
their language.
"""

import ast
import asyncio
import inspect
import os
import re
import sys
import warnings
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

_BLOCK = re.compile(
    r"^```(?P<language>\w+)\n(?P<shown>.*?)^```$|^<!-- test\n(?P<hidden>.*?)^-->$",
    re.MULTILINE | re.DOTALL,
)


class Block(NamedTuple):
    """A fenced block, or a hidden one; ``line`` is where its text begins."""

    language: str
    text: str
    line: int


def blocks_of(page: str) -> Iterator[Block]:
    """The blocks of a page, in their order."""
    for found in _BLOCK.finditer(page):
        language = found["language"] or "hidden"
        group = "shown" if found["language"] else "hidden"
        yield Block(language, found[group], page.count("\n", 0, found.start(group)))


async def run(blocks: Iterable[Block], page: str) -> None:
    """Runs a page. An error's traceback names the page and its line."""
    shown = defaultdict(list)
    module = ModuleType("__page__")
    module.shown = shown
    sys.modules[module.__name__] = module  # There frameworks look for what annotations name.
    for block in blocks:
        if block.language in ("python", "hidden"):
            await _run(block, page, vars(module))
        shown[block.language].append(block.text)


async def _run(block: Block, page: str, names: dict[str, object]) -> None:
    source = "\n" * block.line + block.text
    code = compile(source, page, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
    result = eval(code, names)
    if inspect.isawaitable(result):
        await result


def main() -> None:
    """Runs the page that the command names, and in the folder that it may name as well."""
    path, *folder = sys.argv[1:]
    if folder:
        _go_to(*folder)
    warnings.simplefilter("error")
    asyncio.run(run(blocks_of(Path(path).read_text()), path))


def _go_to(folder: str) -> None:
    """Makes it the folder from which Python was started, and has one stream for all that is said."""
    os.dup2(sys.stdout.fileno(), sys.stderr.fileno())
    os.environ["PYTHONPATH"] = str(Path.cwd())
    os.chdir(folder)
    sys.path.insert(0, folder)


if __name__ == "__main__":
    main()
