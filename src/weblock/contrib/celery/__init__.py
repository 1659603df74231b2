"""Celery: ``WebLock(app, "redis://...")``, then ``@app.task(lock="invoice:{0}")``."""

from ..._requirements import require

require("weblock.contrib.celery", "celery")

from .extension import WebLock  # noqa: E402 - only what fits can be imported
from .task import LockedTask, lease_of  # noqa: E402
from .unique import AlreadyQueued  # noqa: E402

__all__ = ["AlreadyQueued", "LockedTask", "WebLock", "lease_of"]
