"""Bars of how often a second each contender had the lock, as an SVG."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Final

from .report import Findings

WIDTH: Final = 860
ROW: Final = 20
LABEL: Final = 270
FIGURE: Final = 80
DARK: Final = (
    "<style>@media (prefers-color-scheme: dark) {"
    " rect[fill=white] { fill: #14181d } text { fill: #e6eaee } }</style>"
)
"""What changes in dark mode: the paper and the ink."""

COLOURS: Final = {"weblock": "#2563eb", "floor": "#6b7280", "": "#d1a054"}


def plotted(findings: Sequence[Findings]) -> str:
    """One group of bars for each table that has rates, on a scale of its own."""
    parts: list[str] = []
    top = 10
    for each in findings:
        if each.rates:
            parts += _group(each, top)
            top += ROW * (len(each.rates) + 2)
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {top}"'
    font = ' font-family="sans-serif" font-size="12">'
    ground = f'<rect width="{WIDTH}" height="{top}" fill="white"/>'
    return "\n".join([head + font, DARK, ground, *parts, "</svg>\n"])


def _group(findings: Findings, top: int) -> list[str]:
    parts = [f'<text x="10" y="{top + 14}" font-weight="bold">{escape(findings.title)}</text>']
    most = max(findings.rates.values())
    for row, (name, rate) in enumerate(findings.rates.items(), start=1):
        y = top + ROW * row
        width = (WIDTH - LABEL - FIGURE) * rate / most
        colour = next(c for start, c in COLOURS.items() if name.startswith(start))
        parts += [
            f'<text x="{LABEL - 8}" y="{y + 14}" text-anchor="end">{escape(name)}</text>',
            f'<rect x="{LABEL}" y="{y + 3}" width="{width:.1f}" height="14" fill="{colour}"/>',
            f'<text x="{LABEL + width + 6:.1f}" y="{y + 14}">{rate:,.0f}/s</text>',
        ]
    return parts
