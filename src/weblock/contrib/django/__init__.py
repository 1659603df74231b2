"""Django: ``locks["default"].hold("create_item")`` anywhere, for ``INSTALLED_APPS`` and ``WEBLOCK``.

Nothing here reads the settings before it is used.
"""

from .registry import async_locks, locks

__all__ = ["async_locks", "locks"]
