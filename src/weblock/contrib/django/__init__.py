"""Django: ``@lock("item:{pk}")`` on views, and ``locks["default"].hold("create_item")`` anywhere.

For ``INSTALLED_APPS``, with ``middleware.LockMiddleware`` last in ``MIDDLEWARE``. Nothing here
reads the settings before it is used.
"""

from .decorator import lock
from .registry import async_locks, locks

__all__ = ["async_locks", "lock", "locks"]
