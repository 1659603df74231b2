"""A process that runs the code it is told to: ``python -m tests.engines.child URL``.

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
from typing import Any

import weblock
from weblock import AsyncLocks, Locks


def main() -> None:
    names: dict[str, Any] = {"url": sys.argv[1], "os": os, "time": time, "asyncio": asyncio}
    names |= {"AsyncLocks": AsyncLocks, "Locks": Locks, "weblock": weblock}
    for line in sys.stdin:
        try:
            outcome = {"value": run(json.loads(line), names)}
        except Exception as error:  # noqa: BLE001 - told to whoever asked
            outcome = {"error": type(error).__name__, "message": str(error)}
        os.write(1, json.dumps(outcome).encode() + b"\n")


def run(code: str, names: dict[str, Any]) -> Any:
    body = ast.parse(code).body
    last = body.pop() if body and isinstance(body[-1], ast.Expr) else None
    exec(compile(ast.Module(body, []), "<order>", "exec"), names)
    if last is None:
        return None
    return eval(compile(ast.Expression(last.value), "<order>", "eval"), names)


if __name__ == "__main__":
    main()
