"""At most three items: an application whose handler must not overlap itself.

``DEMO_LOCK=off`` takes the lock away, and nothing else. It runs by itself, too:
``uvicorn demo.app:app --workers 4``, on several machines with ``DEMO_ENGINE=redis://...``.
"""

import os

from fastapi import Depends, FastAPI, HTTPException

from demo.shop import WORK, LimitReached, add_item, open_shop
from weblock.contrib.fastapi import install, lock

LOCKED = os.environ.get("DEMO_LOCK", "on") == "on"

open_shop()
app = FastAPI()
install(
    app,
    os.environ.get("DEMO_ENGINE", "file://"),
    namespace=os.environ.get("DEMO_NAMESPACE", "demo"),
    ttl=float(os.environ.get("DEMO_TTL", "10")),
)


@app.post(
    "/items",
    status_code=201,
    dependencies=[Depends(lock("create_item"))] if LOCKED else [],
)
def create_item(work: float = WORK) -> dict[str, int]:
    """Count the items, work, and add one, unless there are three already."""
    try:
        return add_item(work)
    except LimitReached as error:
        raise HTTPException(422, str(error)) from error
