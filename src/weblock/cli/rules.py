"""``weblock rules app:app POST /path``: what a request would lock."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click

from .. import ConfigurationError
from .._platform.logs import printable
from ..contrib.kit import rules_of
from ..contrib.kit.rules import Explanation, explain
from ..contrib.kit.rules.explaining import path_and_query
from .app import No, Session, command, pass_session


@command("rules")
@click.argument("app", metavar="MODULE:APP")
@click.argument("method")
@click.argument("target", metavar="URL")
@click.option("--header", multiple=True, metavar="'NAME: VALUE'", help="A header of the request.")
@click.option("--app-dir", default=".", show_default=True, help="Where to look for MODULE first.")
@pass_session
def rules_command(
    session: Session, app: str, method: str, target: str, *, header: Sequence[str], app_dir: str
) -> None:
    """Says which rule and which route of an ASGI or WSGI application serve a request, and what they lock.

    URL is a path, with its query: /shops/7/items?page=2. METHOD is WEBSOCKET for a websocket. It imports
    the application as its server does, and sends it nothing. Exits with 1 if the request locks nothing.
    """
    application = _load(app, app_dir)
    method = method.upper()
    headers = {name.strip(): value.strip() for name, _, value in (h.partition(":") for h in header)}
    said = _by_rule(application, method, target, headers)
    route = _by_dependency(application, method, target, headers)
    facts = {**(_told(said) if said else {}), **(route.facts if route else {})}
    if texts := _what_locks(said, route):
        session.say("\n".join(map(printable, texts)), facts)
        return
    if said is None and type(application).__module__.startswith("django."):
        raise ConfigurationError(
            f"{app} is a Django project, whose settings know the rules: ask python manage.py weblock"
            f" rules {method} {target}"
        )
    nothing = f"nothing locks {method} {target}: {app} has no rules"
    texts = [str(said) if said else nothing, *([str(route)] if route else [])]
    raise No("\n".join(texts), {"keys": [], "problem": None, "rules": [], **facts})


def _what_locks(said: Explanation | None, route: RouteFound | None) -> list[str]:
    """Return the lines that say what the request locks; none if it locks nothing."""
    lines = str(said).split("\n") if said and (said.keys or said.problem) else []
    # A request that a rule refuses with 400 reaches no route.
    if route and route.templates and not (said and said.problem):
        lines.append(str(route))
    return lines


def _by_rule(
    application: object, method: str, target: str, headers: Mapping[str, str]
) -> Explanation | None:
    """Return what the application's rules lock: of several sets of rules, the first that locks."""
    said = [
        explain(rules, method, target, root_path=root_path, headers=headers)
        for rules, root_path in rules_of(application)
    ]
    return next((each for each in said if each.keys or each.problem), said[0] if said else None)


def _told(said: Explanation) -> dict[str, Any]:
    rules = [asdict(each) for each in said.verdicts]
    return {"keys": list(said.keys), "problem": said.problem or None, "rules": rules}


@dataclass(frozen=True, slots=True)
class RouteFound:
    """The route of FastAPI or Starlette that serves a request, and the key templates it locks."""

    request: str
    route: str
    templates: tuple[str, ...]

    @property
    def facts(self) -> dict[str, Any]:
        """What ``--json`` prints of it."""
        return {"route": self.route, "templates": list(self.templates)}

    def __str__(self) -> str:
        keys = ", ".join(map(repr, self.templates)) or "nothing"
        return f"{self.request} is served by the route {self.route}, which locks {keys}"


def _by_dependency(
    application: object, method: str, target: str, headers: Mapping[str, str]
) -> RouteFound | None:
    """Return the route that serves a request, and what it locks by ``Depends(lock(...))``."""
    if "fastapi" not in sys.modules:
        return None
    from ..contrib.fastapi.routes import serving_route

    path, _ = path_and_query(target)
    found = serving_route(application, method, path, headers)
    if found is None:
        return None
    keys = [getattr(key, "text", None) or repr(key) for lock in found.locks for key in lock.keys]
    return RouteFound(f"{method} {path}", str(found), tuple(keys))


def _load(name: str, folder: str) -> object:
    """Import what ``module:name`` names. Raises ``ConfigurationError``."""
    module_name, colon, path = name.partition(":")
    if not (module_name and colon and path):
        raise ConfigurationError(
            f"{name!r:.80} names no application: write module:name, as in shop:app"
        )
    folder = str(Path(folder).resolve())
    sys.path.insert(0, folder)
    try:
        found: Any = importlib.import_module(module_name)
        for part in path.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise ConfigurationError(
            f"{name!r:.80} cannot be imported: {error}. Name the folder of the module with --app-dir"
        ) from error
    finally:
        sys.path.remove(folder)
    return found
