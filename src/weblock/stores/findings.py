"""What an engine reports to its operators: its state, what is wrong, and what to do."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from .._core.ports import Finding, Level
from .transport.failures import Unfit

__all__ = [
    "Finding",
    "Level",
    "bytes_of",
    "problem",
    "refuse",
    "sentence",
    "several",
    "share",
    "time_of",
    "unfit",
    "unreachable",
    "warning",
]

FULL: Final = 0.9
"""The share of its memory or its connections from which a server counts as nearly full."""


def warning(code: str, text: str, remedy: str) -> Finding:
    """Return a finding that an operator should know."""
    return Finding(code, text, Level.WARNING, remedy)


def problem(code: str, text: str, remedy: str) -> Finding:
    """Return a finding that an operator has to act on."""
    return Finding(code, text, Level.PROBLEM, remedy)


def unfit(code: str, reason: str, remedy: str) -> Finding:
    """Return a problem that an error's reason tells, as ``what is wrong: what to do``, or ``remedy``."""
    text, _, own_remedy = reason.partition(": ")
    return problem(code, sentence(text), sentence(own_remedy or remedy))


def unreachable(error: BaseException, reason: str, where: str = "") -> Finding:
    """Return the problem of a server that cannot be asked, for this ``reason``."""
    remedy = "Start it, or check the address, the login and the network between it and here."
    if isinstance(error, Unfit):
        found = unfit("reachable", reason, remedy)
    else:
        found = problem("reachable", f"It cannot be asked: {reason.rstrip('.')}.", remedy)
    return found._replace(where=where)


def share(code: str, text: str, used: float, most: float, remedy: str) -> Finding:
    """Return a finding that is a warning if nearly all is used of what there is at ``most``."""
    return warning(code, text, remedy) if used > FULL * most > 0 else Finding(code, text)


def refuse(findings: Iterable[Finding]) -> None:
    """Raise ``Unfit`` for the first problem: what ``weblock doctor`` prints keeps an engine from opening."""
    for each in findings:
        if each.level is Level.PROBLEM:
            raise Unfit(each.reason)


def sentence(text: str) -> str:
    """Return a part of a reason as a sentence."""
    return f"{text[:1].upper()}{text[1:].rstrip('.')}."


def several(count: int, noun: str) -> str:
    """Return a number of things as people read it: no replicas, 1 replica, 2 replicas."""
    return f"{count or 'no'} {noun}{'' if count == 1 else 's'}"


def bytes_of(count: float) -> str:
    """Return a size as people read it: 900 B, 1.5 MiB."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024 or unit == "GiB":
            break
        count /= 1024
    return f"{count:.0f} {unit}" if unit == "B" or count >= 10 else f"{count:.1f} {unit}"


def time_of(seconds: float) -> str:
    """Return a long time as people read it: 5 s, 3 min, 12 h, 40 days."""
    for unit, length in (("days", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"
