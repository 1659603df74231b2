"""The walk-through of the articles' versions, in a small form."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from rich.console import Console

from demo.outcome import Run
from demo.picture import ALONE, TOGETHER
from demo.shop import BOUND
from demo.versions import TTL, VERSIONS
from demo.versions.report import draw
from demo.versions.story import run_all


@pytest.fixture(scope="module")
def outcomes() -> dict[str, Run]:
    quiet = Console(quiet=True)
    found = asyncio.run(run_all(quiet, requests=16, replicas=2))
    return {version.name: run for version, run in found.items()}


@pytest.mark.parametrize("name", [each.name for each in VERSIONS[:-1]])
def test_an_articles_version_overlaps(outcomes: dict[str, Run], name: str) -> None:
    """Two handlers are at work at once, and more items are made than may be."""
    outcome = outcomes[name]
    assert outcome.overlaps > 0
    assert outcome.at_once > 1
    assert outcome.items > BOUND
    assert outcome.told.keys() <= {201, 409, 422}


def test_weblocks_line_does_not(outcomes: dict[str, Run]) -> None:
    """Under the same requests, handlers come one by one, three items are made, and all are told so."""
    outcome = outcomes["one_line"]
    assert outcome.overlaps == 0
    assert outcome.at_once == 1
    assert outcome.items == BOUND
    assert outcome.told == Counter({201: BOUND, 422: 16 - BOUND})
    assert max(each.seconds for each in outcome.sections) > TTL


def test_the_picture_shows_every_section(outcomes: dict[str, Run], tmp_path: Path) -> None:
    """Every version has its title in it, every section a bar, and red is where they overlap."""
    draw({each: outcomes[each.name] for each in VERSIONS}, tmp_path / "picture.svg", slow=1)
    picture = ET.parse(tmp_path / "picture.svg")
    texts = [each.text or "" for each in picture.iter("{http://www.w3.org/2000/svg}text")]
    bars = [each.get("style") for each in picture.iter("{http://www.w3.org/2000/svg}path")]
    for version in VERSIONS:
        assert any(text.startswith(f"{version.title}: ") for text in texts)
    assert f"{VERSIONS[-1].title}: {BOUND} items, no overlaps" in texts
    sections = sum(len(each.sections) for each in outcomes.values())
    assert bars.count(f"fill: {ALONE}") == sections
    assert bars.count(f"fill: {TOGETHER}") > len(VERSIONS) - 1
