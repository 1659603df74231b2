"""What a request names, as the application reads it: PEP 3333 has text that is bytes in disguise.

The server has undone the percent-encoding, and put each byte into one character, as latin-1 does.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Final
from wsgiref.types import WSGIEnvironment

from ..request_values import Headers
from ..rules import Match, RuleSet

_WITHOUT_PREFIX: Final = ("CONTENT_TYPE", "CONTENT_LENGTH")
"""The headers that CGI, and therefore WSGI, has under their own names."""

_UNDECODED: Final = re.compile("[\ud800-\udfff]")


def path_of(environ: WSGIEnvironment) -> str:
    """Return the path of a request, without its query; bytes that are no text are replaced."""
    return next(_paths(environ))[1]


def query_of(environ: WSGIEnvironment) -> str:
    """Return the query string as it was sent."""
    return _bytes(environ.get("QUERY_STRING", "")).decode(errors="replace")


def headers_of(environ: WSGIEnvironment) -> Headers:
    """Return a function from the name of a header to its values.

    The server has put those of one name together, with commas: the application sees one, too.
    """
    return functools.partial(_header, environ)


def find(rules: RuleSet, environ: WSGIEnvironment, root_path: str) -> Match | None:
    """Return what a request locks; ``None`` if nothing.

    Bytes that are no UTF-8 are read differently by each framework, so what any of them may read is
    locked.
    """
    found = [
        match
        for script_name, path in _paths(environ)
        if (
            match := rules.find(environ["REQUEST_METHOD"], path, root_path=root_path or script_name)
        )
    ]
    if len(found) < 2:
        return found[0] if found else None
    first, *others = found
    return replace(first, others=(*first.others, *others))


def _paths(environ: WSGIEnvironment) -> Iterator[tuple[str, str]]:
    """Yield the part of the path that led to the application, and the whole path, in each reading."""
    script_name, path_info = _bytes(environ.get("SCRIPT_NAME", "")), _bytes(environ["PATH_INFO"])
    if path_info and not path_info.startswith(b"/"):
        path_info = b"/" + path_info  # Werkzeug and Bottle add what some servers leave out.
    path = script_name + path_info
    try:
        yield script_name.decode(), path.decode()
    except UnicodeDecodeError:
        for errors in ("replace", "ignore"):  # Werkzeug does the first, Bottle the second.
            yield script_name.decode(errors=errors), path.decode(errors=errors)
        yield _percent(script_name), _percent(path)


def _percent(path: bytes) -> str:
    """Return the path with the bytes that are no text percent-encoded again, as Django reads it."""
    text = path.decode(errors="surrogateescape")
    return _UNDECODED.sub(lambda byte: f"%{ord(byte[0]) - 0xDC00:02X}", text)


def _bytes(text: str) -> bytes:
    return text.encode("latin-1", errors="replace")  # More than latin-1 is no server's.


def _header(environ: WSGIEnvironment, wanted: str) -> list[str]:
    name = wanted.upper().replace("-", "_")
    value = environ.get(name if name in _WITHOUT_PREFIX else f"HTTP_{name}")
    return [] if value is None else [value]
