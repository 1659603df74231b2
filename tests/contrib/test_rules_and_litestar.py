"""Rules beside Litestar's own router, on thousands of spellings of paths, targets and values."""

import random
import re

import pytest
from litestar import Litestar, Request, route

from weblock import InvalidKey
from weblock.contrib.kit.rules import Rule, RuleSet

from .wire import Exchange

ROUNDS = 3000

ROUTES = [
    "/",
    "/items",
    "/items/{a:int}",
    "/x/{a:float}/y",
    "/u/{a:uuid}",
    "/s/{a:str}",
    "/s/{a:str}/n/{b:int}",
    "/f/{a:path}",
]
"""No path is for two of them: where Litestar prefers one to another, rules go by their own order."""

UUID = "0123abcd-0123-4123-8123-0123456789ab"
NUMBERS = [
    "7",
    "07",
    "+7",
    " 7",
    "7 ",
    "0_7",
    "-7",
    "\u0667",
    "7\n",
    "\n7",
    "7\t",
    "\u20037",
    "\x1c7",
]
FLOATS = ["7.0", "1e3", "nan", "inf", "1_0.5", ".5", "5."]
UUIDS = [UUID, f"{{{UUID}}}", UUID.upper(), UUID.replace("-", ""), f"urn:uuid:{UUID}", f"{UUID}\n"]
TEXTS = ["a", "A", "a b", "é", "a.b", "..", ".", "%2F", "a\n", "\na", "a//b", "a/b", "a/", "/a"]
NOISE = ["/", "//", "\n", " ", "_", "+", "0", "/."]


def spelling(rng: random.Random) -> tuple[str, str]:
    values = rng.choice([NUMBERS, NUMBERS + FLOATS, UUIDS, TEXTS])
    path = re.sub(r"\{\w+:\w+\}", lambda _: rng.choice(values), rng.choice(ROUTES))
    for _ in range(rng.choice([0, 0, 1, 1, 2])):
        place = rng.randint(0, len(path))
        path = path[:place] + rng.choice(NOISE) + path[place:]
    if rng.random() < 0.1:
        path = path.lstrip("/")
    path += rng.choice(["", "", "", "/", "//", "\n", "/\n"])
    root_path = rng.choice(["", "", "/api", "/items"])
    before = rng.choice(["", root_path, root_path, f"/x{root_path}", f"x{root_path}"])
    return before + path, root_path


@pytest.fixture(scope="module")
def reached() -> list[tuple[int, dict[str, object]]]:
    return []


@pytest.fixture(scope="module")
def app(reached: list[tuple[int, dict[str, object]]]) -> Litestar:
    def handler(number: int, path: str) -> object:
        @route(path, http_method=["POST"])
        async def reach(request: Request) -> None:
            reached.append((number, dict(request.path_params)))

        return reach

    handlers = [handler(number, path) for number, path in enumerate(ROUTES)]
    return Litestar(handlers, logging_config=None, openapi_config=None)


RULES = [
    Rule(
        path.replace(":str", ""),
        methods=["POST"],
        key=[f"route {number}", *(f"{name}={{{name}}}" for name in re.findall(r"\{(\w+):", path))],
    )
    for number, path in enumerate(ROUTES)
]


@pytest.mark.parametrize("seed", range(3))
async def test_no_spelling_passes_by_a_rule(app, reached, seed):
    """What Litestar takes to a route holds the route's key, and equal values share each of their keys."""
    rng, rules = random.Random(seed), RuleSet(RULES)
    shared: dict[str, set[str]] = {}
    for _ in range(ROUNDS // 3):
        path, root_path = spelling(rng)
        exchange = Exchange(path=path)
        exchange.scope["root_path"] = root_path
        reached.clear()
        await exchange.served_by(app)
        if not reached:
            continue
        ((number, parameters),) = reached
        try:
            found = rules.find("POST", path, root_path=root_path)
            assert found is not None, (path, root_path)
            keys = found.keys(query="", headers=lambda name: [])
        except InvalidKey:
            continue  # The request is refused.
        assert f"route {number}" in keys, (path, root_path)
        for name, value in parameters.items():
            own = {key for key in keys if key.startswith(f"{name}=")}
            common = shared.setdefault(f"{number} {name}={value!r}", own)
            common &= own
            assert common, (path, root_path, name, value)
    assert len(shared) > 25  # Else the spellings have led nowhere.
