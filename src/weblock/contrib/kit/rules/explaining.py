"""Explains which rule matches a URL, and what the others have to do with it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final
from urllib.parse import unquote, urlsplit

from ....errors import ConfigurationError, InvalidKey
from .ruleset import RuleSet, decided, tidied

MATCHES: Final = "matches"
EXEMPT: Final = "matches: exempt, so nothing is locked"
STRANGE: Final = "matches the path as other routers may read it"
LATER: Final = "would match, but a rule before it does"
OTHER_METHOD: Final = "another method"
OTHER_PATH: Final = "another path"

_NONE: Final[Mapping[str, str]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a rule is about a request. ``name`` is where the rule stands, ``about`` what it says."""

    name: str
    about: str
    verdict: str


@dataclass(frozen=True, slots=True)
class Explanation:
    """What a request locks, and what each rule has to do with it.

    ``keys`` are held while it is served. ``problem`` says why it is refused with 400 instead: a key
    cannot be filled in, or the path can be read in two ways. As ``str``, it is a text of several lines.
    """

    method: str
    path: str
    verdicts: tuple[Verdict, ...]
    keys: tuple[str, ...] = ()
    problem: str = ""

    def __str__(self) -> str:
        return "\n".join([f"{self.method} {self.path}", *self._table(), f"  {self.outcome}"])

    @property
    def outcome(self) -> str:
        """Return what is locked, as a sentence."""
        if self.problem:
            return f"is refused with 400: {self.problem}"
        if self.keys:
            return f"locks {', '.join(map(repr, self.keys))}"
        return "locks nothing" if self.verdicts else "locks nothing: there is no rule"

    def _table(self) -> Iterator[str]:
        rows = [(each.name, each.about, each.verdict) for each in self.verdicts]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        for row in rows:
            yield "  " + "  ".join(map(str.ljust, row, widths)).rstrip()


def explain(
    rules: RuleSet,
    method: str,
    target: str,
    *,
    root_path: str = "",
    headers: Mapping[str, str] = _NONE,
) -> Explanation:
    """Say what a request for ``target`` locks under ``rules``.

    ``target`` is a URL, or a path as a client sends it, percent-encoded and with its query. ``method``
    is ``WEBSOCKET`` for a websocket. Raises ``ConfigurationError`` for a target that is no path.
    """
    path, query = path_and_query(target)
    values = {name.lower(): [value] for name, value in headers.items()}
    keys, problem = [], ""
    try:
        found = rules.find(method, path, root_path=root_path)
        keys = found.keys(query=query, headers=lambda name: values.get(name, [])) if found else []
    except InvalidKey as error:
        problem = str(error)
    found_of_each = tuple(verdicts(rules, method.upper(), path, root_path))
    return Explanation(method.upper(), path, found_of_each, tuple(dict.fromkeys(keys)), problem)


def path_and_query(target: str) -> tuple[str, str]:
    """Return the decoded path of a URL, and its query as it was sent."""
    if "://" in target:
        target = urlsplit(target)._replace(scheme="", netloc="").geturl() or "/"
    if not target.startswith("/"):
        raise ConfigurationError(f'{target!r:.80} is no path: it starts with "/", or is a URL')
    path, _, query = target.partition("#")[0].partition("?")
    return unquote(path), query


def verdicts(rules: RuleSet, method: str, path: str, root_path: str = "") -> Iterator[Verdict]:
    """Return whether each rule matches a request; ``path`` is decoded."""
    about = [rule for rule in rules if rule.takes(method)]
    written, *others = decided(about, path, root_path)
    for name, rule in rules.named:
        if rule not in about:
            verdict = OTHER_METHOD
        elif written and rule is written.rule:
            verdict = EXEMPT if rule.exempt else MATCHES
        elif any(other and rule is other.rule for other in others):
            verdict = STRANGE
        else:
            matches = rule.path.match_tidied(tidied(path)) is not None
            verdict = LATER if matches else OTHER_PATH
        yield Verdict(name, repr(rule), verdict)
