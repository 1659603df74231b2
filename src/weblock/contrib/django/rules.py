"""Rules by URL, by view and by namespace, for projects that cannot decorate their views.

``explain`` says which of them, and which decorators, a request meets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from django.http import HttpRequest
from django.urls import Resolver404, ResolverMatch, get_resolver, get_urlconf, resolve
from django.utils import translation

from ..._options import HoldOptions
from ...errors import ConfigurationError, WeblockError
from ...keys import KeyTemplate
from ..guarding import GuardKind, refuse_guard
from ..rules import Explanation, Match, RuleSet, Verdict, methods_of
from ..rules.explaining import (
    EXEMPT,
    LATER,
    MATCHES,
    OTHER_METHOD,
    STRANGE,
    path_and_query,
    verdicts,
)
from .discovery import Gap, gaps
from .view_lock import (
    DEFAULT,
    ViewLock,
    headers_of,
    locks_of,
    name_of,
    query_of,
)

_OPTIONS: Final = tuple(HoldOptions.__annotations__)
_FIELDS: Final = ("view", "namespace", "key", "methods", "exempt", "guard", *_OPTIONS)


class Rules:
    """The rules of one alias, of which the first that matches a request counts.

    Those by ``view`` and ``namespace`` come first, in their order, and then those by ``path``.
    """

    def __init__(self, given: object, *, alias: str) -> None:
        """Read the rules. Raises ``ConfigurationError``, which names a rule that cannot work."""
        name = f"WEBLOCK[{alias!r}]['RULES']"
        entries = dict(_entries(given, name))
        by_view = {label: entry for label, entry in entries.items() if _is_by_view(entry)}
        by_path = {label: entry for label, entry in entries.items() if label not in by_view}
        guards = {label: _guard_taken(by_path, label, name) for label in by_path}
        self._alias = alias
        self.by_view = tuple(_view_rule(f"{name}.{each}", e, alias) for each, e in by_view.items())
        self.by_path = RuleSet(by_path, name=name)
        self._known_gaps: dict[object, Mapping[str, Gap]] = {}
        rules = (rule for _, rule in self.by_path.named)
        self._guards = dict(zip(rules, guards.values(), strict=True))

    def find(self, request: HttpRequest) -> ViewLock | None:
        """Return what a request locks, given its view; ``None`` if nothing.

        Raises ``StrangePath``, and ``ConfigurationError`` for a URL that no rule by path is about, although
        one is about another URL of the same view.
        """
        resolved = request.resolver_match
        assert resolved
        method = (request.method or "GET").upper()
        for rule in self.by_view:
            if rule.takes(method, resolved):
                return rule.lock
        if match := self.by_path.find(method, request.path_info):
            return RuledLock.by(match, self._alias, self._guards[match.rule])
        if len(self.by_path):
            gap = self._gaps().get(resolved.route)
            if gap and gap.rule.takes(method) and gap.match.func is resolved.func:
                raise ConfigurationError(gap_text(repr(gap.rule), gap))
        return None

    def _gaps(self) -> Mapping[str, Gap]:
        """Return the URLs that rules by path miss of a view that they lock at another URL, by their route."""
        for_these = get_resolver(get_urlconf()), translation.get_language()
        if for_these not in self._known_gaps:
            found = {gap.match.route: gap for gap in gaps(self.by_path, self.is_ruled)}
            self._known_gaps[for_these] = found
        return self._known_gaps[for_these]

    def is_ruled(self, method: str, resolved: ResolverMatch) -> bool:
        """Return whether a rule by view or namespace decides about a request to a view."""
        return any(rule.takes(method, resolved) for rule in self.by_view)

    def guards(self) -> Iterator[tuple[str, GuardKind | None, HoldOptions]]:
        """Return the label of each rule, its guard as it names it, and its other options."""
        for by_view in self.by_view:
            if lock := by_view.lock:
                yield by_view.label, lock.guard, lock.held_with
        for label, rule in self.by_path.named:
            yield label, self._guards[rule], rule.options

    def verdicts(self, request: HttpRequest) -> Iterator[Verdict]:
        """Return whether each rule matches a request, given its view."""
        resolved = request.resolver_match
        assert resolved
        method = (request.method or "GET").upper()
        decided = False
        for rule in self.by_view:
            verdict = rule.verdict(method, resolved, decided=decided)
            decided = decided or verdict in (MATCHES, EXEMPT)
            yield Verdict(rule.label, rule.about, verdict)
        for each in verdicts(self.by_path, method, request.path_info):
            later = decided and each.verdict in (MATCHES, EXEMPT, STRANGE)
            yield replace(each, verdict=LATER) if later else each


def gap_text(rule: str, gap: Gap) -> str:
    """Return the message about a URL that rules by path have missed."""
    return (
        f"{rule} locks {gap.match.view_name or name_of(gap.match.func)} at {gap.covered!r}, but no rule is"
        f" about {gap.path!r}, another URL of that view: {gap.match.route!r}. Name the view instead of"
        " the path, {'view': 'shop:item', ...}, or add a rule for that URL, exempt if need be"
    )


@dataclass(frozen=True, repr=False)
class RuledLock(ViewLock):
    """The lock of a rule by path: its keys are made of the path as the rule reads it."""

    match: Match = field(compare=False)

    @classmethod
    def by(cls, match: Match, alias: str, guard: GuardKind | None) -> RuledLock:
        """The lock of the rule that matches."""
        options = tuple(sorted(match.rule.options.items()))
        return cls(match.rule.keys, (), alias, None, options, guard, match)

    def keys_of(self, request: HttpRequest, _values: Mapping[str, object]) -> list[str]:
        """Return the keys of the request that the rule matches."""
        return self.match.keys(query=query_of(request), headers=headers_of(request))

    async def akeys_of(self, request: HttpRequest, values: Mapping[str, object]) -> list[str]:
        """Return the keys, from a task."""
        return self.keys_of(request, values)


@dataclass(frozen=True)
class ViewRule:
    """Requests whose URL leads to views of these names lock what the rule says."""

    label: str
    about: str
    covers: Callable[[ResolverMatch], bool]
    methods: frozenset[str] | None
    lock: ViewLock | None

    @property
    def templates(self) -> tuple[KeyTemplate, ...]:
        """The templates of its keys."""
        return self.lock.templates if self.lock else ()

    def takes(self, method: str, resolved: ResolverMatch) -> bool:
        """Return whether it matches requests of this method to the view."""
        return (self.methods is None or method in self.methods) and self.covers(resolved)

    def verdict(self, method: str, resolved: ResolverMatch, *, decided: bool) -> str:
        """Return whether it matches a request; ``decided`` if an earlier rule has matched."""
        if self.methods is not None and method not in self.methods:
            return OTHER_METHOD
        if not self.covers(resolved):
            return "another view"
        if decided:
            return LATER
        return MATCHES if self.lock else EXEMPT


def _entries(given: object, name: str) -> Iterator[tuple[str, object]]:
    if isinstance(given, Mapping):
        yield from given.items()
    elif isinstance(given, list | tuple):
        yield from ((str(number), entry) for number, entry in enumerate(given))
    else:
        raise ConfigurationError(
            f"{name} is {given!r:.80}: give a list of rules, or a mapping of names to rules"
        )


def _is_by_view(entry: object) -> bool:
    return isinstance(entry, Mapping) and ("view" in entry or "namespace" in entry)


def _view_rule(label: str, entry: Any, alias: str) -> ViewRule:
    if strange := [each for each in entry if each not in _FIELDS]:
        raise ConfigurationError(
            f"{label} has {strange[0]!r:.80}; a rule by view or namespace has one of these, and"
            f" {', '.join(_FIELDS[2:])}"
        )
    options: Any = {name: entry[name] for name in _OPTIONS if name in entry}
    methods = entry.get("methods")
    try:
        return ViewRule(
            label,
            ", ".join(f"{name} {entry[name]!r}" for name in _FIELDS[:4] if name in entry),
            _condition(entry),
            None if methods is None else methods_of(methods),
            _lock(entry, alias, options),
        )
    except ConfigurationError as error:
        raise ConfigurationError(f"{label}: {error}") from error


def _lock(entry: Mapping[str, Any], alias: str, given: HoldOptions) -> ViewLock | None:
    key, exempt, guard = entry.get("key", ()), entry.get("exempt", False), entry.get("guard")
    keys = [key] if isinstance(key, str) else list(key)
    if exempt is True and not (keys or given or guard):
        return None
    if exempt is not False or not keys:
        raise ConfigurationError("give either a key, or exempt=True and nothing else")
    return ViewLock.of(keys, alias, None, given, guard)


def _guard_taken(entries: dict[str, Any], label: str, name: str) -> GuardKind | None:
    """Remove the guard from a rule by path, which other frameworks' rules do not have."""
    entry = entries[label]
    if not (isinstance(entry, Mapping) and "guard" in entry):
        return None
    guard: GuardKind | None = entry["guard"]
    entries[label] = {field: value for field, value in entry.items() if field != "guard"}
    if guard and entry.get("exempt"):
        raise ConfigurationError(f"{name}.{label} is exempt and locks nothing: give it no guard")
    try:
        refuse_guard(guard, entry)
    except ConfigurationError as error:
        raise ConfigurationError(f"{name}.{label}: {error}") from error
    return guard


def _condition(entry: Mapping[str, object]) -> Callable[[ResolverMatch], bool]:
    """Whether a view is meant: by its name, or by the namespace that it is in, at any depth.

    The namespace of an application stands for all its instances, under whatever namespace.
    """
    view, namespace = entry.get("view"), entry.get("namespace")
    if isinstance(view, str) and view and namespace is None:
        return lambda resolved: view in (resolved.view_name, _name_in_application(resolved))
    if isinstance(namespace, str) and namespace and view is None:
        return lambda resolved: any(
            f"{each}:".startswith(f"{namespace}:")
            for each in (resolved.namespace, resolved.app_name)
        )
    raise ConfigurationError(
        "give either view, a name such as 'shop:item', or namespace, such as 'shop'"
    )


def _name_in_application(resolved: ResolverMatch) -> str:
    return ":".join([*resolved.app_names, resolved.view_name.rpartition(":")[2]])


def explain(every: Sequence[Rules], method: str, target: str) -> Explanation:
    """Say what a request for ``target`` locks: which rules are about it, and what marks its view.

    ``target`` is a URL, or a path as a client sends it. A key that a function makes stands there with
    the function's name. Raises ``ConfigurationError`` where no URL of the project is meant.
    """
    path, query = path_and_query(target)
    request = HttpRequest()
    request.method, request.path, request.path_info = method.upper(), path, path
    request.META["QUERY_STRING"] = query
    try:
        with translation.override(translation.get_language_from_path(path)):
            found = request.resolver_match = resolve(path)
    except Resolver404 as error:
        raise ConfigurationError(f"no URL of the project matches {path!r:.200}") from error
    marks = locks_of(found.func, method)
    verdicts = [each for rules in every for each in rules.verdicts(request)]
    verdicts += [Verdict("@lock", repr(each), f"marks {found.view_name}") for each in marks]
    try:
        ruled = [lock for rules in every if (lock := rules.find(request))]
        keys = [key for lock in (*ruled, *marks) for key in _keys(lock, request, found.kwargs)]
    except WeblockError as error:
        return Explanation(request.method, path, tuple(verdicts), problem=str(error))
    return Explanation(request.method, path, tuple(verdicts), tuple(dict.fromkeys(keys)))


def _keys(lock: ViewLock, request: HttpRequest, values: dict[str, Any]) -> Iterator[str]:
    where = "" if lock.alias == DEFAULT else f" of {lock.alias}"
    for key in replace(lock, functions=()).keys_of(request, values):
        yield f"{key}{where}"
    for function in lock.functions:
        yield f"{name_of(function)}(request){where}"
