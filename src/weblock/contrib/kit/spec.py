"""What to lock: the keys, the options and the guard that a decorator, a dependency, a rule and a task take."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from functools import cached_property
from http.cookies import SimpleCookie
from typing import Any, Final, Self
from urllib.parse import parse_qsl, unquote_to_bytes

from ..._api import warn_of_templates
from ..._options import HoldOptions, Options
from ...errors import ConfigurationError, InvalidKey
from ...keys import CheckedKey, KeyTemplate, Source, check_key, in_order, signature_of
from .guarding import GuardKind, refuse_guard

KeyFunction = Callable[..., Any]
"""A function of an application that returns a key, or several; ``None`` or an empty list to lock nothing."""

Headers = Callable[[str], Sequence[str]]
"""Returns the values of a header by its lower-case name: several, if sent several times."""

_HOST: Final = Source("header", "host")


@dataclass(frozen=True, repr=False)
class LockSpec:
    """A description of what to lock: equal for equal arguments, and hashable.

    An adapter whose users say more derives from it, with a field and a default for each thing more.
    """

    keys: tuple[KeyTemplate | KeyFunction, ...]
    """Templates, which a request fills in, and functions of the application, which make keys of it."""
    _said: tuple[tuple[str, object], ...]
    guard: GuardKind | None
    """``None`` is what the application's settings say."""
    options: HoldOptions = field(compare=False)
    methods: frozenset[str] | None = None
    """Requests by other methods lock nothing; ``None`` is every method."""

    @classmethod
    def of(
        cls,
        keys: Iterable[str | KeyTemplate | KeyFunction],
        options: HoldOptions,
        guard: GuardKind | None = None,
        **more: Any,
    ) -> Self:
        """Return the spec of what a user has written.

        A ready template can name what no request has. Raises ``ConfigurationError`` for
        a template, an option or a guard that cannot work, and ``TypeError`` if there is no key or an
        option does not exist: where it is written, not at the first request.
        """
        keys = tuple(keys)
        if not keys:
            raise TypeError('name at least one key: lock("create_item")')
        Options().of_call(options)
        refuse_guard(guard, options)
        said = tuple(sorted(options.items()))
        parsed: list[KeyTemplate | KeyFunction] = []
        for key in keys:
            if isinstance(key, KeyTemplate) or callable(key):
                parsed.append(key)
                continue
            template = KeyTemplate.parse(key)
            template.in_request()
            parsed.append(template)
        return cls(tuple(parsed), said, guard, options, **more)

    @property
    def said(self) -> dict[str, object]:
        """Its options, and what else its user has written beside the keys and the guard."""
        said = dict(self._said)
        for each in fields(self):
            value = getattr(self, each.name)
            if each.default is not MISSING and value != each.default:
                said[each.name] = sorted(value) if isinstance(value, frozenset) else value
        return said

    @cached_property
    def templates(self) -> tuple[KeyTemplate, ...]:
        """The templates among its keys."""
        return tuple(key for key in self.keys if isinstance(key, KeyTemplate))

    @cached_property
    def functions(self) -> tuple[KeyFunction, ...]:
        """The functions among its keys."""
        return tuple(key for key in self.keys if not isinstance(key, KeyTemplate))

    def made_of(
        self,
        values_for: Callable[[KeyTemplate], Mapping[str, object]],
        call: Callable[[KeyFunction], object],
    ) -> tuple[CheckedKey, ...]:
        """Return the keys of one request, in the order in which every caller acquires them.

        There is none if all its keys are made by functions, and none of these has returned one.
        ``values_for`` returns what the request has for a template, and ``call`` what a key function
        returns for it. Raises ``InvalidKey`` for a key that cannot be made, and ``ConfigurationError``
        for a function that returned something else than strings.
        """
        found: list[CheckedKey] = []
        for key in self.keys:
            if isinstance(key, KeyTemplate):
                found.append(key.fill(values_for(key)))
            else:
                found += keys_made_by(key, call(key))
        return in_order(found) if len(found) > 1 else tuple(found)

    def __deepcopy__(self, memo: object) -> Self:
        """Return itself, which never changes: frameworks copy the routes and routers that they are given."""
        return self

    def __repr__(self) -> str:
        said = self.said
        if self.guard:
            said["guard"] = self.guard
        keys = [
            repr(key.text) if isinstance(key, KeyTemplate) else name_of(key) for key in self.keys
        ]
        shown = (
            f"{name}={name_of(value) if callable(value) else repr(value)}"
            for name, value in said.items()
        )
        return f"lock({', '.join([*keys, *shown])})"


def name_of(function: object) -> str:
    """Return the name of a function of the application, for messages."""
    return str(getattr(function, "__qualname__", None) or repr(function))


def request_values(
    template: KeyTemplate,
    *,
    path: Mapping[str, object],
    query: str,
    headers: Headers,
    of_view: bool = False,
) -> dict[str, object]:
    """The values that the request has for ``template``; what it lacks is left out.

    ``path`` has the path parameters, or ``of_view`` the arguments of a view, and ``query`` is the
    query string as it was sent. Raises ``ConfigurationError`` for an argument that the view does
    not have, and ``InvalidKey`` for a query parameter or a header that was sent twice: which of
    them counts would be each reader's own choice, and the lock has to be the handler's.
    """
    values: dict[str, object] = {}
    for name, source in template.sources.items():
        if source.kind != "path":
            value = sent_value(source, query=query, headers=headers)
            if value is not None:
                values[name] = value
        elif source.name in path:
            values[name] = path[source.name]
        elif of_view:
            raise lacking(f"lock({template.text!r})", "view's argument", source.name, path)
    return values


def sent_value(source: Source, *, query: str, headers: Headers) -> str | None:
    """The query parameter, header or cookie; ``None`` if it was not sent. Raises as ``request_values``.

    The header ``Host`` is the host's name alone: see ``_host_name``.
    """
    found: Sequence[str]
    if source.kind == "header":
        found = headers(source.name)
    elif source.kind == "cookie":
        sent = (each.partition("=") for line in headers("cookie") for each in line.split(";"))
        values = [value.strip() for name, _, value in sent if name.strip() == source.name]
        # Litestar decodes percent signs, and Werkzeug UTF-8. What one of them reads as equal is equal here.
        unquoted = [SimpleCookie().value_decode(value)[0] for value in values]
        read = {unquote_to_bytes(value.encode("latin-1", "replace")) for value in unquoted}
        found = list({value.decode("utf-8", "replace") for value in read})
    else:
        pairs = parse_qsl(query, keep_blank_values=True)
        found = [value for name, value in pairs if name == source.name]
    if len(found) > 1:
        raise InvalidKey(
            f"a lock needs one {source.kind} value of {source.name!r}, and the request has"
            f" {len(found)}"
        )
    if not found:
        return None
    return _host_name(found[0]) if source == _HOST else found[0]


def _host_name(header: str) -> str:
    """Return the name in a ``Host`` header: in lower case, without the port and a dot at the end.

    Routers that choose by host, Starlette's and Django's, mind none of these; and a client may write
    the default port, or leave it out.
    """
    name, bracket, _ = header.strip().lower().partition("]")
    return name + bracket if bracket else name.partition(":")[0].removesuffix(".")


def lacking(what: str, kind: str, name: str, there: Iterable[str]) -> ConfigurationError:
    """Return the error about a key that needs a value which no request for its route has."""
    names = ", ".join(map(repr, there)) or "none"
    return ConfigurationError(
        f"{what} needs the {kind} {name!r}; available: {names}. {{query.{name}}} would be a query parameter,"
        f" and {{header.{name}}} a header",
        code="missing_value",
    )


def wanted_by(
    function: Callable[..., object], values: Mapping[str, object]
) -> Mapping[str, object]:
    """Return those of the values that a key function names as parameters; all, if it takes any."""
    parameters = signature_of(function).parameters
    if any(each.kind is each.VAR_KEYWORD for each in parameters.values()):
        return values
    return {name: values[name] for name in parameters if name in values}


def required_by(function: Callable[..., object]) -> list[str]:
    """Return the names of the parameters that each call of a key function must give."""
    return [
        name
        for name, each in signature_of(function).parameters.items()
        if each.default is each.empty and each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)
    ]


def keys_made_by(function: Callable[..., object], made: object) -> list[CheckedKey]:
    """Return the keys that the application's key function has made from a request.

    ``None`` and an empty list are no keys: there is nothing to lock. Raises ``ConfigurationError`` if it
    returned something other than strings, and ``InvalidKey`` for a string that cannot be locked.
    """
    if made is None:
        return []
    given = [made] if isinstance(made, str) or not isinstance(made, Iterable) else list(made)
    texts = [key for key in given if isinstance(key, str)]
    keys = [check_key(key) for key in texts]
    if len(keys) < len(given):
        raise ConfigurationError(
            f"key function {name_of(function)} returned {made!r:.80}: a key is a string, several"
            " are a list of strings, and None locks nothing",
            code="key_function",
        )
    warn_of_templates([key for key in texts if "{" in key])
    return keys
