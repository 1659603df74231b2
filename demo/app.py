"""At most three items: an application whose handler must not overlap itself.

``DEMO_LOCK=off`` takes the lock away, and nothing else.
"""

import os
import sqlite3
import time
from contextlib import closing

from fastapi import Depends, FastAPI, HTTPException

from demo.trace import section
from weblock.contrib.fastapi import install, lock

BOUND = 3
DATABASE = os.environ["DEMO_DATABASE"]

app = FastAPI()
install(app, os.environ["DEMO_ENGINE"])

one_at_a_time = [Depends(lock("create_item"))] if os.environ["DEMO_LOCK"] == "on" else []


@app.post("/items", status_code=201, dependencies=one_at_a_time)
def create_item(work: float = 0.15) -> dict[str, int]:
    """Makes an item, unless there are three already."""
    with section(), closing(sqlite3.connect(DATABASE, timeout=30)) as database:
        (count,) = database.execute("SELECT count(*) FROM item").fetchone()
        if count >= BOUND:
            raise HTTPException(422, f"there are {count} items already")
        time.sleep(work)  # Some work: a payment, a call to another service.
        item = database.execute("INSERT INTO item DEFAULT VALUES").lastrowid
        database.commit()
        return {"item": item or 0, "worker": os.getpid()}
