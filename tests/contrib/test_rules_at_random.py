"""Rules beside Starlette's own router, on paths that nobody would think of."""

import datetime as dt
import itertools
import os
import random
import re
import uuid

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError
from starlette.applications import Starlette
from starlette.routing import Mount, Route, compile_path

from weblock import ConfigurationError, InvalidKey
from weblock.contrib.kit.rules import Rule, RuleSet, agreed, decided
from weblock.errors import StrangePath

# A busy machine is no reason to fail.
unhurried = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])

TEXT = ["a", "7", ".", "-", "x.json", "%", "é", "A"]

literal = st.lists(st.sampled_from(["a", "7", "-", ".", "x", "é", "A"]), max_size=2).map("".join)
kind = st.sampled_from(["", "", ":str", ":int", ":float", ":uuid", ":path"])
character = st.sampled_from([*TEXT, "/"]) | st.characters(exclude_categories=["Cc", "Cs"])
anything = st.lists(character, max_size=8).map("".join)
UUID = "0123abcd-0123-0123-0123-0123456789ab"


@st.composite
def templates(draw):
    path, names = "", iter("abcdef")
    for _ in range(draw(st.integers(1, 3))):
        segment = draw(literal)
        if draw(st.booleans()):
            segment += f"{{{next(names)}{draw(kind)}}}{draw(literal)}"
        path += f"/{segment or 'a'}"  # Rules refuse empty ones, but for the last.
    return path + draw(st.sampled_from(["", "", "/"]))


@st.composite
def paths(draw, template):
    _, form, converters = compile_path(template)
    values = {"IntegerConvertor": ["7", "007"], "FloatConvertor": ["7", "1.50", "1.5.5"]}
    for name, converter in converters.items():
        known = st.sampled_from([*values.get(type(converter).__name__, ["a", "a.b"]), UUID])
        form = form.replace(f"{{{name}}}", draw(known | anything))
    place = draw(st.integers(0, len(form)))
    change = draw(st.sampled_from(["", "", "", "/", "//", ".", "%0A"]))
    path = form[:place] + change + form[place:] + draw(st.sampled_from(["", "", "/"]))
    return path if path.startswith("/") else f"/{path}"


def parsed(template):
    """The template as a rule has it, unless it is one of those that are refused."""
    try:
        return Rule(template, key="x").path
    except ConfigurationError:
        assume(False)


@unhurried
@given(st.data())
def test_a_template_matches_as_starlette_does(data):
    """Whatever the path, but for control characters: the same answer, and the same parameters."""
    template = data.draw(templates())
    path = data.draw(paths(template))
    regex, _, converters = compile_path(template)
    theirs, ours = regex.match(path), parsed(template)
    found = ours.match(path)
    assert (theirs is None) == (found is None)
    for name, value in (found or {}).items():
        assert value == theirs[name]
        assert ours.convert(name, value) == converters[name].convert(value)


class Reached(Exception):
    """The router has chosen an endpoint."""


class Endpoint:
    def __init__(self, number):
        self.number = number

    async def __call__(self, scope, receive, send):
        raise Reached(self.number, scope["path_params"])


def reached(app, scope):
    async def ignore(message):
        pass

    try:
        app(scope, None, ignore).send(None)
    except Reached as reached:
        return reached.args
    except StopIteration:
        return None
    raise AssertionError("the router has waited for something")


SPELLINGS = {
    "int": [
        "7",
        "07",
        "+7",
        "-7",
        " 7",
        "7 ",
        "7.0",
        "7.",
        "0_7",
        "\u0667",
        "\u20037",
        "\xa07",
        "7e0",
        "x",
    ],
    "float": [
        "7.5",
        "7.50",
        "+7.5",
        " 7.5",
        "7",
        ".5",
        "5.",
        "1e3",
        "nan",
        "inf",
        "1_0.5",
        "\u0667",
    ],
    "uuid": [
        UUID,
        UUID.upper(),
        UUID.replace("-", ""),
        f"{{{UUID}}}",
        f"urn:uuid:{UUID}",
        f" {UUID}",
    ],
    "bool": ["true", "True", "1", "on", "yes", "t", " true", "0", "false"],
    "date": ["2026-11-25", "1764028800", "2026-11-25T00:00", " 2026-11-25", "20261125"],
    "": ["a", "new", "7", "a b", "a.b", "é", "\u0667", "%2F", ";v=1", "..", "a+b", "nan"],
    "path": ["a", "a/b", "a//b", "", "/a", "a/", "new", "7", "../a", "é/7"],
}
TYPES = {
    "int": int, "float": float, "uuid": uuid.UUID, "bool": bool, "date": dt.date, "": str, "path": str
}  # fmt: skip
ADAPTERS = {kind: TypeAdapter(of) for kind, of in TYPES.items()}
NOISE = ["/", "//", "\n", " ", "_", "+", "0", "/.", "/..", "\x00", "\ufffd", ".0", "\u0660"]
ENDS = ["", "", "", "", "/", "//", "\n", "/\n"]
LITERALS = ["items", "new", "7", "x-{}", "{}.json", "{}", "{}", "{}", "{}"]
SPELLED = 200_000 if os.environ.get("WEBLOCK_LONG") else 6_000


class Site:
    """Routes of FastAPI with types that Pydantic reads, and rules for some of them."""

    def __init__(self, rng):
        self.routes, self.kinds, rules = [], [], []
        for number in range(rng.randint(1, 3)):
            mount = rng.choice(["", "", "", "/m", "/items"])
            template, rule, kinds = self.route(rng, number)
            end = rng.choice(["", "", "/"])
            # FastAPI's own path has no types, but for "path" and those of Starlette's router.
            route = Route(template + end, Endpoint(number))
            route.methods = None
            self.routes.append(Mount(mount, routes=[route]) if mount else route)
            self.kinds.append(kinds)
            key = ":".join([f"route{number}", *(f"{{{name}}}" for name in kinds)])
            rules.append(Rule(mount + rule + end, key=key))
        for wide in (
            "/{rest:path}",
            "/items/{rest:path}",
            "/items/{one}",
            "/{one}/{two}",
            "/items/new",
        ):
            if rng.random() < 0.15:
                extra = {"exempt": True} if rng.random() < 0.6 else {"key": f"wide:{wide[1:]}"}
                rules.insert(rng.randint(0, len(rules)), Rule(wide, **extra))
        self.has_mounts = any(isinstance(each, Mount) for each in self.routes)
        self.rules = RuleSet(rules)
        self.router = Starlette(routes=self.routes).router

    @staticmethod
    def route(rng, number):
        template, rule, kinds = "", "", {}
        for place in range(rng.randint(1, 3)):
            literal = rng.choice(LITERALS)
            if "{}" not in literal:
                template, rule = f"{template}/{literal}", f"{rule}/{literal}"
                continue
            name, kind = f"p{number}{place}", rng.choice(list(TYPES))
            if kind == "path" and "path" in kinds.values():
                kind = ""
            kinds[name] = kind
            has_type = kind == "path" or (kind in ("int", "float", "uuid") and rng.random() < 0.3)
            own = f":{kind}" if has_type else ""
            of_rule = f":{kind}" if kind in ("int", "float", "uuid", "path") else ""
            template += f"/{literal}".replace("{}", f"{{{name}{own}}}")
            rule += f"/{literal}".replace("{}", f"{{{name}{of_rule}}}")
        return template, rule, kinds

    def spelling(self, rng):
        rule = rng.choice(list(self.rules))
        path = re.sub(
            r"\{\w+:?(\w*)\}",
            lambda found: rng.choice(
                SPELLINGS[rng.choice([found[1], found[1], rng.choice(list(TYPES))])]
            ),
            rule.path.text,
        )
        for _ in range(rng.choice([0, 0, 0, 1, 2])):
            place = rng.randint(0, len(path))
            path = path[:place] + rng.choice(NOISE) + path[place:]
        return path.removesuffix("/") + rng.choice(ENDS)

    def reached(self, path, root_path):
        scope = {"type": "http", "method": "POST", "path": path, "root_path": root_path}
        scope |= {"headers": [], "query_string": b"", "scheme": "http", "server": ("x", 80)}
        endpoint = reached(self.router, scope)
        if endpoint is None:
            return None
        number, parameters = endpoint
        try:
            return number, {
                name: ADAPTERS[kind].validate_python(parameters[name])
                for name, kind in self.kinds[number].items()
            }
        except ValidationError:
            return None  # It is answered with 422.


@pytest.mark.parametrize("seed", range(3))
def test_no_spelling_reaches_a_locked_handler_unlocked(seed):
    """A handler that some path locks runs for no other path without a lock, whatever Pydantic reads.

    Equal values of one handler, of a type that the rule knows, share a key, through mounts, root paths, wider
    rules and exempting rules.
    """
    rng, locked, refused, sites = random.Random(seed), 0, 0, 0
    while locked + refused < SPELLED // 3:
        try:
            site = Site(rng)
        except ConfigurationError:  # Some rule is hidden.
            continue
        sites += 1
        held = {}
        for _ in range(200):
            root_path = rng.choice(["", "", "/api", "/items"])
            # Starlette's mounts find no route of theirs where the server has removed the root path.
            prefixes = [root_path] if site.has_mounts else [root_path, root_path, ""]
            path = rng.choice(prefixes) + site.spelling(rng)
            found = site.reached(path, root_path)
            if found is None:
                continue
            number, values = found
            try:
                match = site.rules.find("POST", path, root_path=root_path)
                keys = set(match.keys(query="", headers=lambda name: [])) if match else set()
            except InvalidKey:
                refused += 1
                continue
            locked += 1
            kinds = site.kinds[number]
            spelled = [str(values[name]) for name in kinds if kinds[name] in ("bool", "date")]
            if spelled and keys:
                continue  # Text to the rule: a key converts it, or each spelling is a key.
            same = (number, repr(sorted(values.items())), root_path)
            before, before_path = held.setdefault(same, (keys, path))
            assert bool(keys) == bool(before), (path, before_path, list(site.rules))
            assert not keys or keys & before, (path, before_path, list(site.rules))
            held[same] = (keys & before, path)
    assert locked > refused / 20


PLAIN_RULES = [
    Rule("/items/{a:int}", key="{a}"),
    Rule("/items/{a}", key="{a}"),
    Rule("/items/{a}/", key="{a}"),
    Rule("/items/{a:int}.x", key="{a}"),
    Rule(re.compile(r"/items/(?P<a>\d+)"), key="{a}"),
    Rule("/items/new", exempt=True),
    Rule("/{a:path}", key="{a}", methods=["POST"]),
]


@pytest.mark.parametrize(
    "path",
    [
        "/items/7",
        "/items/+7",
        "/items/new",
        "/items/x",
        "/items/+7.x",
        "/items/x/y",
        "/other",
        "/items",
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_plain_path_is_decided_as_every_other(method, path):
    """The short way that most requests take finds what the long way finds, or refuses what it refuses."""
    compared = 0
    for rules in itertools.permutations(PLAIN_RULES, 3):
        try:
            ruleset = RuleSet(rules)
        except ConfigurationError:  # Some rule is hidden.
            continue
        about = [rule for rule in rules if rule.takes(method)]
        assert outcome(lambda: ruleset.find(method, path)) == outcome(  # noqa: B023
            lambda: agreed(decided(about, path, ""), path)  # noqa: B023
        )
        compared += 1
    assert compared


def outcome(find):
    try:
        return find()
    except StrangePath:
        return StrangePath


LEGITIMATE = [
    (
        "/shops/{shop}/items",
        {"shop": ["a", "é", "a b", "50%", "a%2Fb", "x;v=1", "a+b", "\u0667", "...", "7"]},
    ),
    (
        "/shops/{shop}/items/{item:int}",
        {"shop": ["a", "7"], "item": ["7", "0", "007", "77777777777"]},
    ),
    ("/{language}/prices/{price:float}/", {"language": ["en", "pt-br"], "price": ["7", "7.50"]}),
    ("/things/{thing:uuid}", {"thing": [UUID, UUID.upper(), UUID.replace("-", "")]}),
    (
        "/files/{name:path}",
        {"name": ["a", "a/b", "a//b", "a/b/", "é/50%.txt", ".git/config", "a/..b"]},
    ),
    ("/", {}),
]


@pytest.mark.parametrize("root_path", ["", "/api"])
@pytest.mark.parametrize("end", ["", "/"])
def test_no_legitimate_path_is_refused(root_path, end):
    """Encoded names, other scripts, prefixes of languages and slashes at the end are all locked as they are."""
    rules = RuleSet([Rule(path, key="x") for path, _ in LEGITIMATE])
    for template, values in LEGITIMATE:
        for spelled in itertools.product(*values.values()):
            path = re.sub(r"\{(\w+):?\w*\}", "{\\1}", template)
            path = path.format(**dict(zip(values, spelled, strict=True))).removesuffix("/") + end
            match = rules.find("POST", root_path + path, root_path=root_path)
            assert match is not None
            assert match.rule.path.text == template
