"""weblock serializes critical request handlers across threads, processes and machines."""

from ._core.acquiring import Attempts
from ._options import Duration, HoldOptions, LocksOptions
from ._runtime.observing import Observer, observe
from .aio import AsyncLease, AsyncLocks, AsyncTerm
from .caching import CacheOptions
from .errors import (
    AlreadyHeld,
    ConfigurationError,
    EngineRecovering,
    EngineUnavailable,
    InvalidKey,
    LeaseLost,
    LockTimeout,
    WeblockError,
)
from .inspection import KeyInfo
from .keys import Key
from .sync import Lease, Locks, Term

__version__ = "0.1.0"

__all__ = [
    "AlreadyHeld",
    "AsyncLease",
    "AsyncLocks",
    "AsyncTerm",
    "Attempts",
    "CacheOptions",
    "ConfigurationError",
    "Duration",
    "EngineRecovering",
    "EngineUnavailable",
    "HoldOptions",
    "InvalidKey",
    "Key",
    "KeyInfo",
    "Lease",
    "LeaseLost",
    "LockTimeout",
    "Locks",
    "LocksOptions",
    "Observer",
    "Term",
    "WeblockError",
    "observe",
]


def __dir__() -> list[str]:
    """Return what an interactive shell completes: the public names, and modules that the pages name."""
    return sorted({*__all__, "__version__", "errors", "events", "keys"})
