"""FastAPI: ``Depends(lock("item:{item_id}"))``, after ``install(app, "redis://...")``."""

from ..._requirements import require

require("weblock.contrib.fastapi", "fastapi")

from ..asgi.request import request_locks  # noqa: E402 - only what fits can be imported
from .dependency import LockDependency, lock  # noqa: E402
from .guarding import guarded  # noqa: E402
from .installation import install  # noqa: E402

__all__ = ["LockDependency", "guarded", "install", "lock", "request_locks"]
