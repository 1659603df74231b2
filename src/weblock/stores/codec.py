"""A key's state as bytes and back, for the engines that store bytes.

A state is one line of cells with tabs between them: the version of this format, then what belongs to
the key, then a cell for each lease and for each place in the queue. Each cell is JSON, which contains
no tab and no line break, whatever characters a label has:

    1
    [last fence, last fence of those asked to release, [[owner that gave up, until], ...]]
    [owner, process, ttl, label, limit, fence, since, until, confirmed]        a lease
    [owner, process, ttl, label, limit,     0,     0, until,         0]        a place

On a full disk, a lease must not need more room to be renewed than it has. Times and fences are
therefore padded with spaces to a fixed width. A place is written as the lease that it may become,
with fence 0, so that passing the key on needs no more room either.

Only the version is promised to other versions of weblock. Bytes of any other version, and bytes
that no weblock wrote, raise ``ConfigurationError``: an engine that finds them changes nothing.

An engine that keeps more about a key, such as its name, writes that before the state, with a tab in
between.
"""

from __future__ import annotations

import functools
import json
from typing import Any, Final

from .._core.table import Claim, Grant, KeyState, Place, Voided
from ..errors import ConfigurationError

VERSION: Final = "1"

_REMEMBERED: Final = 4096
"""How many waiters' cells are remembered: they mostly stay the same from one state to the next."""

_text: Final = json.encoder.encode_basestring_ascii
_decoded: Final = json.JSONDecoder().raw_decode


def to_bytes(state: KeyState) -> bytes:
    """Return what ``from_bytes`` reads. Times are rounded to microseconds."""
    fence, grants, places, voided, asked = state
    voids = [f"[{_text(owner)},{until:18.6f}]" for owner, until in voided] if voided else ()
    cells = [VERSION, f"[{fence},{asked},[{','.join(voids)}]]", *map(_cell, grants)]
    if places:
        cells += map(_cell_of_place, places.values())
    return "\t".join(cells).encode()


def from_bytes(data: bytes, where: str) -> KeyState:
    """Return the state in the bytes that were found ``where``, for example a path.

    Raises:
        ConfigurationError: Another version of weblock, or another program, wrote them.
    """
    version, *cells = data.decode(errors="replace").split("\t")
    if version != VERSION:
        raise ConfigurationError(
            f"{where} has a state in the format {version[:20]!r}, and this version of weblock reads"
            f" and writes the format {VERSION!r}: run the same version in all processes, or give"
            " each version its own server, directory or table",
            code="other_format",
        )
    try:
        fence, asked, voided = _from_json(cells[0])
        # A lease changes with each renewal, and never comes again.
        entries = [(_waiter if _WAITS in cell else _entry)(cell) for cell in cells[1:]]
        grants = tuple([each for each in entries if isinstance(each, Grant)])
        places = {each.claim.owner: each for each in entries if isinstance(each, Place)}
        return KeyState(fence, grants, places, tuple([Voided(*each) for each in voided]), asked)
    except (ValueError, TypeError, IndexError, RecursionError) as error:
        raise ConfigurationError(
            f"{where} has a damaged state ({error}): stop all processes that lock there, and remove"
            " it",
            code="other_format",
        ) from error


def _cell(grant: Grant) -> str:
    (owner, process, ttl, label, limit), fence, since, until, confirmed = grant
    claim = f"{_text(owner)},{_text(process)},{ttl},{_text(label)},{limit}"
    # To pad numbers, an f-string takes four times as long, and this is on the way of every lock.
    cell = "[%s,%20d,%18.6f,%18.6f,%d]"
    return cell % (claim, fence, since, until, confirmed)


@functools.lru_cache(_REMEMBERED)
def _cell_of_place(place: Place) -> str:
    return _cell(Grant(place.claim, 0, 0.0, place.until, confirmed=False))


def _from_json(cell: str) -> Any:
    found, end = _decoded(cell)  # In half the calls of ``decode``, which also looks for spaces.
    if end != len(cell):
        raise ValueError(f"more after character {end}")
    return found


def _entry(cell: str) -> Grant | Place:
    owner, process, ttl, label, limit, fence, since, until, confirmed = _from_json(cell)
    claim = Claim(owner, process, ttl, label, limit)
    return Grant(claim, fence, since, until, bool(confirmed)) if fence else Place(claim, until)


_waiter: Final = functools.lru_cache(_REMEMBERED)(_entry)

_WAITS: Final = f",{0:20d},"
"""What the cell of a waiter contains: its fence."""
