"""What a request names, as its application reads it. In PEP 3333, texts are bytes in disguise.

The server has undone the percent-encoding, and put each byte into one character, as latin-1 does.
"""

from __future__ import annotations

import functools
import re
from dataclasses import replace
from typing import Final
from wsgiref.types import WSGIEnvironment

from ..request_values import Headers
from ..rules import Match, RuleSet

_WITHOUT_PREFIX: Final = ("CONTENT_TYPE", "CONTENT_LENGTH")
"""The headers that CGI, and therefore WSGI, has under their own names."""

_UNDECODED: Final = re.compile("[\ud800-\udfff]")


def path_of(environ: WSGIEnvironment) -> str:
    """Return the path of a request, without its query; bytes that are not UTF-8 are replaced."""
    disguised: str = environ.get("SCRIPT_NAME", "") + environ["PATH_INFO"]
    return disguised.encode("latin-1", errors="replace").decode(errors="replace")


def query_of(environ: WSGIEnvironment) -> str:
    """Return the query string as it was sent."""
    disguised: str = environ.get("QUERY_STRING", "")
    return disguised.encode("latin-1", errors="replace").decode(errors="replace")


def headers_of(environ: WSGIEnvironment) -> Headers:
    """Return a function from the name of a header to its values.

    The server has put those of one name together, with commas: the application sees one, too.
    """
    return functools.partial(_header, environ)


def find(rules: RuleSet, environ: WSGIEnvironment, root_path: str) -> Match | None:
    """Return what a request locks; ``None`` if nothing."""
    script_name, path_info = environ.get("SCRIPT_NAME", ""), environ["PATH_INFO"]
    if path_info and not path_info.startswith("/"):
        path_info = f"/{path_info}"  # Werkzeug and Bottle add what some servers leave out.
    path = (script_name + path_info).encode("latin-1", errors="replace")
    mount = script_name.encode("latin-1", errors="replace")
    try:
        return rules.find(
            environ["REQUEST_METHOD"], path.decode(), root_path=root_path or mount.decode()
        )
    except UnicodeDecodeError:
        return _find_in_any_reading(rules, environ["REQUEST_METHOD"], path, mount, root_path)


def _find_in_any_reading(
    rules: RuleSet, method: str, path: bytes, mount: bytes, root_path: str
) -> Match | None:
    """Return what a path locks whose bytes are not UTF-8, in whichever way its framework reads it."""
    found = [
        match
        for read in (_replace, _ignore, _percent)
        if (match := rules.find(method, read(path), root_path=root_path or read(mount)))
    ]
    if len(found) < 2:
        return found[0] if found else None
    first, *others = found
    return replace(first, others=(*first.others, *others))


def _replace(path: bytes) -> str:
    """Return the path as Werkzeug reads it."""
    return path.decode(errors="replace")


def _ignore(path: bytes) -> str:
    """Return the path as Bottle reads it."""
    return path.decode(errors="ignore")


def _percent(path: bytes) -> str:
    """Return the path as Django reads it: bytes that are not UTF-8 are percent-encoded again."""
    text = path.decode(errors="surrogateescape")
    return _UNDECODED.sub(lambda byte: f"%{ord(byte[0]) - 0xDC00:02X}", text)


def _header(environ: WSGIEnvironment, wanted: str) -> list[str]:
    name = wanted.upper().replace("-", "_")
    value = environ.get(name if name in _WITHOUT_PREFIX else f"HTTP_{name}")
    return [] if value is None else [value]
