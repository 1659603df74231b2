"""The few figures that summarize a measurement."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median, median_low

__all__ = ["jain", "median", "median_low", "percentile"]


def jain(counts: Sequence[int]) -> float:
    """Jain's index of fairness: 1 if all got the same, 1/n if one of n got everything."""
    squares = sum(count * count for count in counts)
    return sum(counts) ** 2 / (len(counts) * squares) if squares else 0.0


def percentile(values: Sequence[float], share: float) -> float:
    """The value that ``share`` of all values do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else float("nan")
