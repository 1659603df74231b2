"""The setting ``WEBLOCK``, one dict for each alias, as ``CACHES`` has it; and the locks by alias.

The setting is read when it is needed, so that it may be overridden, and it may be missing altogether:
``default`` then is the embedded engine, which serves one machine. ``locks["default"]`` is for threads,
``async_locks["default"]`` for tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, Generic, TypeVar
from urllib.parse import parse_qs, quote, urlencode

from django.conf import settings as django_settings
from django.db.backends.base.base import NO_DB_ALIAS
from django.db.backends.base.creation import TEST_DATABASE_PREFIX
from django.db.backends.signals import connection_created
from django.utils.module_loading import import_string

from ..._adapting import close
from ..._options import LocksOptions, seconds
from ..._platform.forks import Mutex, enter_child, getpid, process
from ..._runtime.observing import Observer, as_observers
from ...aio import AsyncLocks
from ...errors import ConfigurationError
from ...events import Acquired
from ...stores.url import DEFAULT as EMBEDDED
from ...sync import Locks
from ..kit import BODY_WAIT, seconds_or_none
from ..kit.guarding import DATABASE_GUARD, GUARDS, LEASE_GUARD, GuardKind
from ..kit.sql import LOCK_WAIT
from .database import is_inside_transaction, warn_of_transaction
from .signals import announcing
from .view_lock import DEFAULT, ViewRule, rules_of

OPTIONS: Final = tuple(name.upper() for name in LocksOptions.__annotations__)
"""The options in ``LocksOptions``, in upper case."""

OTHERS: Final = (
    "URL",
    "BUSY_VIEW",
    "REWRITE",
    "RULES",
    "GUARD",
    "GUARD_DATABASES",
    "GUARD_WAIT",
    "BODY_WAIT",
)


SCHEME: Final = "django://"

_NOT_OF_LIBPQ: Final = frozenset({"assume_role", "isolation_level", "pool", "server_side_binding"})
"""Options of Django's, or of its connections alone."""

L = TypeVar("L", Locks, AsyncLocks)


@dataclass(frozen=True)
class AliasSettings:
    """The settings of one alias.

    ``url`` may be several, a quorum. ``busy_view`` is a function
    of the request and the ``LockTimeout`` that makes the response, if it is not to be ours; ``rewrite``
    one of a ``Problem`` and its error, to the problem that is answered. ``body_wait`` is a number of
    seconds, or ``None``: see ``kit.bodies``. ``guards`` is whether databases guard the leases unless a lock says
    otherwise: those of ``guard_databases``, or of ``None`` all that have the table, which wait for ``guard_wait`` seconds.
    """

    alias: str
    url: str | Sequence[str]
    options: LocksOptions
    busy_view: Any
    rewrite: Any
    rules: tuple[ViewRule, ...]
    guards: bool
    guard_databases: frozenset[str] | None
    guard_wait: float
    body_wait: float | None

    @cached_property
    def identity(self) -> str:
        """Return a value that is equal for settings that make the same locks."""
        return repr((self.alias, self.url, sorted(self.options.items())))

    def guards_lock(self, guard: GuardKind | None) -> bool:
        """Return whether the databases guard a lock with this ``guard=``."""
        return self.guards if guard is None else guard == DATABASE_GUARD


def aliases() -> tuple[str, ...]:
    """Return the names of the aliases; only ``default`` if nothing is set."""
    return tuple(_setting()) or (DEFAULT,)


def engines_in(database: str) -> list[str]:
    """Return the URLs of the engines that ``django://`` keeps in a database of Django's."""
    urls = [given.get("URL") for given in _setting().values()]
    return [
        url_of_database(url, django_settings.DATABASES)
        for url in urls
        if isinstance(url, str) and url.startswith(SCHEME) and alias_of(url) == database
    ]


class Read(dict[str, AliasSettings]):
    """The settings of each alias as they were read, until a test overrides them.

    Raises ``ConfigurationError`` for an alias that is missing or invalid.
    """

    def __init__(self, weblock: object) -> None:
        super().__init__()
        self.weblock = weblock

    def __missing__(self, alias: str) -> AliasSettings:
        found = self[alias] = _of_alias(alias)
        return found

    @cached_property
    def rules(self) -> list[tuple[ViewRule, ...]]:
        """The rules of each alias that has some."""
        return [self[alias].rules for alias in _setting() if self[alias].rules]


_last_read = Read(None)


def current() -> Read:
    """Return what was read last, if it still holds: each override has an object of its own."""
    global _last_read  # noqa: PLW0603 - settings are global, and so is what was read of them
    weblock, read = getattr(django_settings, "WEBLOCK", None), _last_read
    if weblock is not read.weblock:
        read = _last_read = Read(weblock)
    return read


def _of_alias(alias: str) -> AliasSettings:
    setting, where = _setting(), f"WEBLOCK[{alias!r}]"
    if alias not in setting and (alias != DEFAULT or setting):
        raise ConfigurationError(
            f"WEBLOCK has no alias {alias!r:.80}; available: {', '.join(map(repr, setting)) or 'none'}"
        )
    given = setting.get(alias, {})
    known = (*OTHERS, *OPTIONS)
    if unknown := [name for name in given if name not in known]:
        raise ConfigurationError(f"{where} has {unknown[0]!r:.80}; available: {', '.join(known)}")
    url: Any = given.get("URL", EMBEDDED)
    if isinstance(url, str) and url.startswith(SCHEME):
        try:
            url = url_of_database(url, django_settings.DATABASES)
        except ConfigurationError as error:
            raise ConfigurationError(f"{where} {error.message}") from error
    options: Any = {name.lower(): given[name] for name in OPTIONS if name in given}
    observers = options.get("observers")
    if isinstance(observers, list | tuple):
        options["observers"] = [_imported(f"{where}['OBSERVERS']", each) for each in observers]
    functions: dict[str, Any] = {}
    for name in ("BUSY_VIEW", "REWRITE"):
        function = functions[name.lower()] = _imported(f"{where}[{name!r}]", given.get(name))
        if not (function is None or callable(function)):
            raise ConfigurationError(
                f"{where}[{name!r}] is {function!r:.80}: give a function, or its path"
            )
    kind, named = given.get("GUARD", LEASE_GUARD), given.get("GUARD_DATABASES")
    if kind not in GUARDS:
        raise ConfigurationError(f"{where}['GUARD'] is {kind!r:.80}: give 'lease' or 'database'")
    extra = [name for name in ("GUARD_DATABASES", "GUARD_WAIT") if name in given]
    if extra and "GUARD" not in given:
        raise ConfigurationError(
            f"{where} has {extra[0]} without 'GUARD': give 'GUARD': 'database', or 'lease' if single"
            ' locks have guard="database"'
        )
    if named is not None and (
        not isinstance(named, list | tuple | set | frozenset)
        or not named
        or not set(named) <= set(django_settings.DATABASES)
    ):
        raise ConfigurationError(
            f"{where}['GUARD_DATABASES'] is {named!r:.80}: give a list of"
            f" {', '.join(map(repr, django_settings.DATABASES))}"
        )
    return AliasSettings(
        alias=alias,
        url=url,
        options=options,
        **functions,
        rules=rules_of(given.get("RULES", ()), alias=alias),
        guards=kind == DATABASE_GUARD,
        guard_databases=None if named is None else frozenset(named),
        guard_wait=seconds("GUARD_WAIT", given.get("GUARD_WAIT", LOCK_WAIT), least=0.001),
        body_wait=seconds_or_none("BODY_WAIT", given.get("BODY_WAIT", BODY_WAIT)),
    )


def _imported(where: str, given: object) -> Any:
    """Return what a setting gives, which may be named by its path."""
    try:
        return import_string(given) if isinstance(given, str) else given
    except ImportError as error:
        raise ConfigurationError(f"{where}: {error}") from error


def _setting() -> Mapping[str, Mapping[str, Any]]:
    setting = getattr(django_settings, "WEBLOCK", {})
    wrong = [setting] if not isinstance(setting, Mapping) else []
    wrong += [] if wrong else [each for each in setting.values() if not isinstance(each, Mapping)]
    if wrong:
        raise ConfigurationError(
            "WEBLOCK must be a dict of aliases, each with its own dict, as in"
            f' {{"default": {{"URL": "redis://localhost"}}}}: found a {type(wrong[0]).__name__}'
        )
    found: Mapping[str, Mapping[str, Any]] = setting
    return found


def alias_of(url: str) -> str:
    """Return the alias in ``DATABASES`` that ``django://alias?options`` names."""
    return url.removeprefix(SCHEME).partition("?")[0]


def url_of_database(url: str, databases: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the URL of the engine in the database that ``django://alias`` names.

    The engine has connections of its own, with the settings of Django's. It creates its table, if ``create=false``
    does not say otherwise: a lock may be what protects ``migrate``. Raises ``ConfigurationError`` for an alias
    that does not exist, or whose database has no engine.
    """
    alias, options = alias_of(url), url.partition("?")[2]
    database = databases.get(alias)
    if database is None:
        raise ConfigurationError(
            f"names the database {alias!r:.80} in URL; DATABASES has {', '.join(sorted(databases))}"
        )
    backend = str(database.get("ENGINE", ""))
    if not backend.endswith((".postgresql", ".postgis")):
        raise ConfigurationError(
            f"names the database {alias!r:.80} in URL, whose ENGINE is {backend!r:.80}: leases can be"
            " kept in PostgreSQL only"
        )
    given = {
        "host": database.get("HOST"),
        "port": database.get("PORT"),
        "dbname": database.get("NAME"),
        **{
            name: value
            for name, value in database.get("OPTIONS", {}).items()
            if name not in _NOT_OF_LIBPQ
        },
    }
    if "create" not in parse_qs(options):
        given["create"] = "true"
    user = quote(str(database.get("USER") or ""), safe="")
    if password := database.get("PASSWORD"):
        user += f":{quote(str(password), safe='')}"
    set_here = {name: value for name, value in given.items() if value not in (None, "")}
    query = urlencode(set_here, quote_via=quote)
    return f"postgresql://{user}{'@' if user else ''}/?{'&'.join(filter(None, (query, options)))}"


class LocksByAlias(Mapping[str, L], Generic[L]):
    """The locks of each alias in ``WEBLOCK``, created when they are first needed.

    Equal settings give the same object, in a test that overrides them too. Locks whose settings are
    gone are not closed automatically: they may be in use.
    """

    def __init__(self, api: type[L]) -> None:
        self._api: type[L] = api
        self._made: dict[str, L] = {}
        self._guard = Mutex()

    def __getitem__(self, alias: str) -> L:
        """Return the locks of an alias; raise ``ConfigurationError`` if it is unknown or invalid."""
        given = current()[alias]
        if (found := self._made.get(given.identity)) is not None:
            return found
        if getpid() != process.pid:
            enter_child()
        with self._guard.lock:
            if given.identity in self._made:
                return self._made[given.identity]
            own: Any = given.options.get("observers", ())
            options = given.options.copy()
            try:
                observers = [*as_observers(own), announcing(self._api, given.alias)]
                if issubclass(self._api, Locks):  # Tasks have no transactions of Django's.
                    inside = is_inside_transaction
                    observers.append(
                        Observer(warn_of_transaction, only=[Acquired], when=inside, immediate=True)
                    )
                options["observers"] = observers
                made = self._made[given.identity] = self._api.from_url(given.url, **options)
            except ConfigurationError as error:
                text = f"WEBLOCK[{given.alias!r}]: {error.message}"
                raise ConfigurationError(text, code=error.code) from error
            return made

    def __iter__(self) -> Iterator[str]:
        return iter(aliases())

    def __len__(self) -> int:
        return len(aliases())

    def close_where(self, is_over: Callable[[str], bool]) -> None:
        """Close the locks on engines that are no longer needed, such as those of a test."""
        with self._guard.lock:
            gone = {key: made for key, made in list(self._made.items()) if is_over(made.engine)}
            for key in gone:
                del self._made[key]
        for made in gone.values():
            close(made)


locks = LocksByAlias(Locks)
async_locks = LocksByAlias(AsyncLocks)


def _follow_test_database(*, connection: Any, **_signal: object) -> None:
    """Close the engines in a database of a test run, which Django is about to drop.

    It drops and creates databases on a connection to none; in between, they have other names.
    """
    global _last_read  # noqa: PLW0603 - as in current
    if connection.alias != NO_DB_ALIAS:
        return
    over: set[str] = set()
    for alias, given in _setting().items():
        url = given.get("URL")
        if isinstance(url, str) and url.startswith(SCHEME):
            database = django_settings.DATABASES.get(alias_of(url), {})
            name = str(database.get("NAME"))
            if name.startswith(TEST_DATABASE_PREFIX) or name == database.get("TEST", {}).get(
                "NAME"
            ):
                over.add(locks[alias].engine)
    for each in (locks, async_locks):
        each.close_where(over.__contains__)
    _last_read = Read(None)


connection_created.connect(_follow_test_database, dispatch_uid="weblock.settings")
