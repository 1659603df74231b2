"""How the state of a key is written: a line of cells, separated by tabs.

First comes the key, then a cell for the leases, and one for each place in the queue. A cell is JSON,
which has no tab and no line break in it. Waiters mostly stay the same from one state to the next,
so their cells are remembered, and, because heartbeats change the time in a cell, the claims in
them. A time, which changes with every renewal, always has as many digits behind the point: a lease
must not need more room to be renewed than it has. For the same reason, a place of a claim that may get a
lease together with others has as much room as that lease will need.

An exclusive lease is written as weblock 1.0 does. Where there are several, or one with a limit, an
older version cannot read the line, and fails rather than let its caller in.
"""

from __future__ import annotations

import functools
import json
from typing import Final

from ..._core.table import Claim, Grant, KeyState, Place, Voided

_REMEMBERED: Final = 4096
"""How many places and texts, such as labels, are remembered with their cells."""

_ROOM_OF_LEASE: Final = " " * 48
"""What a lease needs beyond its place: a fence, a time, a word, and what separates them."""

_text: Final = json.encoder.encode_basestring_ascii
_from_json: Final = json.JSONDecoder().raw_decode


def line_of(name: bytes, state: KeyState) -> bytes:
    """Return the line of the key ``name``."""
    cells = [name, _lease_cell(state)]
    if state.queue:
        cells += map(_place_cell, state.queue)
    return b"\t".join(cells)


def name_in(line: bytes) -> bytes:
    """Return the key of a line."""
    return line.partition(b"\t")[0]


def state_in(line: bytes) -> KeyState:
    """Return the state in a line."""
    _, lease, *places = line.split(b"\t")
    fence, grant, voided, *more = _from_json(lease.decode())[0]
    return KeyState(
        fence,
        tuple(Grant(Claim(*each[0]), *each[1:]) for each in [grant, *more]) if grant else (),
        tuple(map(_place, places)),
        tuple(Voided(*each) for each in voided),
    )


def _lease_cell(state: KeyState) -> bytes:
    fence, grants, _, voided = state
    leases = []  # In a loop, because each call here is part of the way of every lock.
    for claim, of_grant, since, until, confirmed in grants:
        yes = "true" if confirmed else "false"
        leases.append(f"[{_claim(claim)},{of_grant},{since:.6f},{until:.6f},{yes}]")
    lease = leases[0] if leases else "null"
    voids = ",".join(f"[{_text(owner)},{until:.6f}]" for owner, until in voided) if voided else ""
    more = f",{','.join(leases[1:])}" if len(leases) > 1 else ""
    return f"[{fence},{lease},[{voids}]{more}]".encode()


@functools.lru_cache(_REMEMBERED)
def _place_cell(place: Place) -> bytes:
    claim, until = place
    room = _ROOM_OF_LEASE if claim.limit > 1 else ""
    return f"[{_claim_of_place(claim)},{until:.6f}{room}]".encode()


@functools.lru_cache(_REMEMBERED)
def _place(cell: bytes) -> Place:
    claim, _, until = cell[1:-1].rpartition(b",")
    return Place(_read_claim(claim), float(until))


@functools.lru_cache(_REMEMBERED)
def _claim_of_place(claim: Claim) -> str:
    return _claim(claim)


@functools.lru_cache(_REMEMBERED)
def _read_claim(text: bytes) -> Claim:
    return Claim(*_from_json(text.decode())[0])


def _claim(claim: Claim) -> str:
    return f"[{_text(claim[0])},{_rest_of_claim(*claim[1:])}]"


@functools.lru_cache(_REMEMBERED)
def _rest_of_claim(process: str, ttl: float, label: str, limit: int) -> str:
    """Return what the claims of one process usually have in common."""
    rest = f"{_text(process)},{ttl},{_text(label)}"
    return rest if limit == 1 else f"{rest},{limit}"
