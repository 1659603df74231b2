"""URLs of engines, as tests vary them."""

from __future__ import annotations

from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

ANSWERED: dict[str, object] = {"timeout": 20, "connect_timeout": 20}
"""Options of a client that waits for a server that is there for longer than a busy machine lets it wait.

The defaults are a second or two: right for a request, too short for a test that says nothing of time.
"""


def varied(url: str, **options: object) -> str:
    parts = urlsplit(url)
    query = dict(parse_qsl(parts.query, keep_blank_values=True)) | options
    return urlunsplit(parts._replace(query=urlencode(query, safe=":/")))
