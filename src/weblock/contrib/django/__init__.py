"""Django: ``@lock("item:{pk}")`` on views, and ``locks["default"].hold("create_item")`` anywhere.

For ``INSTALLED_APPS``, with ``middleware.LockMiddleware`` last in ``MIDDLEWARE``. Nothing here
reads the settings before it is used.
"""

from ..._requirements import require

require("weblock.contrib.django", "django")

from .decorator import async_lease_of, lease_of, lock  # noqa: E402 - only what fits can be imported
from .registry import async_locks, locks  # noqa: E402

__all__ = ["async_lease_of", "async_locks", "lease_of", "lock", "locks"]
