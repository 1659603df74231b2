"""Django: ``@lock("item:{pk}")`` on views, and ``locks["default"].hold("create_item")`` anywhere.

For ``INSTALLED_APPS``, with ``middleware.LockMiddleware`` last in ``MIDDLEWARE``. Nothing here
reads the settings before it is used.

A request meets ``middleware``, which finds the locks of its view (``view_lock``), acquires them
(``request``) and releases them when the transaction is over (``database``); where the middleware does
not see it, the decorator does all that. ``settings`` reads ``WEBLOCK``, and has the locks that it
describes.
"""

from ..._requirements import require

require("weblock.contrib.django", "django")

from .idempotency import idempotent  # noqa: E402 - only what fits can be imported
from .middleware import (  # noqa: E402
    async_lease_of,
    lease_of,
    lock,
)
from .request import hold_until_commit, request_locks  # noqa: E402
from .settings import async_locks, locks  # noqa: E402

__all__ = [
    "async_lease_of",
    "async_locks",
    "hold_until_commit",
    "idempotent",
    "lease_of",
    "lock",
    "locks",
    "request_locks",
]
