"""Which rule matches this URL? The answer that rules themselves give."""

import pytest

from weblock import ConfigurationError
from weblock.contrib.kit.rules import Rule, RuleSet, explain

RULES = {
    "health": {"path": "/items/health", "exempt": True},
    "item": {"path": "/items/{item:int}", "methods": ["PUT"], "key": "item:{item}"},
    "color": {"path": "/items/{name}", "key": ["{name}", "color:{query.color}"]},
    "rest": {"path": "/{rest:path}", "key": "all"},
}


def verdicts(method, target):
    """What is said of each rule."""
    found = explain(RuleSet(RULES), method, target)
    return {each.name.removeprefix("rules."): each.verdict.split(":")[0] for each in found.verdicts}


@pytest.mark.parametrize(
    ("method", "target", "keys", "said"),
    [
        ("PUT", "/items/7", ["item:7"], ["another path", "matches", "would", "would"]),
        ("POST", "/items/7?color=r", ["7", "color:r"], ["another path", "another m", "matches", "w"]),
        ("PUT", "/items/%D9%A7?color=r", [], ["another p", "matches the path as", "matches", "w"]),
        ("PUT", "https://shop.test/items/7?x#y", ["item:7"], ["another path", "matches", "w", "w"]),
        ("GET", "/items/health", [], ["matches", "another m", "would", "would"]),
        ("GET", "https://shop.test", ["all"], ["another path", "another m", "another p", "matches"]),
    ],
)  # fmt: skip
def test_each_rule_says_what_it_has_to_do_with_a_request(method, target, keys, said):
    """The one that matches, those behind it, those of another path and those of another method."""
    for found, expected in zip(verdicts(method, target).values(), said, strict=True):
        assert found.startswith(expected)
    explanation = explain(RuleSet(RULES), method, target)
    assert explanation.keys == tuple(keys)


def test_it_is_a_text():
    """It is printed as it is: the request, a line for each rule, and what is locked."""
    text = str(explain(RuleSet(RULES), "put", "/items/7?color=red"))
    first, *_, last = text.splitlines()
    assert first == "PUT /items/7"
    assert last.strip() == "locks 'item:7'"
    assert len(text.splitlines()) == 2 + len(RULES)
    assert "locks nothing: there is no rule" in str(explain(RuleSet(), "GET", "/"))


def test_what_would_be_refused_is_said():
    """A key that cannot be filled in is a 400: the explanation says why."""
    found = explain(RuleSet(RULES), "POST", "/items/7")
    assert "'query.color'" in found.problem
    assert "is refused with 400" in str(found)
    strange = explain(RuleSet(RULES), "PUT", "/items/+7?color=r")
    assert "can be read in two ways" in str(strange)
    headers = RuleSet([Rule("/", key="{header.x-user}")])
    assert explain(headers, "GET", "/", headers={"X-User": "ada"}).keys == ("ada",)


def test_a_target_is_a_path_or_a_url():
    """Anything else is refused, with what to write."""
    with pytest.raises(ConfigurationError, match='starts with "/"'):
        explain(RuleSet(RULES), "GET", "items")
