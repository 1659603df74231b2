"""FastAPI: ``Depends(lock("item:{item_id}"))``, after ``install(app, "redis://...")``."""

from ..._requirements import require

# FastAPI before 0.100 also works with pydantic 1, whose applications cannot just move to 2.
require("weblock.contrib.fastapi", "fastapi", instead="AsyncLocks and weblock.contrib.asgi")

from ..asgi.request import request_locks  # noqa: E402 - only what fits can be imported
from .dependency import LockDependency, guarded, lock  # noqa: E402
from .idempotency import idempotent  # noqa: E402
from .installation import install  # noqa: E402

__all__ = ["LockDependency", "guarded", "idempotent", "install", "lock", "request_locks"]
