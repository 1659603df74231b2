"""A picture of all versions' critical sections: a bar for each, time from left to right."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Final, NamedTuple

from demo.trace import Section
from demo.versions import BOUND, TTL
from demo.versions.load import SLOW, WORK
from demo.versions.outcome import Outcome

WIDTH: Final = 960
MARGIN: Final = 24
LANE: Final = 16
HEAD: Final = 34
GAP: Final = 20
FOOT: Final = 64
ALONE: Final = "#2b8a66"
FONT: Final = "system-ui, Segoe UI, Helvetica, Arial, sans-serif"
TOGETHER: Final = "#d6453d"
INK: Final = "#1f2933"
PALE: Final = "#7b8794"

LEAST: Final = 2.5
"""How wide a bar is at least: of those who only count and are refused, the time is a millisecond."""


class Span(NamedTuple):
    """From when to when, in seconds from the start of its version's run."""

    start: float
    end: float


class Scale(NamedTuple):
    """Where a moment is, from left to right."""

    seconds: float

    def x(self, at: float) -> float:
        """Pixels from the left."""
        return MARGIN + at / self.seconds * (WIDTH - 2 * MARGIN)


def draw(outcomes: Sequence[Outcome]) -> str:
    """The picture, as SVG."""
    runs = [_spans(each.sections) for each in outcomes]
    scale = Scale(max(span.end for run in runs for span in run) * 1.02)
    parts: list[str] = []
    top = float(MARGIN)
    for outcome, spans in zip(outcomes, runs, strict=True):
        panel, height = _panel(outcome, spans, scale, top)
        parts += panel
        top += height + GAP
    parts += _axis(scale, top)
    height = top + FOOT
    size = f'viewBox="0 0 {WIDTH} {height:g}" width="{WIDTH}" height="{height:g}"'
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="{FONT}">',
            "<title>Who was inside the critical section when, in six versions</title>",
            f'<rect width="{WIDTH}" height="{height:g}" fill="white"/>',
            *parts,
            "</svg>",
            "",
        ]
    )


def _spans(sections: Sequence[Section]) -> list[Span]:
    start = min(each.enter for each in sections)
    return [Span(each.enter - start, (each.leave or each.enter) - start) for each in sections]


def _panel(
    outcome: Outcome, spans: Sequence[Span], scale: Scale, top: float
) -> tuple[list[str], float]:
    """One version: its title, what came of it, and its sections in as few lanes as will do."""
    lanes = _lanes(spans)
    bottom = top + HEAD + LANE * (max(lanes) + 1)
    ground = f'y="{top + HEAD:g}" width="{WIDTH - 2 * MARGIN}" height="{bottom - top - HEAD:g}"'
    parts = [
        _text(MARGIN, top + 13, outcome.version.title, weight=600, size=15),
        _text(MARGIN, top + 27, outcome.version.says, fill=PALE, size=12),
        _result(outcome, top + 13),
        f'<rect x="{MARGIN}" {ground} fill="#f4f6f8"/>',
    ]
    together = _together(spans)
    items = _items(spans)
    for span, lane in zip(spans, lanes, strict=True):
        y = top + HEAD + LANE * lane + 2
        parts.append(_bar(scale, span, y, ALONE))
        parts += [
            _bar(scale, Span(max(span.start, each.start), min(span.end, each.end)), y, TOGETHER)
            for each in together
            if each.start < span.end and span.start < each.end
        ]
        if span in items:
            parts += _badge(scale.x(span.end) - 10, y + 6, items.index(span) + 1)
        if span.end - span.start > (WORK + SLOW) / 2:
            parts.append(_text(scale.x(span.start) + 6, y + 9.5, "slow", size=10, fill="white"))
    if 1 < int(outcome.version.title[0]) < 6:
        parts.append(_ttl(scale, top + HEAD, bottom))
    return parts, bottom - top


def _result(outcome: Outcome, y: float) -> str:
    good = outcome.held
    overlaps = f"{outcome.overlaps or 'no'} overlap{'' if outcome.overlaps == 1 else 's'}"
    words = f"{outcome.items} items, {overlaps}"
    return _text(
        WIDTH - MARGIN,
        y,
        words,
        anchor="end",
        weight=600,
        size=14,
        fill=ALONE if good else TOGETHER,
    )


def _lanes(spans: Sequence[Span]) -> list[int]:
    """For each span a row, so that none covers another."""
    ends: list[float] = []
    lanes = []
    for span in spans:
        free = next((lane for lane, end in enumerate(ends) if end <= span.start), len(ends))
        ends[free : free + 1] = [span.end]
        lanes.append(free)
    return lanes


def _together(spans: Sequence[Span]) -> list[Span]:
    """When more than one was inside."""
    steps = sorted([(each.start, 1) for each in spans] + [(each.end, -1) for each in spans])
    inside, since, found = 0, 0.0, []
    for at, step in steps:
        if inside == 1 and step == 1:
            since = at
        if inside == 2 and step == -1:
            found.append(Span(since, at))
        inside += step
    return found


def _items(spans: Sequence[Span]) -> list[Span]:
    """Those that made an item, in the order in which they did: whoever works, adds."""
    return sorted(
        (each for each in spans if each.end - each.start >= WORK), key=lambda each: each.end
    )


def _bar(scale: Scale, span: Span, y: float, fill: str) -> str:
    x = scale.x(span.start)
    width = max(LEAST, scale.x(span.end) - x)
    return f'<rect x="{x:.1f}" y="{y:g}" width="{width:.1f}" height="{LANE - 4}" fill="{fill}"/>'


def _ttl(scale: Scale, top: float, bottom: float) -> str:
    x = scale.x(TTL)
    return (
        f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{top:g}" y2="{bottom + 5:g}" stroke="{INK}"'
        ' stroke-dasharray="4 3"/>'
    )


def _axis(scale: Scale, top: float) -> list[str]:
    parts = []
    at = 0.0
    while at < scale.seconds:
        x = scale.x(at)
        parts.append(
            _text(x, top + 6, f"{at:g} s", size=11, fill=PALE, anchor="middle" if at else "start")
        )
        at += 0.5
    y = top + 34
    x = float(MARGIN)
    for fill, words in ((ALONE, "alone inside"), (TOGETHER, "not alone inside")):
        parts.append(f'<rect x="{x:g}" y="{y - 10:g}" width="18" height="12" fill="{fill}"/>')
        parts.append(_text(x + 24, y, words, size=12))
        x += 50 + 7 * len(words)
    parts.append(
        f'<line x1="{x:g}" x2="{x:g}" y1="{y - 12:g}" y2="{y + 4:g}" stroke="{INK}"'
        ' stroke-dasharray="4 3"/>'
    )
    parts.append(_text(x + 8, y, "the slow one's lock ends", size=12))
    x += 172
    for number, words in ((BOUND, "the third item"), (BOUND + 1, "one too many")):
        parts.append(f'<rect x="{x:g}" y="{y - 10:g}" width="20" height="12" fill="{TOGETHER}"/>')
        parts += _badge(x + 10, y - 4, number)
        parts.append(_text(x + 26, y, words, size=12))
        x += 124
    parts.append(f'<rect x="{x:g}" y="{y - 10:g}" width="{LEAST}" height="12" fill="{ALONE}"/>')
    parts.append(_text(x + 8, y, "refused", size=12))
    return parts


def _badge(x: float, y: float, number: int) -> list[str]:
    """The number of an item; one that should not be stands out."""
    words = _text(x, y + 4, str(number), size=11, fill="white", weight=700, anchor="middle")
    if number <= BOUND:
        return [words]
    return [f'<circle cx="{x:.1f}" cy="{y:g}" r="7" fill="{INK}"/>', words]


def _text(
    x: float,
    y: float,
    words: str,
    *,
    size: int,
    fill: str = INK,
    weight: int = 400,
    anchor: str = "start",
) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:g}" font-size="{size}" fill="{fill}" font-weight="{weight}"'
        f' text-anchor="{anchor}">{escape(words)}</text>'
    )
