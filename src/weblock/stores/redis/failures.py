"""What redis-py's errors mean for a caller, with the remedy."""

from __future__ import annotations

import ssl
from typing import Final

from redis import exceptions

from ..transport import unfit

NOT_RUNG: Final = "those who wait for locks cannot be rung, and look once a second instead: %s"

GRANT: Final = "grant it to the user; docs/redis.md has the least rights that do"

_FULL: Final = "its memory is full, and it takes no new leases: raise maxmemory"

_MEANINGS: Final[unfit.Meanings] = (
    (
        (exceptions.AuthenticationWrongNumberOfArgsError, exceptions.AuthenticationError),
        "it refused the user or the password ({text}): check them in the URL",
    ),
    (exceptions.NoPermissionError, f"{{text}}: {GRANT}"),
    (exceptions.ReadOnlyError, "it has become a replica"),
    (exceptions.BusyLoadingError, "it is loading its data"),
    (exceptions.OutOfMemoryError, _FULL),
    (exceptions.TimeoutError, "it did not answer in time ({text})"),
    # Error replies without a type of their own.
    ("-OOM ", _FULL),  # As Redis 6 says it of a script.
    ("MISCONF", "it cannot write its data to disk, and refuses all writes: {text}"),
    ("ACL failure", f"{{text}}: {GRANT}"),
    ("user executing the script", f"{{text}}: {GRANT}"),
)


def explained(error: BaseException) -> str:
    """Return why a server refused, with the remedy if there is one."""
    text, below = unfit.explained(error, _MEANINGS), error.__context__
    if isinstance(below, ssl.SSLError) and str(below) not in text:
        return f"{text} {below}"  # On asyncio, redis-py 5 gives only the number of the error.
    return text
