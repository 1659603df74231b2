"""What all versions have in common: at most three items, and an item takes some work."""

from __future__ import annotations

import os
import sqlite3
import time
from contextlib import closing
from typing import Final

from fastapi import HTTPException

from demo.trace import section
from demo.versions import BOUND

DATABASE: Final = os.environ.get("DEMO_DATABASE", "items.sqlite3")

SERVERS: Final = os.environ.get("DEMO_SERVERS", "redis://127.0.0.1:6379").split(",")
"""The Redis servers. Who wants just one takes the first."""


def open_shop() -> None:
    """Makes the table, unless another replica has."""
    with closing(sqlite3.connect(DATABASE, timeout=30)) as database:
        database.execute("CREATE TABLE IF NOT EXISTS item (id INTEGER PRIMARY KEY)")


def add_item(work: float) -> dict[str, int]:
    """The critical section: makes an item, unless there are three already."""
    with section(), closing(sqlite3.connect(DATABASE, timeout=30)) as database:
        (count,) = database.execute("SELECT count(*) FROM item").fetchone()
        if count >= BOUND:
            raise HTTPException(400, f"cannot create more than {BOUND} items")
        time.sleep(work)
        added = database.execute("INSERT INTO item DEFAULT VALUES RETURNING id")
        (item,) = added.fetchone()
        database.commit()
        return {"item": item}
