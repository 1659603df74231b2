"""Leases that are handed over, and last until a slow machine gets round to them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from weblock._core import acquiring, table

if TYPE_CHECKING:
    import pytest

FOR_EVER: Final = 3600.0
"""Seconds: longer than any test."""

IN_NO_HURRY: Final = f"""
from weblock._core import acquiring, table
table.HANDOFF = acquiring.HANDOFF = {FOR_EVER}
"""
"""The same as ``in_no_hurry``, for a process of the test's own."""


def in_no_hurry(patch: pytest.MonkeyPatch) -> None:
    """Has a lease that this process hands over last for its ttl, though nobody has confirmed it yet.

    It is for engines whose leases this process grants itself: other engines go on with their own time.
    """
    for module in (table, acquiring):
        patch.setattr(module, "HANDOFF", FOR_EVER)
