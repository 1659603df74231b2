"""At most three items: an application whose handler must not overlap itself.

``DEMO_LOCK=off`` takes the lock away, and nothing else. It runs by itself, too:
``uvicorn demo.app:app --workers 4``, on several machines with ``DEMO_ENGINE=redis://...``.
"""

import os
import sqlite3
import time
from contextlib import closing

from fastapi import Depends, FastAPI, HTTPException

from demo.trace import section
from weblock.contrib.fastapi import install, lock

BOUND = 3
DATABASE = os.environ.get("DEMO_DATABASE", "items.sqlite3")
LOCKED = os.environ.get("DEMO_LOCK", "on") == "on"

app = FastAPI()
install(
    app,
    os.environ.get("DEMO_ENGINE", "file://"),
    namespace=os.environ.get("DEMO_NAMESPACE", "demo"),
    ttl=float(os.environ.get("DEMO_TTL", "10")),
)

with closing(sqlite3.connect(DATABASE, timeout=30)) as database:
    database.execute("CREATE TABLE IF NOT EXISTS item (id INTEGER PRIMARY KEY)")


@app.post(
    "/items",
    status_code=201,
    dependencies=[Depends(lock("create_item"))] if LOCKED else [],
)
def create_item(work: float = 0.15) -> dict[str, int]:
    """Makes an item, unless there are three already."""
    with section(), closing(sqlite3.connect(DATABASE, timeout=30)) as database:
        (count,) = database.execute("SELECT count(*) FROM item").fetchone()
        if count >= BOUND:
            raise HTTPException(422, f"limit reached: {BOUND} items")
        time.sleep(work)  # Some work: a payment, a call to another service.
        added = database.execute("INSERT INTO item DEFAULT VALUES RETURNING id")
        (item,) = added.fetchone()
        database.commit()
        return {"item": item}
