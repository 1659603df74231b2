"""A server's own description, and whether locks are safe on it."""

from __future__ import annotations

import re
import ssl
from collections.abc import Mapping
from typing import Final, NamedTuple

from redis import exceptions

from .settings import Deployment, Settings

LEAST_VERSION: Final = (6, 2)


NOT_RUNG: Final = "those who wait for locks cannot be rung, and look once a second instead: %s"


FULL: Final = "its memory is full, and it takes no new leases: raise maxmemory"

GRANT: Final = "grant it to the user; docs/redis.md has the least rights that do"


class Unfit(Exception):
    """A server that must not keep leases as it is. Says why, and what to do about it."""


class Server(NamedTuple):
    """One run of a server: it is another after each restart."""

    run: str
    version: tuple[int, ...]
    replid: str = ""
    """Its replication id when we connected: another after it was a replica meanwhile."""
    clock: int = 0
    """What its clock showed when it answered, in microseconds."""

    @property
    def incarnation(self) -> str:
        """Return the name of this run in the scripts."""
        return f"{self.run}:{self.replid}"


def examine(info: bytes, settings: Settings) -> Server:
    """Parse the answer to ``INFO``. Raises ``Unfit``."""
    facts = dict(line.split(":", 1) for line in info.decode().splitlines() if ":" in line)
    version = version_of(facts)
    if version < LEAST_VERSION:
        raise Unfit(
            f"it is Redis {facts.get('redis_version')}, and locks need 6.2 or later: upgrade it, or"
            " use Valkey"
        )
    if facts.get("role") != "master":
        raise Unfit(
            f"it is a replica (role:{facts.get('role')}), and locks live on the primary: give the"
            " primary's address, or redis+sentinel:// to have it found"
        )
    clustered = facts.get("cluster_enabled") == "1"
    if clustered and settings.deployment is not Deployment.CLUSTER:
        raise Unfit("it is a node of a cluster: write redis+cluster:// instead")
    if not clustered and settings.deployment is Deployment.CLUSTER:
        raise Unfit("it is not a node of a cluster: write redis:// instead")
    _refuse_eviction(facts, settings)
    return Server(
        facts.get("run_id", "unknown"),
        version,
        facts.get("master_replid", ""),
        int(facts.get("server_time_usec", 0)),
    )


def version_of(facts: Mapping[str, str]) -> tuple[int, ...]:
    """Return the numbers of the version that a server names in its answer to ``INFO``."""
    # Valkey goes on counting as Redis 7.2 there.
    return tuple(int(part) for part in re.findall(r"\d+", facts.get("redis_version", ""))[:3])


def _refuse_eviction(facts: dict[str, str], settings: Settings) -> None:
    policy = facts.get("maxmemory_policy", "noeviction")
    if settings.allow_eviction or policy == "noeviction" or facts.get("maxmemory", "0") == "0":
        return
    raise Unfit(
        f"it may throw leases away when its memory is full (maxmemory-policy {policy}): set"
        " maxmemory-policy noeviction, use a server of its own for locks, or accept lost leases"
        " with allow_eviction=true"
    )


def explained(error: BaseException) -> str:  # noqa: PLR0911 - a list
    """Return why a server refused, with the remedy if there is one."""
    text = str(error) or type(error).__name__
    if (
        isinstance(error.__context__, ssl.SSLError)
        and (cause := str(error.__context__)) not in text
    ):
        text = f"{text} {cause}"  # On asyncio, redis-py 5 gives only the number of the error.
    match error:
        case Unfit():
            return text
        case exceptions.AuthenticationWrongNumberOfArgsError() | exceptions.AuthenticationError():
            return f"it refused the user or the password ({text}): check them in the URL"
        case exceptions.NoPermissionError():
            return f"{text}: {GRANT}"
        case exceptions.ReadOnlyError():
            return "it has become a replica"
        case exceptions.BusyLoadingError():
            return "it is loading its data"
        case exceptions.OutOfMemoryError():
            return FULL
        case exceptions.TimeoutError():
            return f"it did not answer in time ({text})"
    return next((said for mark, said in _SAID_OF if mark in text), "{text}").format(text=text[:300])


_SAID_OF: Final = (
    ("-OOM ", FULL),  # As Redis 6 says it of a script.
    ("MISCONF", "it cannot write its data to disk, and refuses all writes: {text}"),
    ("ACL failure", f"{{text}}: {GRANT}"),
    ("user executing the script", f"{{text}}: {GRANT}"),
)
"""What error replies without a type of their own mean, by a part of their text."""
