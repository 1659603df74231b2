"""Keys and their templates."""

from __future__ import annotations

import string

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from weblock import ConfigurationError, InvalidKey
from weblock.keys import (
    MAX_LENGTH,
    MISSING,
    KeyTemplate,
    check_key,
    in_order,
    qualified,
    unqualified,
)

HOSTILE = [*"{}:%*?[]\\^/.-_~ \n\r\t\0+&=#@!|'\"<>", "%3A", "..", "ä", "a\u0308", "ß", "\U0001f512"]

values = st.lists(
    st.sampled_from(HOSTILE) | st.characters(exclude_categories=["Cs"]), min_size=1, max_size=6
)
value = values.map("".join)
separators = st.text(
    st.sampled_from(string.punctuation.replace("{", "").replace("}", "")), min_size=1, max_size=3
)
namespaces = st.text(
    st.sampled_from(string.ascii_letters + string.digits + "._-"), min_size=1, max_size=64
)
literals = st.text(st.sampled_from(string.ascii_letters + ":-._~%/ "), max_size=4)


@st.composite
def templates(draw: st.DrawFn) -> KeyTemplate:
    """Templates with up to four places, and anything that is allowed between them."""
    count = draw(st.integers(1, 4))
    between = [draw(literals) + draw(separators) + draw(literals) for _ in range(count - 1)]
    text = draw(literals)
    for number, literal in enumerate([*between, draw(literals)]):
        text += f"{{v{number}}}{literal}"
    try:
        return KeyTemplate.parse(text)
    except ConfigurationError:
        assume(False)
        raise


@given(templates(), st.data())
@example(KeyTemplate.parse("{v0}-{v1}"), None)
def test_two_sets_of_values_never_meet(template: KeyTemplate, data: st.DataObject | None) -> None:
    """Different values make different keys, whatever they contain; ``None`` is a value, too."""
    if data is None:
        one, two = ("a-b", "c"), ("a", "b-c")
    else:
        sets = st.tuples(*[value | st.none() | st.just(MISSING)] * len(template.names))
        one, two = data.draw(sets), data.draw(sets)
    assume(one != two)
    filled = [template.fill(dict(zip(template.names, each, strict=True))) for each in (one, two)]
    assert filled[0] != filled[1]


@given(
    st.tuples(value, value),
    st.tuples(value, value),
    st.sampled_from(["-", ".", "_", "~", ":", "%:", "a-", "-a", "--"]),
)
def test_no_separator_can_be_forged(
    one: tuple[str, str], two: tuple[str, str], between: str
) -> None:
    """Two places stay apart also where what is between them could stand in a value."""
    assume(one != two)
    template = KeyTemplate.parse(f"{{a}}{between}{{b}}")
    assert template.fill({"a": one[0], "b": one[1]}) != template.fill({"a": two[0], "b": two[1]})


@given(value)
def test_a_filled_key_is_a_key(text: str) -> None:
    """What is filled in is encoded, so that it can be no control character and no separator."""
    key = KeyTemplate.parse("item:{id}").fill({"id": text})
    assert check_key(key) == key
    ours = set(filter(str.isascii, key.removeprefix("item:")))
    assert ours <= set(string.ascii_letters + string.digits + "-._~%")


def test_a_plain_value_stays_readable() -> None:
    """Ordinary names and numbers stand in the key as they are."""
    template = KeyTemplate.parse("shop:{shop}:item:{item_id}")
    assert template.fill({"shop": "a-b_c.d~e", "item_id": 7}) == "shop:a-b_c.d~e:item:7"


def test_a_template_without_placeholders_is_its_own_key() -> None:
    """Nothing is filled in, or encoded; the key knows its template as any other does."""
    key = KeyTemplate.parse("create item: 50 %").fill({})
    assert (key, key.template) == ("create item: 50 %", "create item: 50 %")


def test_scripts_are_not_folded() -> None:
    """Texts that look alike, or are equal when normalized, are different values."""
    template = KeyTemplate.parse("{name}")
    alike = ["ä", "a\u0308", "Ä", "ae", "\uff41", "a", "\u0410", "A"]
    assert len({template.fill({"name": name}) for name in alike}) == len(alike)


@pytest.mark.parametrize("value", ["京" * 500, "Ж" * 500, "\U0001f512" * 500])
def test_characters_of_every_script_count_as_one(value: str) -> None:
    """A value of 500 characters fits into a key, whatever its script is, and is readable there."""
    assert KeyTemplate.parse("item:{name}").fill({"name": value}) == f"item:{value}"


def test_a_separator_of_any_script_is_not_in_a_value() -> None:
    """What separates two values is encoded in them, and so is what no key may contain."""
    template = KeyTemplate.parse("{a}→{b}")
    assert template.fill({"a": "x→y", "b": "\u2028\x85"}) == "x%E2%86%92y→%E2%80%A8%C2%85"


def test_what_is_not_named_is_not_used() -> None:
    """Only whole names are filled in: nothing of a value is ever evaluated."""
    assert KeyTemplate.parse("{a}").fill({"a": "{b}", "b": "secret"}) == "%7Bb%7D"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("item:{item_id", "unmatched brace"),
        ("item:item_id}", "unmatched brace"),
        ("item:{{item_id}}", "unmatched brace"),
        ("item:{}", "a name like"),
        ("item:{007}", "a name like"),
        ("item:{a b}", "a name like"),
        ("item:{a!r}", "a name like"),
        ("item:{a:>10}", "a name like"),
        ("item:{a[b]}", "a name like"),
        ("item:{a.__class__.b}", "a name like"),
        ("{a}{b}", "ambiguous"),
        ("{a}x{b}", "ambiguous"),
        ("{a}%{b}", "ambiguous"),
        ("", "empty"),
        ("a\n", "control character"),
    ],
)
def test_a_malformed_template_is_refused(text: str, problem: str) -> None:
    """What is wrong with a template is said when it is parsed, not when it is used."""
    with pytest.raises(ConfigurationError, match=problem):
        KeyTemplate.parse(text)


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({}, "needs 'item_id'; available: none"),
        ({"other": 1}, "needs 'item_id'; available: other"),
        ({"item_id": ""}, "empty value"),
        ({"item_id": "\ud800"}, "lone surrogate"),
        ({"item_id": "x" * 600}, "at most 512"),
    ],
)
def test_values_that_make_no_key(values: dict[str, object], problem: str) -> None:
    """What a requester sent wrongly is the requester's error, and says what was wanted."""
    with pytest.raises(InvalidKey, match=problem):
        KeyTemplate.parse("item:{item_id}").fill(values)


def test_a_template_names_parameters() -> None:
    """A template for a function is checked when it decorates, and reads its arguments."""

    def function(item: int, /, shop: str = "main", *rest: int, flag: bool = False) -> None: ...

    key_of = KeyTemplate.parse("{shop}/{item}/{flag}").for_call_of(function)
    assert key_of((7,), {}) == "main/7/False"
    assert key_of((7, "x", 1), {"flag": True}) == "x/7/True"
    with pytest.raises(ConfigurationError, match=r"needs 'items'.*function; available: item, shop"):
        KeyTemplate.parse("{items}").for_call_of(function)
    with pytest.raises(TypeError, match="missing a required argument"):
        key_of((), {})


def test_a_template_names_places() -> None:
    """``{0}`` is the first argument of a call, also where it is passed by name or left out."""

    def function(item: int, shop: str = "main", *rest: int, flag: bool = False) -> None: ...

    key_of = KeyTemplate.parse("{1}/{0}").for_call_of(function)
    assert key_of((7,), {}) == key_of((), {"item": 7}) == "main/7"
    assert (
        KeyTemplate.parse("{2:int}/{flag}").for_call_of(function)((7, "x", "08"), {}) == "8/False"
    )
    with pytest.raises(InvalidKey, match="needs '2'"):
        KeyTemplate.parse("{2}").for_call_of(function)((7,), {})
    with pytest.raises(ConfigurationError, match="needs '1', which is not a parameter"):
        KeyTemplate.parse("{1}").for_call_of(lambda item, *, flag=False: None)
    with pytest.raises(ConfigurationError, match=r"have names, not places: .* like \{item_id\}"):
        KeyTemplate.parse("item:{0}").in_request()


@pytest.mark.parametrize(
    "key", ["a", "k" * MAX_LENGTH, "\U0001f512" * MAX_LENGTH, " ", "a b", "{a}", "ä", "%"]
)
def test_what_can_be_a_key(key: str) -> None:
    """Any text of 1 to 512 characters without control characters is a key, and stays as it is."""
    assert check_key(key) == key


@pytest.mark.parametrize(
    ("key", "problem"),
    [
        ("", "empty"),
        ("k" * (MAX_LENGTH + 1), "has 513"),
        ("k" * 10_000_000, "at most 512"),
        ("a\nb", r"'\\n' at position 1"),
        ("\0", "control character"),
        ("\x7f", "control character"),
        ("\x85", "control character"),
        ("\u2028", "control character"),
        ("a\ud83d", "lone surrogate"),
        (7, "not int: 7"),
        (None, "not NoneType"),
        (b"key", "not bytes"),
        (["key"], "not list"),
    ],
)
def test_what_cannot_be_a_key(key: object, problem: str) -> None:
    """Everything else is refused with what is wrong with it, in a message of bounded length."""
    with pytest.raises(InvalidKey, match=problem) as refused:
        check_key(key)
    assert len(str(refused.value)) < 400


@given(st.tuples(namespaces, value), st.tuples(namespaces, value))
def test_namespaces_never_meet(one: tuple[str, str], two: tuple[str, str]) -> None:
    """A key of one namespace is never a key of another, and can be read back."""
    assume(one != two)
    assert qualified(*one) != qualified(*two)
    assert unqualified(qualified(*one)) == one[1]


def test_one_order_for_all() -> None:
    """Keys come in one order, each once, however they were named."""
    assert in_order(["b", "a", "b", "B"]) == in_order(["B", "b", "a"]) == ("B", "a", "b")
