"""What all applications of the demo have in common: at most three items, and an item takes work."""

from __future__ import annotations

import os
import sqlite3
import time
from contextlib import closing
from typing import Final

from demo.trace import section

BOUND: Final = 3

WORK: Final = 0.15
"""Seconds that a request works before it adds an item, unless it says otherwise."""

DATABASE: Final = os.environ.get("DEMO_DATABASE", "items.sqlite3")


class LimitReached(Exception):
    """There are as many items as there may be."""

    def __init__(self) -> None:
        super().__init__(f"limit reached: {BOUND} items")


def open_shop() -> None:
    """Makes the table, unless another worker has."""
    with closing(sqlite3.connect(DATABASE, timeout=30)) as database:
        database.execute("CREATE TABLE IF NOT EXISTS item (id INTEGER PRIMARY KEY)")


def add_item(work: float) -> dict[str, int]:
    """The critical section: makes an item, unless there are three. Raises ``LimitReached``."""
    with section(), closing(sqlite3.connect(DATABASE, timeout=30)) as database:
        (count,) = database.execute("SELECT count(*) FROM item").fetchone()
        if count >= BOUND:
            raise LimitReached
        time.sleep(work)  # Some work: a payment, a call to another service.
        added = database.execute("INSERT INTO item DEFAULT VALUES RETURNING id")
        (item,) = added.fetchone()
        database.commit()
        return {"item": item}
