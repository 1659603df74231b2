"""What a request names, as its application reads it. In PEP 3333, texts are bytes in disguise.

The server has undone the percent-encoding, and put each byte into one character, as latin-1 does.
"""

from __future__ import annotations

import functools
from typing import Final
from wsgiref.types import WSGIEnvironment

from ..kit.rules import Match, RuleSet
from ..kit.values import Headers

_WITHOUT_PREFIX: Final = ("CONTENT_TYPE", "CONTENT_LENGTH")
"""The headers that CGI, and therefore WSGI, has under their own names."""


def path_of(environ: WSGIEnvironment) -> str:
    """Return the path of a request, without its query; bytes that are not UTF-8 are replaced."""
    return _text(environ.get("SCRIPT_NAME", "") + environ["PATH_INFO"])


def query_of(environ: WSGIEnvironment) -> str:
    """Return the query string as it was sent."""
    return _text(environ.get("QUERY_STRING", ""))


def headers_of(environ: WSGIEnvironment) -> Headers:
    """Return a function from the name of a header to its values.

    The server has put those of one name together, with commas: the application sees one, too.
    """
    return functools.partial(_header, environ)


def find(rules: RuleSet, environ: WSGIEnvironment, root_path: str) -> Match | None:
    """Return what a request locks; ``None`` if nothing. Raises ``StrangePath``."""
    script_name, path_info = environ.get("SCRIPT_NAME", ""), environ["PATH_INFO"]
    if path_info and not path_info.startswith("/"):
        path_info = f"/{path_info}"  # Werkzeug and Bottle add what some servers leave out.
    path, mount = _text(script_name + path_info), _text(script_name)
    return rules.find(environ["REQUEST_METHOD"], path, root_path=root_path or mount)


def _text(disguised: str) -> str:
    """Return the text of bytes in disguise; bytes that are not UTF-8 are replaced."""
    return disguised.encode("latin-1", errors="replace").decode(errors="replace")


def _header(environ: WSGIEnvironment, wanted: str) -> list[str]:
    name = wanted.upper().replace("-", "_")
    value = environ.get(name if name in _WITHOUT_PREFIX else f"HTTP_{name}")
    return [] if value is None else [value]
