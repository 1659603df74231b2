"""The server of a cache, for the locks of a project that has one for its cache already."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import SplitResult, quote, urlencode, urlsplit

from django.conf import settings

from ...errors import ConfigurationError


def url_of_cache(name: object) -> str:
    """The URL of the server that a cache of Django's, or of django-redis, writes to.

    Raises ``ConfigurationError`` for a cache that there is not, or that is not on Redis.
    """
    cache = settings.CACHES.get(name, {})
    location = cache.get("LOCATION")
    if isinstance(location, str):
        location = re.split("[;,]", location)
    first = location[0] if location else None
    if not isinstance(first, str) or not re.match(r"(rediss?|unix)://", first):
        raise ConfigurationError(
            f"names the cache {name!r:.80}, which has no redis://, rediss:// or unix:// in LOCATION"
        )
    options = {key.lower(): value for key, value in cache.get("OPTIONS", {}).items()}
    url = _with_database(_with_password(urlsplit(first), options), options)
    if "sentinels" in options:
        url = _through_sentinels(url, options)
    # Not geturl(), which writes unix:/run/redis.sock.
    return f"{url.scheme}://{url.netloc}{url.path}{url.query and '?' + url.query}"


def _with_password(url: SplitResult, options: Mapping[str, Any]) -> SplitResult:
    """The URL with the password that stands among the options instead."""
    password = options.get("password")
    if not password or url.password:
        return url
    user = f"{quote(options.get('username') or '', safe='')}:{quote(password, safe='')}"
    return url._replace(netloc=f"{user}@{url.netloc.rpartition('@')[2]}")


def _with_database(url: SplitResult, options: Mapping[str, Any]) -> SplitResult:
    if "db" not in options or url.scheme == "unix" or url.path.strip("/"):
        return url
    return url._replace(path=f"/{options['db']}")


def _through_sentinels(url: SplitResult, options: Mapping[str, Any]) -> SplitResult:
    """Return the URL for django-redis, where the host is the name of the master."""
    user, at, service = url.netloc.rpartition("@")
    sentinels = ",".join(f"{host}:{port}" for host, port in options["sentinels"])
    theirs = options.get("sentinel_kwargs") or {}
    passed = {
        f"sentinel_{each}": theirs[each] for each in ("username", "password") if theirs.get(each)
    }
    return SplitResult(
        f"{url.scheme}+sentinel",
        f"{user}{at}{sentinels}",
        f"/{service}{url.path}",
        urlencode(passed),
        "",
    )
