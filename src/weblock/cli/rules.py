"""``weblock rules app:app POST /path``: what a request would lock."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from .. import ConfigurationError
from .._platform.logs import printable
from ..contrib import wsgi
from ..contrib.asgi.middleware import rules_of
from ..contrib.rules import Explanation, explain
from ..contrib.rules.explaining import path_and_query
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
    """Says which rule of an ASGI or WSGI application matches a request, and what it locks.

    URL is a path, with its query: /shops/7/items?page=2. METHOD is WEBSOCKET for a websocket. It imports
    the application as its server does, and sends it nothing. Exits with 1 if the request locks nothing.
    """
    application = _load(app, app_dir)
    method = method.upper()
    headers = {name.strip(): value.strip() for name, _, value in (h.partition(":") for h in header)}
    said = _by_rule(application, method, target, headers)
    if said and (said.keys or said.problem):
        session.say("\n".join(map(printable, str(said).split("\n"))), _told(said))
        return
    if route := _by_dependency(application, method, target):
        session.say(*route)
        return
    if said is None and type(application).__module__.startswith("django."):
        raise ConfigurationError(
            f"{app} is a Django project, whose settings know the rules: ask python manage.py weblock"
            f" rules {method} {target}"
        )
    raise No(
        str(said) if said else f"nothing locks {method} {target}: {app} has no rules",
        _told(said) if said else {"keys": [], "problem": None, "rules": []},
    )


def _by_rule(
    application: object, method: str, target: str, headers: Mapping[str, str]
) -> Explanation | None:
    """Return what the application's rules lock: of several sets of rules, the first that locks."""
    said = [
        explain(rules, method, target, root_path=root_path, headers=headers)
        for rules, root_path in (*rules_of(application), *wsgi.rules_of(application))
    ]
    return next((each for each in said if each.keys or each.problem), said[0] if said else None)


def _told(said: Explanation) -> dict[str, Any]:
    rules = [asdict(each) for each in said.verdicts]
    return {"keys": list(said.keys), "problem": said.problem or None, "rules": rules}


def _by_dependency(application: Any, method: str, target: str) -> tuple[str, dict[str, Any]] | None:
    """Return what a FastAPI route locks by ``Depends(lock(...))``, in words and in JSON."""
    if "fastapi" not in sys.modules or not hasattr(application, "routes"):
        return None
    from ..contrib.fastapi.routes import locking_route

    path, _ = path_and_query(target)
    found = locking_route(application.routes, method, path)
    if found is None:
        return None
    keys = [getattr(key, "text", None) or repr(key) for lock in found.locks for key in lock.keys]
    text = f"{method} {path} is served by the route {found}, which locks "
    return text + ", ".join(map(repr, keys)), {"route": str(found), "templates": keys}


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
