"""What there is to know of the servers of a quorum."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ..findings import Finding, Level, problem, warning
from ..redis.connections import Connections
from ..redis.servers import Seen, look_at, of_clocks, of_server
from ..redis.settings import Settings


def diagnose(servers: Iterable[tuple[Connections, Settings]]) -> Iterator[Finding]:
    """Return what is found on each server, and whether a majority answers."""
    seen: list[Seen] = []
    silent: list[Finding] = []
    for connections, settings in servers:
        found = look_at(connections, settings.addresses[0], settings)
        where = str(settings.addresses[0])
        if isinstance(found, Seen):
            seen.append(found)
            yield from (each._replace(where=where) for each in of_server(found, settings))
        else:
            silent.append(found)
    for each in silent:  # The others lock without it, if they are enough.
        yield each._replace(level=Level.WARNING) if len(seen) > len(silent) else each
    yield _majority(len(seen), len(seen) + len(silent))
    yield from of_clocks(seen)


def _majority(there: int, count: int) -> Finding:
    text = f"{there} of {count} servers answer, and {count // 2 + 1} are needed."
    remedy = "Start the others, or find out why they do not answer."
    if there <= count // 2:
        return problem("majority", text, remedy)
    return Finding("majority", text) if there == count else warning("majority", text, remedy)
