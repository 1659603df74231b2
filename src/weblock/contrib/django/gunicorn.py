"""How long gunicorn lets a worker be busy, where this process can know it."""

from __future__ import annotations

import argparse
import ast
import os
import shlex
from pathlib import Path
from typing import Any, Final

DEFAULT_TIMEOUT: Final = 30.0

SYNC: Final = ("sync", "gunicorn.workers.sync.SyncWorker")

_VARIABLE: Final = "GUNICORN_CMD_ARGS"

_FILE: Final = Path("gunicorn.conf.py")
"""What gunicorn reads by itself, from the folder where it is started."""


def worker_timeout() -> float | None:
    """Seconds after which a request is killed together with its worker.

    ``None`` if nothing is known of gunicorn here, or if it runs workers whose timeout is not about
    requests: all but those of the class ``sync``, which serve one request at a time.
    """
    arguments = os.environ.get(_VARIABLE)
    if arguments is None and not _FILE.exists():
        return None
    found = {**_of_file(), **_of_arguments(arguments or "")}
    if found.get("worker_class", "sync") not in SYNC or found.get("threads", 1) != 1:
        return None
    timeout = found.get("timeout", DEFAULT_TIMEOUT)
    return float(timeout) if isinstance(timeout, int | float) and timeout > 0 else None


def _of_file() -> dict[str, Any]:
    """The settings that are plain values there; it is not run."""
    try:
        tree = ast.parse(_FILE.read_text())
    except (OSError, SyntaxError, ValueError):
        return {}
    return {
        target.id: statement.value.value
        for statement in tree.body
        if isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Constant)
        for target in statement.targets
        if isinstance(target, ast.Name)
    }


def _of_arguments(arguments: str) -> dict[str, Any]:
    parser = argparse.ArgumentParser(
        add_help=False, allow_abbrev=False, argument_default=argparse.SUPPRESS, exit_on_error=False
    )
    parser.add_argument("-t", "--timeout", type=float)
    parser.add_argument("-k", "--worker-class")
    parser.add_argument("--threads", type=int)
    try:
        known, _ = parser.parse_known_args(shlex.split(arguments))
    except (ValueError, argparse.ArgumentError):
        return {}  # Gunicorn says it.
    return vars(known)
