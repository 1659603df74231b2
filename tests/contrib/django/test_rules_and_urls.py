"""Rules by path beside Django's own URL patterns, on thousands of spellings of a few values."""

from __future__ import annotations

import os
import random
import sys
import unicodedata
import uuid
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
from django.http import HttpRequest, HttpResponse
from django.test import AsyncClient, Client
from django.urls import Resolver404, path, re_path
from django.urls.resolvers import RegexPattern, URLResolver

from weblock.contrib.kit.rules import Rule, RuleSet
from weblock.errors import StrangePath
from weblock.keys import KeyTemplate

ROUNDS = 4000 if "WEBLOCK_LONG" in os.environ else 1500

NOISE = [
    "+",
    "-",
    "_",
    "__",
    "0",
    ".",
    "e0",
    "\n",
    "/",
    "//",
    "%0A",
    "{",
    "}",
    "x",
    "²",
    "½",
    "٪",
    "",
]


@cache
def digits() -> list[str]:
    return [each for each in characters() if unicodedata.category(each) == "Nd" and each > "9"]


@cache
def spaces() -> list[str]:
    return [each for each in characters() if each.isspace()]


def characters() -> Iterator[str]:
    return map(chr, range(sys.maxunicode + 1))


def spellings(rng: random.Random) -> Iterator[str]:
    """What people, and attackers, write for 7, 70 and a UUID: some of it means that, some does not."""
    for _ in range(ROUNDS):
        text = rng.choice(["7", "7", "70", "7.0", str(uuid.UUID(int=7)), uuid.UUID(int=7).hex])
        if rng.random() < 0.5:
            script = list(rng.choices(digits(), k=3))
            zero = ord(script[0]) - unicodedata.decimal(script[0])
            text = "".join(
                chr(zero + int(each)) if each in "07" and rng.random() < 0.8 else each
                for each in text
            )
        for _ in range(rng.choice([0, 0, 1, 2])):
            place = rng.choice([0, len(text), rng.randint(0, len(text))])
            text = text[:place] + rng.choice(NOISE + spaces()) + text[place:]
        yield text if rng.random() < 0.8 else text.upper()


def view(request: HttpRequest, pk: Any) -> HttpResponse:
    return HttpResponse(str(pk))


def keys_of(request: Any, pk: str) -> HttpResponse:
    return HttpResponse(" ".join(request.weblock.keys))


def resolver_of(*patterns: Any) -> URLResolver:
    return URLResolver(RegexPattern(r"^/"), list(patterns))


def row_of(value: Any, kind: type) -> object:
    """The row that a view works on, as its database reads what the URL gives; ``None`` for none."""
    try:
        return kind(value)
    except (ValueError, AttributeError):
        return value if isinstance(value, kind) else None


@pytest.mark.parametrize(
    ("pattern", "template", "kind"),
    [
        (re_path(r"^re/(?P<pk>\d+)$", view), "/re/{pk:int}", int),
        (re_path(r"^re/(?P<pk>\d+)/?$", view), "/re/{pk:int}", int),
        (re_path(r"^re/(?P<pk>[^/.]+)/$", view), "/re/{pk:int}/", int),
        (re_path(r"^re/(?P<pk>\d+)-7$", view), "/re/{pk:int}-7", int),
        (path("re/<int:pk>", view), "/re/{pk:int}", int),
        (path("re/<int:pk>/", view), "/re/{pk:int}", int),
        (path("re/<str:pk>", view), "/re/{pk:int}", int),
        (path("re/<path:pk>", view), "/re/{pk:int}", int),
        (path("re/<uuid:pk>", view), "/re/{pk:uuid}", uuid.UUID),
        (path("re/<str:pk>", view), "/re/{pk:uuid}", uuid.UUID),
        (path("re/<str:pk>/", view), "/re/{pk:float}", float),
        (re_path(r"^re/(?P<pk>[\d.]+)$", view), "/re/{pk:float}", float),
    ],
    ids=lambda value: getattr(value, "__name__", None) or str(getattr(value, "pattern", value)),
)  # fmt: skip
def test_no_spelling_passes_by_a_rule(pattern: Any, template: str, kind: type) -> None:
    """What Django hands a view as one row is one key, or is refused in another spelling."""
    resolver = resolver_of(pattern)
    rules = RuleSet([Rule(template, key="row:{pk}")])
    reached = 0
    for spelling in spellings(random.Random(7)):
        for target in (f"/re/{spelling}", f"/re/{spelling}/", f"/re/{spelling}-7"):
            try:
                match = resolver.resolve(target)
            except Resolver404:
                continue
            row = row_of(match.kwargs["pk"], kind)
            if row is None:
                continue
            reached += 1
            try:
                found = rules.find("POST", target)
            except StrangePath:
                continue
            assert found is not None, target
            keys = found.keys(query="", headers=lambda _name: [])
            assert keys == (KeyTemplate.parse("row:{pk}").fill({"pk": row}),), target
    assert reached > ROUNDS / 40


@pytest.mark.parametrize("spelling", ["%D9%A7", "7", "07", "%EF%BC%97"])
def test_digits_of_every_script_are_one_key(spelling: str, settings: Any, url: str) -> None:
    r"""``POST /re/%D9%A7`` reaches the view of row 7 by ``\d+``, under the key of row 7."""
    settings.MIDDLEWARE = settings.MIDDLEWARE[-1:]
    rule = {"route": r"^re/(?P<pk>\d+)$", "key": "row:{pk:int}"}
    settings.WEBLOCK = {"default": {"URL": url, "RULES": [rule]}}
    settings.ROOT_URLCONF = (re_path(r"^re/(?P<pk>\d+)$", keys_of),)
    assert Client().post(f"/re/{spelling}").content == b"row:7"


async def test_a_value_that_is_no_number_is_refused_under_asgi(settings: Any, url: str) -> None:
    """A view whose ``<str:pk>`` the database reads as a number does not run for what is none to the key."""
    settings.MIDDLEWARE = settings.MIDDLEWARE[-1:]
    rules = [{"route": "re/<str:pk>", "key": "row:{pk:int}"}]
    settings.WEBLOCK = {"default": {"URL": url, "RULES": rules}}
    settings.ROOT_URLCONF = (path("re/<str:pk>", keys_of),)
    assert (await AsyncClient().post("/re/7")).content == b"row:7"
    answer = await AsyncClient().post("/re/7.5")
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid_key")
