"""Finds the commonest slips of English in the pages, docstrings and comments: ``python -m tests.english``.

Each slip is a pattern and what to write instead. Code in pages is left alone, and so is what stands
between backticks.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

TOP: Final = Path(__file__).parents[1]
PAGES: Final = ("*.md", "docs/**/*.md")
MODULES: Final = ("src/**/*.py", "scripts/*.py")

_NO_PROSE: Final = re.compile(
    r"^```.*?^```$|<!--.*?-->|``[^`]*``|`[^`\n]*`|\]\([^)]*\)", re.MULTILINE | re.DOTALL
)


class Slip(NamedTuple):
    """A pattern, and what to write instead."""

    pattern: re.Pattern[str]
    instead: str


def _slip(pattern: str, instead: str) -> Slip:
    return Slip(re.compile(pattern, re.MULTILINE), instead)


IN_PROSE: Final = [
    _slip(
        r"(?:^|[.;] )(?:And |But )?[Ww]ho (?!holds\b|else\b|waits\b|is trusted)[a-z]+s\b(?![^.?!]*\?)",
        "name the subject: 'A caller that ...'",
    ),
    _slip(r"\b[Ww]hoever\b", "name the subject: a caller, a process, a client"),
    _slip(r"\b(?:[Tt]hose|[Tt]he one|[Oo]ne) who\b", "name the subject: callers, waiters, holders"),
    _slip(r"\b(?:is|are) told\b(?! apart)", "learns, gets, is notified"),
    _slip(r"\bthere twice\b", "repeated"),
    _slip(r"\bmay not\b(?!,)", "must not, cannot or might not"),
    _slip(r"\boverrules?\b", "overrides"),
    _slip(r"\bat work\b", "running"),
    _slip(r"\bin vain\b", "say what did not happen"),
    _slip(r"\b(?:is|are) left to\b", "say who does it"),
    _slip(r"\bgives? it up\b", "times out, or stops"),
    _slip(r"\bhears? of\b", "learns of"),
    _slip(r"\bsomebody\b|\bSomebody\b", "someone, or better: a caller, another process"),
]

OPENINGS: Final = [
    _slip(r"\AHas\b", "begin with what the caller gets: 'Make ...', 'Let ...'"),
    _slip(r"\AThe same\b", "say what it is"),
    _slip(r"\A(?:Of one|Of the|That of|Those of)\b", "begin with what the caller gets"),
]
"""How a docstring must not begin."""


class Found(NamedTuple):
    """A slip, and where it is."""

    path: Path
    line: int
    text: str
    instead: str

    def __str__(self) -> str:
        return f"{self.path.relative_to(TOP)}:{self.line}: {self.text!r}: {self.instead}"


def slips() -> Iterator[Found]:
    """All slips in the checkout."""
    for pattern in PAGES:
        for path in sorted(TOP.glob(pattern)):
            yield from _found(path, 1, _NO_PROSE.sub(_blank, path.read_text()), IN_PROSE)
    for pattern in MODULES:
        for path in sorted(TOP.glob(pattern)):
            yield from _found_in_module(path)


def _found_in_module(path: Path) -> Iterator[Found]:
    source = path.read_text()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            text = node.value.value
            if isinstance(text, str):
                prose = _NO_PROSE.sub(_blank, text)
                yield from _found(path, node.lineno, prose, [*IN_PROSE, *OPENINGS])
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            prose = _NO_PROSE.sub(_blank, token.string.lstrip("# "))
            yield from _found(path, token.start[0], prose, IN_PROSE)


def _blank(match: re.Match[str]) -> str:
    return re.sub(r"[^\n]", " ", match[0])


def _found(path: Path, line: int, text: str, patterns: list[Slip]) -> Iterator[Found]:
    for slip in patterns:
        for match in slip.pattern.finditer(text):
            at = line + text.count("\n", 0, match.start())
            yield Found(path, at, match[0].strip(), slip.instead)


if __name__ == "__main__":
    found = list(slips())
    print(*found, sep="\n")
    sys.exit(1 if found else 0)
