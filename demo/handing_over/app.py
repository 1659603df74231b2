"""A report that takes long: POST takes the lock, enqueues a job and answers 202; GET tells its state.

It runs by itself, too: ``uvicorn demo.handing_over.app:app``, and beside it
``python -m demo.handing_over.worker``.
"""

import os
from typing import Annotated

from fastapi import Depends, FastAPI, HTTPException

from demo.handing_over import ON_ITS_WAY, WORK, jobs, key_of
from weblock import AsyncLease
from weblock.contrib.fastapi import install, lock

app = FastAPI()
locks = install(
    app,
    os.environ.get("DEMO_ENGINE", "file://"),
    namespace=os.environ.get("DEMO_NAMESPACE", "demo"),
    ttl=float(os.environ.get("DEMO_TTL", "10")),
)


@app.post("/shops/{shop}/report", status_code=202)
async def make_report(
    shop: int,
    lease: Annotated[AsyncLease, Depends(lock("report:{shop}", wait=0))],
    work: float = WORK,
) -> dict[str, str | int | None]:
    """Enqueue the report, unless it is to be made already; the worker releases the lock."""
    token = await lease.hand_over(ttl=ON_ITS_WAY)
    jobs.enqueue(shop, token, work)
    return {"state": "queued", "fence": lease.fence}


@app.get("/shops/{shop}/report")
async def report(shop: int) -> dict[str, str | int | None]:
    """Return the state of the last report: queued, running, done, or abandoned by its worker."""
    job = jobs.last_of(shop)
    if job is None:
        raise HTTPException(404, "no report was asked for")
    free = await locks.inspect(key_of(shop)) is None
    if free:  # The worker writes that it is done before it releases: read again what it wrote.
        job = jobs.with_id(job.id)
    return {"state": state_of(job, free=free), "worker": job.worker, "fence": job.fence}


def state_of(job: jobs.Job, *, free: bool) -> str:
    """Return what has become of a job whose key is free, or is still held."""
    if job.state == "done":
        return "done" if free else "running"
    return "abandoned" if free else job.state
