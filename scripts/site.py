"""Prepares the pages of docs/ for the site that ``scripts/docs`` builds (a hook of MkDocs).

In the checkout, the pages link to files beside docs/, and have comments that only the tests read.
"""

from __future__ import annotations

import logging
import posixpath
import re
from pathlib import Path
from typing import Any

_TOP = Path(__file__).parents[1]
_log = logging.getLogger("mkdocs.hooks.site")  # Its warnings fail a strict build.

_HIDDEN = re.compile(r"^<!-- test\n.*?^-->\n?", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\((?![a-z]+:|#)([^)\s]+)\)")


def on_page_markdown(markdown: str, *, page: Any, config: Any, **_: object) -> str:
    """Remove what only the tests read, and point links to other files to the repository."""

    def linked(link: re.Match[str]) -> str:
        folder = posixpath.dirname(page.file.src_uri)
        target = posixpath.normpath(posixpath.join("docs", folder, link[1]))
        if target.startswith("docs/"):
            return link[0]
        if not (_TOP / target.partition("#")[0]).exists():
            _log.warning(
                "Doc file %r contains a link %r, but there is no %r in the checkout.",
                page.file.src_uri,
                link[1],
                target,
            )
        return f"]({config.repo_url.rstrip('/')}/blob/main/{target})"

    return _LINK.sub(linked, _HIDDEN.sub("", markdown))
