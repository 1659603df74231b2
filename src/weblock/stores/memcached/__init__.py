"""``memcached://``: leases on one memcached. A key is an item, which is replaced as a whole.

``engine`` is what one process has of the server. ``items`` reads and replaces items, and says what times
of other machines mean; ``lookout`` polls for waiters, because memcached cannot notify them; ``server``
says whether a server is fit for locks, and whether it has lost its data.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..._requirements import require
from ..url import without_secrets

if TYPE_CHECKING:
    from .engine import MemcachedEngine


def open_engine(url: str) -> MemcachedEngine:
    """Return the engine of ``memcached://host:port``, which connects when it is first used.

    Raises ``ConfigurationError``.
    """
    require(without_secrets(url), "memcached")
    from .engine import MemcachedEngine
    from .settings import parse

    return MemcachedEngine(parse(url))
