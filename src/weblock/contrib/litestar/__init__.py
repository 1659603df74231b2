"""Litestar: ``guards=[lock("item:{item_id}")]`` in a ``LockedLitestar``."""

from ..._requirements import require

require("weblock.contrib.litestar", "litestar")

from ..asgi.request import request_locks  # noqa: E402 - only what fits can be imported
from .app import LockedLitestar  # noqa: E402
from .locks import Lock, lease_of, lock  # noqa: E402

__all__ = ["Lock", "LockedLitestar", "lease_of", "lock", "request_locks"]
