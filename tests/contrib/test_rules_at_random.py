"""Rules beside Starlette's own router, on paths that nobody would think of."""

import itertools
import re

import pytest
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st
from starlette.applications import Starlette
from starlette.routing import Mount, Route, compile_path

from weblock import ConfigurationError, InvalidKey
from weblock.canonical import canonical
from weblock.contrib.rules import Rule, RuleSet
from weblock.contrib.rules.ruleset import decided

# A busy machine is no reason to fail.
unhurried = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])

TEXT = ["a", "7", ".", "-", "x.json", "%", "é", "\n", "A"]

literal = st.lists(st.sampled_from(["a", "7", "-", ".", "x", "é", "A"]), max_size=2).map("".join)
kind = st.sampled_from(["", "", ":str", ":int", ":float", ":uuid", ":path"])
character = st.sampled_from([*TEXT, "/"]) | st.characters(exclude_categories=["Cs"])
anything = st.lists(character, max_size=8).map("".join)
UUID = "0123abcd-0123-0123-0123-0123456789ab"


@st.composite
def templates(draw):
    """Paths in Starlette's syntax, of which ours refuses the slow ones."""
    path, names = "", iter("abcdef")
    for _ in range(draw(st.integers(1, 3))):
        segment = draw(literal)
        for _ in range(draw(st.integers(0, 2))):
            segment += f"{{{next(names)}{draw(kind)}}}{draw(literal)}"
        path += f"/{segment or 'a'}"  # Rules refuse empty ones, but for the last.
    return path + draw(st.sampled_from(["", "", "/"]))


@st.composite
def paths(draw, template):
    """A path that the template matches, or nearly."""
    _, form, converters = compile_path(template)
    values = {"IntegerConvertor": ["7", "007"], "FloatConvertor": ["7", "1.50", "1.5.5"]}
    for name, converter in converters.items():
        known = st.sampled_from([*values.get(type(converter).__name__, ["a", "a.b"]), UUID])
        form = form.replace(f"{{{name}}}", draw(known | anything))
    place = draw(st.integers(0, len(form)))
    change = draw(st.sampled_from(["", "", "", "\n", "/", "//", ".", "%0A"]))
    path = form[:place] + change + form[place:] + draw(st.sampled_from(["", "", "\n", "/"]))
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
    """Whatever the path: the same answer, and the same parameters, from another expression."""
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
    """The endpoint that a request reaches, and its parameters."""

    async def ignore(message):
        pass

    try:
        app(scope, None, ignore).send(None)
    except Reached as reached:
        return reached.args
    except StopIteration:
        return None
    raise AssertionError("the router has waited for something")


METHODS = [["POST"], ["GET"], ["PUT", "GET"], None]


@st.composite
def shops(draw):
    """Routes, each in a mount or not, with rules for just these."""
    routes, rules = [], []
    for number in range(draw(st.integers(1, 3))):
        template, methods = draw(templates()), draw(st.sampled_from(METHODS))
        mount = draw(st.sampled_from(["", "", "/m", "/{t}"]))
        key = [f"{{{name}}}" for name in parsed(template).names]
        try:
            rules.append(Rule(mount + template, methods=methods, key=[f"route{number}", *key]))
        except ConfigurationError:
            assume(False)
        route = Route(template, Endpoint(number), methods=methods)
        if methods is None:
            route.methods = None
        routes.append(Mount(mount, routes=[route]) if mount else route)
    return routes, rules


@unhurried
@given(st.data())
def test_what_starlette_routes_to_a_locked_endpoint_is_locked(data):
    """Through mounts, root paths, redirects and newlines: no URL passes by its lock."""
    routes, rules = data.draw(shops())
    number = data.draw(st.integers(0, len(rules) - 1))
    path = data.draw(paths(rules[number].path.text))
    root_path = data.draw(st.sampled_from(["", "", "/api", "/m"]))
    prefix = data.draw(st.sampled_from(["", root_path, "/m"]))
    compare(
        routes, rules, data.draw(st.sampled_from(["GET", "HEAD", "POST"])), prefix + path, root_path
    )


def compare(routes, rules, method, path, root_path):
    """What the router reaches has to be what the rules lock."""
    try:
        ruleset = RuleSet(rules)
    except ConfigurationError:  # Some rule is hidden.
        assume(False)
    scope = {"type": "http", "method": method, "path": path, "root_path": root_path}
    scope |= {"headers": [], "query_string": b"", "scheme": "http", "server": ("x", 80)}
    endpoint = reached(Starlette(routes=routes).router, dict(scope))
    if endpoint is None:
        return
    found = ruleset.find(method, path, root_path=root_path)
    assert found is not None
    number, parameters = endpoint
    assert rules[number] in (found.rule, *(other.rule for other in found.others))
    try:
        keys = found.keys(query="", headers=lambda name: [])
    except InvalidKey:
        return  # The request is refused.
    expected = {name: canonical(value) for name, value in parameters.items() if name in "abcdef"}
    for template in rules[number].keys[1:]:
        assert template.fill(expected) in keys


PLAIN_RULES = [
    Rule("/items/{a:int}", key="{a}"),
    Rule("/items/{a}", key="{a}"),
    Rule("/items/{a}/", key="{a}"),
    Rule("/items/{a:int}.{b}", key="{a}"),
    Rule(re.compile(r"/items/(?P<a>\d+)"), key="{a}"),
    Rule("/items/new", exempt=True),
    Rule("/{a:path}", key="{a}", methods=["POST"]),
]


@pytest.mark.parametrize(
    "path",
    ["/items/7", "/items/+7", "/items/new", "/items/x", "/items/+7.x", "/items/x/y", "/other"],
)
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_plain_path_is_decided_as_every_other(method, path):
    """The short way that most requests take finds what the long way finds, doubts included."""
    compared = 0
    for rules in itertools.permutations(PLAIN_RULES, 3):
        try:
            found = RuleSet(rules).find(method, path)
        except ConfigurationError:  # Some rule is hidden.
            continue
        about = [rule for rule in rules if rule.takes(method)]
        certain, doubtful = decided(about, path, "")
        expected = [*doubtful]
        if certain and not certain.rule.exempt:
            expected.insert(0, certain)
        assert [(each.rule, each.parameters) for each in in_turn(found)] == [
            (each.rule, each.parameters) for each in expected
        ]
        compared += 1
    assert compared


def in_turn(found):
    """The rule that matches, and those that the path may be meant for besides."""
    return [found, *found.others] if found else []


def test_a_confused_mount_gives_its_endpoint_another_value():
    """``a`` is "a" by the rule and "m/a" to the endpoint: both are locked."""
    routes = [Mount("/m", routes=[Route("/{a:path}/a", Endpoint(0))])]
    compare(routes, [Rule("/m/{a:path}/a", key=["r", "{a}"])], "GET", "/m/a/a\n", "")


@unhurried
@example("/shops/items\n")
@given(st.sampled_from(["/shops/items\n", "/shops/items", "/shops/a/items\n", "/shops/a/items"]))
def test_a_confused_mount_passes_by_no_lock(path):
    """The one known way in which a mount reads a path otherwise than it was written."""
    routes = [Mount("/shops", routes=[Route("/{shop}/items", Endpoint(0), methods=["POST"])])]
    rules = [Rule("/shops/{shop}/items", key="shop:{shop}")]
    compare(routes, rules, "POST", path, "")
