"""Prepares the pages of docs/ for the site that ``scripts/docs`` builds (a hook of MkDocs).

In the checkout, the pages link to files outside docs/, and have comments that only the tests read. On the
site, the name of a test is a link to it, the first sentence of a page is its description, and
``llms.txt`` lists the pages for language models.
"""

from __future__ import annotations

import functools
import logging
import posixpath
import re
from pathlib import Path
from typing import Any

_TOP = Path(__file__).parents[1]
_log = logging.getLogger("mkdocs.hooks.site")  # Its warnings fail a strict build.

_HIDDEN = re.compile(r"^<!-- test\n.*?^-->\n?", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\((?![a-z]+:|#)([^)\s]+)\)")
_TEST = re.compile(r"`(test_\w+)`")
_SENTENCE = re.compile(
    r"^(?![#<!|:-]|```)\S.+?(?=\.\**\s|[.:]?\n\n|[.:]?\n*\Z)", re.MULTILINE | re.DOTALL
)
_MARKUP = re.compile(r"\[([^]]*)\]\([^)]*\)|[*`]")


@functools.cache
def _tests() -> dict[str, str]:
    """Where each test is, from the top of the checkout."""
    return {
        name: f"{path.relative_to(_TOP)}#L{number}"
        for path in sorted(_TOP.glob("tests/**/test_*.py"))
        for number, line in enumerate(path.read_text().splitlines(), 1)
        for name in re.findall(r"^ *(?:async )?def (test_\w+)", line)
    }


def on_page_markdown(markdown: str, *, page: Any, config: Any, **_: object) -> str:
    """Remove what only the tests read, and point links to other files to the repository."""
    source = f"{config.repo_url.rstrip('/')}/blob/main"

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
        return f"]({source}/{target})"

    def test(named: re.Match[str]) -> str:
        place = _tests().get(named[1])
        return f"[{named[0]}]({source}/{place})" if place else named[0]

    visible = _HIDDEN.sub("", markdown)
    if sentence := _SENTENCE.search(visible):
        text = " ".join(_MARKUP.sub(r"\1", sentence[0]).split())
        page.meta.setdefault("description", f"{text}.")
    return _TEST.sub(test, _LINK.sub(linked, visible))


def on_env(_env: object, *, config: Any, files: Any) -> None:
    """Write ``llms.txt``, when the titles of all pages are known."""
    pages = [file.page for file in files.documentation_pages() if file.inclusion.is_in_nav()]
    lines = [
        f"- [{page.title}]({page.canonical_url}): {page.meta.get('description', '')}"
        for page in pages
    ]
    text = f"# {config.site_name}\n\n> {config.site_description}\n\n## Pages\n\n" + "\n".join(lines)
    Path(config.site_dir).mkdir(parents=True, exist_ok=True)
    Path(config.site_dir, "llms.txt").write_text(f"{text}\n")
