"""Annotations of users' functions may name what is imported for type checkers alone.

From Python 3.14 on they are evaluated only when they are asked for: this module has no
``from __future__ import annotations``, so that those below are.
"""

import ast
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from celery import Celery
from flask import Flask

from weblock import Locks
from weblock.contrib.celery import WebLock
from weblock.contrib.flask import WebLock as FlaskLocks

if TYPE_CHECKING:
    from decimal import Decimal

SOURCE = Path(__file__).parents[2] / "src" / "weblock"

EVALUATING = {"signature", "get_annotations", "getfullargspec", "get_type_hints", "from_callable"}
"""What evaluates annotations, of ``inspect`` and ``typing``."""


def test_only_one_function_reads_signatures() -> None:
    """``keys.signature_of`` alone asks ``inspect`` for what a function takes, in the format that never fails."""
    found = [
        str(path.relative_to(SOURCE))
        for path in SOURCE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if (isinstance(node, ast.Attribute) and node.attr in EVALUATING)
        or (isinstance(node, ast.alias) and node.name in EVALUATING)
    ]
    assert found == ["keys.py"] * 2, "use signature_of"  # Before and from 3.14.


def serialized(function: Callable[..., str]) -> object:
    with Locks.from_url("memory://") as locks:
        return locks.serialized("item:{item_id}")(function)("7")


def in_flask(function: Callable[..., str]) -> object:
    app = Flask(__name__)
    with Locks.from_url("memory://") as locks:
        web = FlaskLocks(app, locks=locks)
        app.get("/<item_id>")(web.lock("item:{item_id}", function)(function))
        return app.test_client().get("/7").text


def in_celery(function: Callable[..., str]) -> object:
    app = Celery("annotated", broker="memory://", set_as_current=False)
    with Locks.from_url("memory://") as locks, closing(app):
        WebLock(app, locks)
        task = app.task(lock=["item:{item_id}", function], shared=False)(function)
        return task.apply(["7"]).get()


@pytest.mark.skipif(sys.version_info < (3, 14), reason="annotations are evaluated at once")
@pytest.mark.parametrize("use", [serialized, in_flask, in_celery])
def test_a_name_for_type_checkers_is_never_looked_up(use: Callable[..., object]) -> None:
    """What is decorated, and a key function, may be annotated with a name that does not exist at run time."""

    def make(item_id: str, price: Decimal | None = None) -> str:
        return item_id

    assert use(make) == "7"
