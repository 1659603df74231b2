"""``weblock check module:app``: what an application locks, and what is wrong with that."""

from __future__ import annotations

import importlib
import sys
from importlib.metadata import entry_points
from operator import attrgetter
from pathlib import Path
from typing import Any

import click

from .. import ConfigurationError
from .._platform.logs import printable
from ..contrib.kit.application import Asked, Locked, layers_of
from .app import No, Session, command, pass_session, say


@command("check")
@click.argument("app", metavar="MODULE:APP")
@click.argument("request", metavar="[METHOD PATH]", nargs=-1)
@click.option("--app-dir", default=".", show_default=True, help="Where to look for MODULE first.")
@pass_session
def check_command(session: Session, app: str, request: tuple[str, ...], *, app_dir: str) -> None:
    """Lists what a web or Celery application locks, and what is wrong.

    For each locked route, rule, view or task it prints the keys, the options, the guard, the engine, and what comes
    before the lock. With METHOD and PATH, it prints only what serves that request; METHOD is WEBSOCKET for a
    websocket. It imports the application as its server does, and sends it nothing.

    Exits with 1 if something is wrong, or nothing is locked.
    """
    if len(request) not in (0, 2):
        raise click.UsageError("a request is a method and a path, as in POST /items/7")
    asked = Asked.of(*request) if request else None
    module, _, path = app.partition(":")
    if not (module and path):
        raise ConfigurationError(
            f"{app!r:.80} does not name an application: write module:name, as in shop:app"
        )
    # For good: an application may import more of its modules later.
    sys.path.insert(0, str(Path(app_dir).resolve()))
    try:
        application = attrgetter(path.removesuffix("()"))(importlib.import_module(module))
    except (ImportError, AttributeError) as error:
        raise ConfigurationError(
            f"{app!r:.80} cannot be imported: {error}. Name the folder of the module with --app-dir"
        ) from error
    if path.endswith("()"):
        application = application()
    points = set(entry_points(group="weblock.adapters"))  # An installation may be found twice.
    # An adapter that the application has not imported locks nothing in it.
    adapters: list[Any] = [each.load() for each in points if each.module in sys.modules]
    layers = list(layers_of(application))
    found = [each for layer in layers for locked_in in adapters for each in locked_in(layer, asked)]
    locked = [each for each in found if isinstance(each, Locked)]
    wrong = [str(each) for each in found if isinstance(each, ConfigurationError)]
    facts = {"locked": [each.facts() for each in locked], "wrong": wrong}
    if locked and not session.json:
        blocks = ("\n".join(map(printable, str(each).split("\n"))) for each in locked)
        say("\n\n".join(blocks))
    if not (wrong or any(each.keys for each in locked)):
        wrong = [f"nothing locks {' '.join(request)}" if request else f"{app} locks nothing"]
    if wrong:
        raise No("\n".join(wrong), facts)
    if session.json:
        session.say("", facts)
