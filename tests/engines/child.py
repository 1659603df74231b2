"""A process that runs the code it is told to; ``processes.Child`` is how a test has one.

Orders come in by stdin, one JSON string of Python a line; what the last expression of each is
worth goes out by stdout.
"""

from __future__ import annotations

import ast
import asyncio
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import weblock
import weblock.stores.file
from weblock import AsyncLocks, Locks


def main() -> None:
    """Does as it is told until nobody is there to tell it."""
    url = sys.argv[1]
    names: dict[str, Any] = {"url": url, "os": os, "time": time, "asyncio": asyncio}
    names |= {"AsyncLocks": AsyncLocks, "Locks": Locks, "weblock": weblock}
    for line in sys.stdin:
        try:
            outcome = {"value": run(json.loads(line), names)}
        except Exception as error:  # noqa: BLE001 - told to whoever asked
            outcome = {"error": type(error).__name__, "message": str(error)}
        os.write(1, json.dumps(outcome).encode() + b"\n")


def run(code: str, names: dict[str, Any]) -> Any:
    """Runs code; what its last expression is worth."""
    body = ast.parse(code).body
    last = body.pop() if body and isinstance(body[-1], ast.Expr) else None
    exec(compile(ast.Module(body, []), "<order>", "exec"), names)
    if last is None:
        return None
    return eval(compile(ast.Expression(last.value), "<order>", "eval"), names)


def count_up(url: str, path: str, times: int) -> None:
    """Adds to a number in a file, in sections that would lose updates if they overlapped."""
    with Locks.from_url(url, wait=None) as locks:
        for _ in range(times):
            with locks.hold("counter"):
                value = int(Path(path).read_text())
                time.sleep(0)
                Path(path).write_text(str(value + 1))
