"""Prepares the pages of docs/ for the site that ``scripts/docs`` builds (a hook of MkDocs).

In the checkout, the pages link to files beside docs/, and have comments that only the tests read.
"""

from __future__ import annotations

import posixpath
import re
from typing import Any

_HIDDEN = re.compile(r"^<!-- test\n.*?^-->\n?", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\((?![a-z]+:|#)([^)\s]+)\)")


def on_page_markdown(markdown: str, *, page: Any, config: Any, **_: object) -> str:
    """Remove what only the tests read, and point links to other files to the repository."""

    def linked(link: re.Match[str]) -> str:
        folder = posixpath.dirname(page.file.src_uri)
        target = posixpath.normpath(posixpath.join("docs", folder, link[1]))
        if target.startswith("docs/"):
            return link[0]
        return f"]({config.repo_url.rstrip('/')}/blob/main/{target})"

    return _LINK.sub(linked, _HIDDEN.sub("", markdown))
