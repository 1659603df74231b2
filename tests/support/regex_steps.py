"""Counts the steps that backtracking takes to match a regular expression.

Time would depend on the machine, and Python's own engine cannot be counted. This one tries the same
alternatives in the same order, but in Python. It reads the syntax that path templates are compiled to,
and refuses any other.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

TOKEN = re.compile(
    r"(?P<open>\((?:\?(?:P<\w+>|[:>=]))?)"
    r"|(?P<close>\)\??)"
    r"|(?P<bar>\|)"
    r"|(?P<anchor>[\^$])"
    r"|(?P<one>\[[^]]+\]|\\[^\w]|[^\\()\[\]{}*+?|])(?P<times>[+*]|\{\d+\}|\?)?"
)


@dataclass
class Attempt:
    """One match of a text, with the steps taken so far."""

    text: str
    steps: int = 0

    def has(self, place: int, fits: Callable[[str], object]) -> bool:
        """Whether the character at ``place`` fits: this is a step."""
        self.steps += 1
        return place < len(self.text) and bool(fits(self.text[place]))


Node = Callable[[Attempt, int], Iterator[int]]
"""Where a part of the expression can end if it starts at a place, in the order of preference."""


class StepCounter:
    """Matches as ``pattern.match`` does; ``pattern`` has no flags."""

    def __init__(self, pattern: re.Pattern[str]) -> None:
        assert pattern.flags == re.UNICODE
        self._tokens = list(_tokens(pattern.pattern))
        self._root = self._alternatives()
        assert not self._tokens

    def match(self, text: str) -> tuple[int | None, int]:
        """The end of the match, or ``None``, and the number of steps."""
        attempt = Attempt(text)
        return next(self._root(attempt, 0), None), attempt.steps

    def _alternatives(self) -> Node:
        branches = [self._sequence()]
        while self._tokens and self._tokens[0]["bar"]:
            self._tokens.pop(0)
            branches.append(self._sequence())
        return _either(branches)

    def _sequence(self) -> Node:
        parts = []
        while self._tokens and not (self._tokens[0]["bar"] or self._tokens[0]["close"]):
            parts.append(self._part(self._tokens.pop(0)))
        node = _nothing
        for part in reversed(parts):
            node = _then(part, node)
        return node

    def _part(self, token: re.Match[str]) -> Node:
        if token["anchor"]:
            return _start if token["anchor"] == "^" else _end
        if token["one"]:
            return _repeated(re.compile(token["one"]).fullmatch, token["times"])
        group = self._alternatives()
        node = {"(?>": _atomic, "(?=": _ahead}.get(token["open"], lambda node: node)(group)
        closing = self._tokens.pop(0)["close"]
        return _either([node, _nothing]) if closing == ")?" else node


def _tokens(pattern: str) -> Iterator[re.Match[str]]:
    place = 0
    while place < len(pattern):
        token = TOKEN.match(pattern, place)
        assert token is not None, f"steps of {pattern[place:]!r} are not counted yet"
        yield token
        place = token.end()


def _nothing(attempt: Attempt, place: int) -> Iterator[int]:
    yield place


def _start(attempt: Attempt, place: int) -> Iterator[int]:
    if place == 0:
        yield place


def _end(attempt: Attempt, place: int) -> Iterator[int]:
    if attempt.text[place:] in ("", "\n"):
        yield place


def _then(first: Node, second: Node) -> Node:
    def ends(attempt: Attempt, place: int) -> Iterator[int]:
        for between in first(attempt, place):
            yield from second(attempt, between)

    return ends


def _either(branches: list[Node]) -> Node:
    def ends(attempt: Attempt, place: int) -> Iterator[int]:
        for branch in branches:
            yield from branch(attempt, place)

    return ends


def _atomic(node: Node) -> Node:
    def ends(attempt: Attempt, place: int) -> Iterator[int]:
        for end in node(attempt, place):
            yield end
            return

    return ends


def _ahead(node: Node) -> Node:
    def ends(attempt: Attempt, place: int) -> Iterator[int]:
        if next(node(attempt, place), None) is not None:
            yield place

    return ends


def _repeated(fits: Callable[[str], object], times: str | None) -> Node:
    """A character, as often as it is there; then less often, one by one."""
    least, most = {None: (1, 1), "?": (0, 1), "*": (0, None), "+": (1, None)}.get(times) or (
        2 * (int(times.strip("{}")),)
    )

    def ends(attempt: Attempt, place: int) -> Iterator[int]:
        end = place
        while (most is None or end < place + most) and attempt.has(end, fits):
            end += 1
        for each in range(end, place + least - 1, -1):
            attempt.steps += 1
            yield each

    return ends
