"""The walk-through of the articles' versions, in a small form."""

from __future__ import annotations

import asyncio
from collections import Counter
from xml.etree import ElementTree as ET

import pytest
from rich.console import Console

from demo.versions import BOUND, TTL, VERSIONS
from demo.versions.outcome import Outcome
from demo.versions.report import picture_of
from demo.versions.story import run_all

IN_LEGEND = 3
"""Red bars that explain the picture."""


@pytest.fixture(scope="module")
def outcomes() -> dict[str, Outcome]:
    quiet = Console(quiet=True)
    found = asyncio.run(run_all(quiet, requests=16, replicas=2))
    return {each.version.name: each for each in found}


@pytest.mark.parametrize("name", [each.name for each in VERSIONS[:-1]])
def test_an_articles_version_overlaps(outcomes: dict[str, Outcome], name: str) -> None:
    """Two handlers are at work at once, and more items are made than may be."""
    outcome = outcomes[name]
    assert outcome.overlaps > 0
    assert outcome.at_once > 1
    assert outcome.items > BOUND
    assert outcome.told.keys() <= {201, 400, 409}


def test_weblocks_line_does_not(outcomes: dict[str, Outcome]) -> None:
    """Under the same requests, handlers come one by one, three items are made, and all are told so."""
    outcome = outcomes["one_line"]
    assert outcome.overlaps == 0
    assert outcome.at_once == 1
    assert outcome.items == BOUND
    assert outcome.told == Counter({201: BOUND, 400: 16 - BOUND})
    assert max(each.leave - each.enter for each in outcome.sections if each.leave) > TTL


def test_the_picture_shows_every_section(outcomes: dict[str, Outcome]) -> None:
    """Every version has its title in it, every section a bar, and red is where they overlap."""
    picture = ET.fromstring(picture_of(list(outcomes.values())))
    texts = {
        part
        for each in picture.iter("{http://www.w3.org/2000/svg}text")
        for part in each.itertext()
    }
    bars = Counter(each.get("class") for each in picture.iter("{http://www.w3.org/2000/svg}rect"))
    assert {each.title for each in VERSIONS} <= texts
    assert "3 items, no overlaps" in texts
    sections = sum(len(each.sections) for each in outcomes.values())
    assert bars["alone"] == sections + 2  # Two are in the legend.
    assert bars["together"] > IN_LEGEND
