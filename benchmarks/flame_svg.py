"""A flame graph as a small SVG: each box is a function, as wide as its share of the samples."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from html import escape
from typing import Final

Stack = tuple[str, ...]
"""Functions, ``file:name`` each, from the outside to the inside."""

WIDTH: Final = 960
ROW: Final = 15
LEAST: Final = 0.004
"""The share of all samples from which on a box is drawn."""

LETTER: Final = 5.6
"""The width of a letter, about."""

COLOURS: Final = {"weblock/": "#9db8f2", "python": "#d8dadf", "": "#e8cf9f"}
"""Of weblock's own functions, of Python's library, and of all other packages."""


@dataclass
class _Box:
    name: str = ""
    samples: int = 0
    inside: dict[str, _Box] = field(default_factory=dict)


def flame_graph(stacks: Mapping[Stack, int], title: str) -> str:
    """Return the SVG of what was sampled, the outermost function at the top."""
    root = _Box()
    for stack, count in stacks.items():
        box = root
        box.samples += count
        for name in stack:
            box = box.inside.setdefault(name, _Box(name))
            box.samples += count
    root = _without_common(root)
    if not root.samples:
        raise ValueError("nothing was sampled")
    boxes = list(_drawn(root, 0, 0, root.samples))
    height = ROW * (2 + max((row for row, *_ in boxes), default=0) + 1)
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}"'
    parts = [
        f'{head} font-family="sans-serif" font-size="10">',
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
        f'<text x="4" y="11" font-weight="bold">{escape(title)}</text>',
    ]
    parts += [_box(*each, root.samples) for each in boxes]
    return "\n".join([*parts, "</svg>\n"])


def _without_common(root: _Box) -> _Box:
    """Leave out what all samples begin with: it is the benchmark's own, and the loop's."""
    while len(root.inside) == 1:
        (only,) = root.inside.values()
        if only.samples < root.samples or not only.inside:
            break
        root = only
    return root


def _drawn(box: _Box, row: int, start: int, total: int) -> Iterator[tuple[int, int, _Box]]:
    """Return the boxes inside another, each with its row and the samples to the left of it."""
    for each in sorted(box.inside.values(), key=lambda inner: -inner.samples):
        if each.samples >= LEAST * total:
            yield row, start, each
            yield from _drawn(each, row + 1, start, total)
        start += each.samples


def _box(row: int, start: int, box: _Box, total: int) -> str:
    x, width, y = WIDTH * start / total, WIDTH * box.samples / total, ROW * (row + 1)
    path, _, function = box.name.rpartition(":")
    about = escape(f"{path} {function}: {box.samples / total:.1%}")
    letters = int((width - 4) / LETTER)
    short = f"{path.rpartition('/')[2].removesuffix('.py')}.{function}"
    label = short if len(short) <= letters else function[:letters] if letters > 2 else ""
    text = f'<text x="{x + 2:.1f}" y="{y + 11}">{escape(label)}</text>' if label else ""
    colour = COLOURS["weblock/" if path.startswith("weblock/") else _python(path)]
    return (
        f'<g><title>{about}</title><rect x="{x:.1f}" y="{y}" width="{max(0.5, width - 0.5):.1f}"'
        f' height="{ROW - 1}" fill="{colour}"/>{text}</g>'
    )


def _python(path: str) -> str:
    return "python" if path.startswith("python3") else ""
