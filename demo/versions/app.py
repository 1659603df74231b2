"""One replica: every version, each below a path of its own."""

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse

from demo.shop import LimitReached, open_shop
from demo.versions import (
    SERVERS,
    TTL,
    careful_redlock,
    get_then_set,
    none,
    one_line,
    redlock,
    set_nx,
)
from weblock import AsyncLocks
from weblock.contrib.fastapi import install

open_shop()
app = FastAPI()
# The servers have just been started: there are no leases that they might have forgotten.
quorum = AsyncLocks.from_url([f"{each}?recovery=off" for each in SERVERS], ttl=TTL, wait=20)
install(app, quorum)

for version in (none, get_then_set, set_nx, redlock, careful_redlock, one_line):
    app.include_router(version.router, prefix=f"/{version.__name__.rpartition('.')[2]}")


@app.exception_handler(LimitReached)
def refuse(_request: Request, error: Exception) -> JSONResponse:
    """There are as many items as there may be."""
    return JSONResponse({"detail": str(error)}, 422)
