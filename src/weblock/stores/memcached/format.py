"""The names of items, and their contents: states as JSON, with stamps for times."""

from __future__ import annotations

import contextlib
import hashlib
import json
from typing import Any, Final, TypeVar

from ..._core.table import Claim, Grant, KeyState, Place, Voided
from ...errors import EngineUnavailable
from .settings import Settings
from .stamps import Observer, Seen, Stamp

_FORMAT: Final = 1
_FORMAT_OF_SEVERAL: Final = 2
"""Where several may hold the key: versions that know exclusive leases only must not read it."""

Written = list[Any]
"""A lease, a place, or the mark of an owner that gave up, as it is in an item."""

E = TypeVar("E", Grant, Place, Voided)


class Names:
    """The names of items. No prefix has a slash in it, so none can reach the items of another."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self.locks = f"{prefix}/lock/"
        self.mark = f"{prefix}/mark"
        """Says that the server has not lost anything since we came."""
        self.quiet = f"{prefix}/quiet"
        """Says that it is to grant nothing."""

    def of_key(self, key: str) -> str:
        """Return a name that memcached accepts; the key itself is in the item."""
        return self.locks + hashlib.sha256(key.encode()).hexdigest()

    def of_note(self, key: str) -> str:
        """Return the name of the item that records that something is done."""
        return f"{self._prefix}/done/{hashlib.sha256(key.encode()).hexdigest()}"


class Reading:
    """An item as it was read: a state in our own time, and what it was read from."""

    def __init__(self, key: str, token: bytes | None, now: float) -> None:
        self.key = key
        self.token = token
        self.now = now
        self.state = KeyState()
        self.written: dict[Grant | Place | Voided, Written] = {}

    def noted(self, written: Written, entry: E) -> E:
        self.written[entry] = written
        return entry


class Format:
    """How one process reads and writes the items of a server."""

    def __init__(self, settings: Settings, observer: Observer) -> None:
        self._settings = settings
        self.names = Names(settings.prefix)
        self._observer = observer

    def read(self, key: str, found: tuple[bytes, bytes] | None, now: float) -> Reading:
        """Return the contents of a key's item. Raises ``EngineUnavailable`` if it is not ours."""
        value, token = found or (None, None)
        reading, item = Reading(key, token, now), self.names.of_key(key)
        if value is None:
            self._observer.first_seen(item, (), now)
            return reading
        _, fence, lease, places, voids, asked, *more = self.fields(value)
        leases = [lease, *more] if lease else []
        entries = [*places, *voids, *leases]
        seen = self._observer.first_seen(item, [Stamp(*each[-1]) for each in entries], now)
        reading.state = KeyState(
            fence,
            tuple(reading.noted(each, _grant(each, seen)) for each in leases),
            tuple(reading.noted(each, _place(each, seen)) for each in places),
            tuple(reading.noted(each, _voided(each, seen)) for each in voids),
            asked,
        )
        return reading

    def write(self, reading: Reading, state: KeyState) -> bytes:
        """Return what to write; unchanged parts stay as their writer wrote them."""
        known, process, now = reading.written, self._observer.process, reading.now

        def stamp(owner: str, until: float) -> Stamp:
            return Stamp(owner, process, now, until)

        def lease(grant: Grant) -> Written:
            claim, fence, since, until, confirmed = grant
            return [_claim(claim), fence, since, confirmed, stamp(claim.owner, until)]

        leases = [known.get(each) or lease(each) for each in state.grants]
        first, more = (leases[0], leases[1:]) if leases else (None, [])
        places = [
            known.get(each) or [_claim(each.claim), stamp(each.claim.owner, each.until)]
            for each in state.queue
        ]
        voids = [known.get(each) or [stamp(each.owner, each.until)] for each in state.voided]
        claims = [*(each.claim for each in state.grants), *(each.claim for each in state.queue)]
        exclusive = all(claim.limit == 1 for claim in claims)
        version = _FORMAT if exclusive else _FORMAT_OF_SEVERAL
        fields = [version, reading.key, state.fence, first, places, voids, state.asked, *more]
        return json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode()

    def fields(self, value: bytes) -> list[Any]:
        """Return key, fence, lease, places, voids, asked and further leases, as they were written."""
        version, fields = None, []
        with contextlib.suppress(ValueError, TypeError):
            version, *fields = json.loads(value)
        if version not in (_FORMAT, _FORMAT_OF_SEVERAL):
            raise EngineUnavailable(
                self._settings.name,
                f"what is there under {self.names.locks!r} was not written by this version of"
                " weblock: let all processes run the same version, or give each a prefix of its own",
            )
        return fields


def _claim(claim: Claim) -> Written:
    return list(claim if claim.limit > 1 else claim[:4])


def _grant(written: Written, seen: Seen) -> Grant:
    claim, fence, since, confirmed, mark = written
    stamp = Stamp(*mark)
    shift = stamp.shift(seen)
    return Grant(Claim(*claim), fence, since + shift, stamp.until + shift, confirmed)


def _place(written: Written, seen: Seen) -> Place:
    claim, mark = written
    stamp = Stamp(*mark)
    return Place(Claim(*claim), stamp.until + stamp.shift(seen))


def _voided(written: Written, seen: Seen) -> Voided:
    stamp = Stamp(*written[0])
    return Voided(stamp.owner, stamp.until + stamp.shift(seen))
