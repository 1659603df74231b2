"""A picture of critical sections as SVG: a panel for each run, a bar for each section.

Its colours follow the reader's light or dark mode.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Final, NamedTuple

from demo.trace import Section

WIDTH: Final = 960
MARGIN: Final = 24
LANE: Final = 16
HEAD: Final = 34
GAP: Final = 20
FOOT: Final = 64
FONT: Final = "system-ui, Segoe UI, Helvetica, Arial, sans-serif"

STYLE: Final = """\
.paper { fill: #ffffff } .ground { fill: #f4f6f8 } .ink { fill: #1f2933 } .pale { fill: #66717d }
.alone { fill: #2b8a66 } .together { fill: #d6453d } .on { fill: #ffffff }
.line { stroke: #1f2933 }
@media (prefers-color-scheme: dark) {
  .paper { fill: #14181d } .ground { fill: #20262d } .ink { fill: #e6eaee } .pale { fill: #98a3ae }
  .alone { fill: #35a77c } .together { fill: #e05a52 } .on { fill: #ffffff }
  .line { stroke: #e6eaee }
}"""
"""The colours of each class, for light mode and for dark mode."""

LEAST: Final = 2.5
"""The least width of a bar, in pixels: a request that only counts takes a millisecond."""


class Panel(NamedTuple):
    """One run: its title, what to know about it, and its critical sections."""

    title: str
    says: str
    sections: Sequence[Section]
    items: int
    overlaps: int
    held: bool
    """Whether the bound was kept and no two sections overlapped."""
    ttl_ends: float | None = None
    """Seconds after which the lock of the first section expires, if it does."""


class Drawing(NamedTuple):
    """What all panels of a picture have in common."""

    title: str
    bound: int
    work: float
    """Seconds; a section that lasts as long has added an item."""
    slow: float = float("inf")
    """Seconds; a section that lasts as long is called slow in the picture."""


class Span(NamedTuple):
    """The time of a section, in seconds from the start of its run."""

    start: float
    end: float


class Scale(NamedTuple):
    """Turns a moment into a place from left to right."""

    seconds: float

    def x(self, at: float) -> float:
        """Return the pixels from the left."""
        return MARGIN + at / self.seconds * (WIDTH - 2 * MARGIN)


def draw(drawing: Drawing, panels: Sequence[Panel]) -> str:
    """Return the picture as SVG."""
    runs = [_spans(each.sections) for each in panels]
    scale = Scale(max(span.end for run in runs for span in run) * 1.02)
    parts: list[str] = []
    top = float(MARGIN)
    for panel, spans in zip(panels, runs, strict=True):
        drawn, height = _panel(drawing, panel, spans, scale, top)
        parts += drawn
        top += height + GAP
    parts += _axis(scale, top)
    parts += _legend(drawing, panels, top + 34)
    height = top + FOOT
    size = f'viewBox="0 0 {WIDTH} {height:g}" width="{WIDTH}" height="{height:g}"'
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="{FONT}">',
            f"<title>{escape(drawing.title)}</title>",
            f"<style>{STYLE}</style>",
            f'<rect width="{WIDTH}" height="{height:g}" class="paper"/>',
            *parts,
            "</svg>",
            "",
        ]
    )


def _spans(sections: Sequence[Section]) -> list[Span]:
    start = min(each.enter for each in sections)
    return [Span(each.enter - start, (each.leave or each.enter) - start) for each in sections]


def _panel(
    drawing: Drawing, panel: Panel, spans: Sequence[Span], scale: Scale, top: float
) -> tuple[list[str], float]:
    """Return one panel and its height: title, result, and the sections in as few lanes as possible."""
    lanes = _lanes(spans)
    bottom = top + HEAD + LANE * (max(lanes) + 1)
    ground = f'y="{top + HEAD:g}" width="{WIDTH - 2 * MARGIN}" height="{bottom - top - HEAD:g}"'
    parts = [
        _title(panel, top + 13),
        _text(MARGIN, top + 27, panel.says, colour="pale", size=12),
        f'<rect x="{MARGIN}" {ground} class="ground"/>',
    ]
    together = _together(spans)
    items = _items(spans, drawing.work)
    for span, lane in zip(spans, lanes, strict=True):
        y = top + HEAD + LANE * lane + 2
        parts.append(_bar(scale, span, y, "alone"))
        parts += [
            _bar(scale, Span(max(span.start, each.start), min(span.end, each.end)), y, "together")
            for each in together
            if each.start < span.end and span.start < each.end
        ]
        if span in items:
            parts += _badge(scale.x(span.end) - 10, y + 6, items.index(span) + 1, drawing.bound)
        if span.end - span.start >= drawing.slow:
            parts.append(_text(scale.x(span.start) + 6, y + 9.5, "slow", size=10, colour="on"))
    if panel.ttl_ends is not None:
        parts.append(_ttl(scale.x(panel.ttl_ends), top + HEAD, bottom + 5))
    return parts, bottom - top


def _title(panel: Panel, y: float) -> str:
    """Return the title with the result behind it, which a narrow screen shows before it is scrolled."""
    overlaps = f"{panel.overlaps or 'no'} overlap{'' if panel.overlaps == 1 else 's'}"
    colour = "alone" if panel.held else "together"
    result = f'<tspan dx="12" class="{colour}">{panel.items} items, {overlaps}</tspan>'
    return _text(MARGIN, y, panel.title, weight=600, size=15).replace("</text>", f"{result}</text>")


def _lanes(spans: Sequence[Span]) -> list[int]:
    """Return a lane for each span, so that no bar covers another."""
    ends: list[float] = []
    lanes = []
    for span in spans:
        free = next((lane for lane, end in enumerate(ends) if end <= span.start), len(ends))
        ends[free : free + 1] = [span.end]
        lanes.append(free)
    return lanes


def _together(spans: Sequence[Span]) -> list[Span]:
    """Return the times at which more than one section was running."""
    steps = sorted([(each.start, 1) for each in spans] + [(each.end, -1) for each in spans])
    inside, since, found = 0, 0.0, []
    for at, step in steps:
        if inside == 1 and step == 1:
            since = at
        if inside == 2 and step == -1:
            found.append(Span(since, at))
        inside += step
    return found


def _items(spans: Sequence[Span], work: float) -> list[Span]:
    """Return the sections that added an item, in the order in which they did."""
    return sorted(
        (each for each in spans if each.end - each.start >= work), key=lambda each: each.end
    )


def _bar(scale: Scale, span: Span, y: float, colour: str) -> str:
    x = scale.x(span.start)
    width = max(LEAST, scale.x(span.end) - x)
    return f'<rect x="{x:.1f}" y="{y:g}" width="{width:.1f}" height="{LANE - 4}" class="{colour}"/>'


def _ttl(x: float, top: float, bottom: float) -> str:
    return (
        f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{top:g}" y2="{bottom:g}" class="line"'
        ' stroke-dasharray="4 3"/>'
    )


def _axis(scale: Scale, top: float) -> list[str]:
    parts = []
    at = 0.0
    while at < scale.seconds:
        anchor = "middle" if at else "start"
        parts.append(
            _text(scale.x(at), top + 6, f"{at:g} s", size=11, colour="pale", anchor=anchor)
        )
        at += 0.5
    return parts


def _legend(drawing: Drawing, panels: Sequence[Panel], y: float) -> list[str]:
    parts = []
    x = float(MARGIN)
    for colour, words in (("alone", "alone inside"), ("together", "not alone inside")):
        parts.append(f'<rect x="{x:g}" y="{y - 10:g}" width="18" height="12" class="{colour}"/>')
        parts.append(_text(x + 24, y, words, size=12))
        x += 50 + 7 * len(words)
    if any(each.ttl_ends is not None for each in panels):
        parts.append(_ttl(x, y - 12, y + 4))
        parts.append(_text(x + 8, y, "the slow one's lock expires", size=12))
        x += 184
    for number, words in (
        (drawing.bound, "the last item allowed"),
        (drawing.bound + 1, "one too many"),
    ):
        parts.append(f'<rect x="{x:g}" y="{y - 10:g}" width="20" height="12" class="together"/>')
        parts += _badge(x + 10, y - 4, number, drawing.bound)
        parts.append(_text(x + 26, y, words, size=12))
        x += 46 + 6.2 * len(words)
    parts.append(f'<rect x="{x:g}" y="{y - 10:g}" width="{LEAST}" height="12" class="alone"/>')
    parts.append(_text(x + 8, y, "refused", size=12))
    return parts


def _badge(x: float, y: float, number: int, bound: int) -> list[str]:
    """Return the number of an item; one above the bound stands out."""
    if number <= bound:
        return [_text(x, y + 4, str(number), size=11, colour="on", weight=700, anchor="middle")]
    return [
        f'<circle cx="{x:.1f}" cy="{y:g}" r="7" class="ink"/>',
        _text(x, y + 4, str(number), size=11, colour="paper", weight=700, anchor="middle"),
    ]


def _text(
    x: float,
    y: float,
    words: str,
    *,
    size: int,
    colour: str = "ink",
    weight: int = 400,
    anchor: str = "start",
) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:g}" font-size="{size}" class="{colour}" font-weight="{weight}"'
        f' text-anchor="{anchor}">{escape(words)}</text>'
    )
