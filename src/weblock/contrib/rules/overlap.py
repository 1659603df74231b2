"""Whether two patterns of paths have a path in common, as far as their literal text tells."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final

SEGMENT: Final = "<segment>"
"""Stands for any text without a slash."""

ANYTHING: Final = "<anything>"
"""Stands for any text."""

Shape = tuple[str, ...]
"""A pattern: its characters, and what stands for others between them."""

_LITERAL: Final = re.compile(r"\\([^a-zA-Z0-9])|([^\\.^$*+?{}\[\]()|])")


def shape_of_regex(pattern: str) -> Shape:
    """Return the literal beginning of a regular expression, and then anything."""
    text = pattern.removeprefix("^")
    if "|" in text:
        return (ANYTHING,)
    shape: list[str] = []
    place = 0
    while found := _LITERAL.match(text, place):
        shape.append(found[1] or found[2])
        place = found.end()
    if text[place:] in ("", "$", r"\Z"):
        return tuple(shape)
    if text[place] in "?*+{" and shape:
        shape.pop()  # It may be missing.
    return (*shape, ANYTHING)


def may_meet(one: Shape, other: Shape) -> bool:
    """Whether a path may match both; a slash at the end makes no difference.

    True is a guess, for what placeholders stand for is not looked at. False is certain.
    """
    one, other = _bare(one), _bare(other)
    pending, seen = [(0, 0)], set()
    while pending:
        places = pending.pop()
        if places == (len(one), len(other)):
            return True
        if places not in seen:
            seen.add(places)
            pending += _steps(one, other, *places)
    return False


def _steps(one: Sequence[str], other: Sequence[str], i: int, j: int) -> Iterator[tuple[int, int]]:
    here, there = one[i : i + 1], other[j : j + 1]
    if _takes(here, there):
        yield i, j + 1
    if _takes(there, here):
        yield i + 1, j
    if here and here == there:
        yield i + 1, j + 1
    # What stands for any text may stand for none, or for no more.
    if here and here[0] in (SEGMENT, ANYTHING):
        yield i + 1, j
    if there and there[0] in (SEGMENT, ANYTHING):
        yield i, j + 1


def _takes(wild: Sequence[str], character: Sequence[str]) -> bool:
    if not wild or not character:
        return False
    return wild[0] == ANYTHING or (wild[0] == SEGMENT and character[0] != "/")


def _bare(shape: Shape) -> Shape:
    return shape[:-1] if shape[-1:] == ("/",) else shape
