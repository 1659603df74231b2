"""A picture of critical sections as SVG: a panel for each run, a bar for each section."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from demo.outcome import Run
from demo.shop import BOUND, WORK
from demo.trace import Section

PAPER, GROUND, INK, PALE = "#ffffff", "#f4f6f8", "#1f2933", "#66717d"
ALONE, TOGETHER = "#2b8a66", "#d6453d"
DARK: Final = {
    PAPER: "#14181d",
    GROUND: "#20262d",
    INK: "#e6eaee",
    PALE: "#98a3ae",
    ALONE: "#35a77c",
    TOGETHER: "#e05a52",
}
"""What becomes of each colour where the reader prefers dark pages."""

LEAST: Final = 0.004
"""The least share of the width that a bar takes: a request that only counts takes a millisecond."""


class Panel(NamedTuple):
    """One run: its title, and what to know about it."""

    title: str
    says: str
    run: Run
    ttl_ends: float | None = None
    """Seconds after which the lock of the first section expires, if it does."""


def new_figure(width: float, height: float) -> Figure:
    """An empty picture, in inches, in the colours that ``save`` knows."""
    mpl.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "weblock", "font.size": 9})
    mpl.rcParams.update({"axes.facecolor": GROUND, "axes.edgecolor": PALE, "text.color": INK})
    mpl.rcParams.update({"axes.labelcolor": INK, "xtick.color": PALE, "ytick.color": PALE})
    return Figure((width, height), layout="constrained", facecolor=PAPER)


def save(figure: Figure, path: Path, title: str) -> None:
    """Write the picture as SVG, which follows the reader's light or dark mode."""
    figure.savefig(path, format="svg", metadata={"Date": None, "Title": title})
    rules = "".join(
        f'[style*="{kind}: {light}"]{{{kind}:{dark}!important}}'
        for light, dark in DARK.items()
        for kind in ("fill", "stroke")
    )
    style = f"<style>@media (prefers-color-scheme:dark){{{rules}}}</style>"
    head, rest = path.read_text().split(" <defs>", 1)
    path.write_text(f"{head} {style}\n <defs>{rest}")


def draw(panels: Sequence[Panel], path: Path, *, slow: float = float("inf")) -> None:
    """Draw all runs; a section of so many seconds is called slow."""
    lanes = [_lanes(each.run.sections) for each in panels]
    heights = [max(each) + 1 for each in lanes]
    figure = new_figure(10, 0.17 * sum(heights) + 0.5 * len(panels) + 0.7)
    ratios = {"height_ratios": heights}
    all_axes = figure.subplots(len(panels), sharex=True, squeeze=False, gridspec_kw=ratios)[:, 0]
    seconds = max(
        each.leave - panel.run.sections[0].enter for panel in panels for each in panel.run.sections
    )
    for axes, panel, each in zip(all_axes, panels, lanes, strict=True):
        axes.set_xlim(0, 1.02 * seconds)
        _draw_panel(axes, panel, each, slow)
    all_axes[-1].tick_params(bottom=True, labelbottom=True)
    all_axes[-1].xaxis.set_major_formatter("{x:g} s")
    handles = [
        Patch(color=ALONE, label="alone inside"),
        Patch(color=TOGETHER, label="not alone inside"),
        Line2D([], [], color=TOGETHER, marker=f"${BOUND}$", ls="", label="the last item allowed"),
        Line2D(
            [], [], color=INK, marker="o", ms=9, ls="", label="a number in a circle: one too many"
        ),
    ]
    if any(each.ttl_ends for each in panels):
        expires = Line2D([], [], color=INK, ls="--", label="the slow one's lock expires")
        handles.insert(2, expires)
    figure.legend(handles=handles, loc="outside lower left", ncols=len(handles), frameon=False)
    save(figure, path, "Which handlers were in the critical section at which time")


def _draw_panel(axes: Axes, panel: Panel, lanes: Sequence[int], slow: float) -> None:
    """Draw the sections of a run in as few lanes as possible."""
    run = panel.run
    start, least = run.sections[0].enter, LEAST * axes.get_xlim()[1]
    overlaps = f"{run.overlaps or 'no'} overlap{'' if run.overlaps == 1 else 's'}"
    title = f"{panel.title}: {run.items} items, {overlaps}"
    axes.set_title(title, loc="left", weight="bold", color=ALONE if run.held else TOGETHER, pad=16)
    axes.text(0, 1, f"{panel.says}\n", transform=axes.transAxes, va="center", color=PALE)
    axes.set_ylim(max(lanes) + 0.6, -0.6)
    axes.tick_params(left=False, labelleft=False, bottom=False)
    axes.spines[:].set_visible(False)
    added = sorted(
        (each for each in run.sections if each.seconds >= WORK), key=lambda each: each.leave
    )
    bar: dict[str, Any] = {"height": 0.75, "lw": 0}
    label: dict[str, Any] = {"va": "center_baseline", "color": PAPER, "fontsize": 8}
    for section, lane in zip(run.sections, lanes, strict=True):
        since, until = section.enter - start, section.leave - start
        axes.barh(lane, max(section.seconds, least), left=since, color=ALONE, **bar)
        for shared in _together(run.sections):
            left, right = max(shared[0] - start, since), min(shared[1] - start, until)
            if left < right:
                axes.barh(lane, max(right - left, least), left=left, color=TOGETHER, **bar)
        if section.seconds >= slow:
            axes.text(2 * least, lane, "slow", **label)
        if section in added:
            number = added.index(section) + 1
            box = {"boxstyle": "circle,pad=0.2", "fc": INK, "ec": INK} if number > BOUND else None
            middle = until - 3 * least
            axes.text(middle, lane, f"{number}", ha="center", weight="bold", bbox=box, **label)
    if panel.ttl_ends:
        axes.axvline(panel.ttl_ends, color=INK, ls="--", lw=1)


def _lanes(sections: Sequence[Section]) -> list[int]:
    """Return a lane for each section, so that no bar covers another."""
    ends: list[float] = []
    lanes = []
    for each in sections:
        free = next((lane for lane, end in enumerate(ends) if end <= each.enter), len(ends))
        ends[free : free + 1] = [each.leave]
        lanes.append(free)
    return lanes


def _together(sections: Sequence[Section]) -> list[tuple[float, float]]:
    """Return the times at which more than one section was running."""
    found: list[tuple[float, float]] = []
    busy_until = 0.0
    for each in sections:
        since, until = each.enter, min(each.leave, busy_until)
        busy_until = max(busy_until, each.leave)
        if found and since <= found[-1][1]:
            since, until = found[-1][0], max(until, found.pop()[1])
        if since < until:
            found.append((since, until))
    return found
