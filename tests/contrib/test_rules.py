"""Rules by URL: which requests they are about, what these lock, and which rules are refused."""

import collections
import json
import math
import re
import sys
import tomllib

import pytest

from tests.support.regex_steps import StepCounter
from weblock import ConfigurationError, InvalidKey
from weblock.contrib.rules import Rule, RuleSet


def locked(rules, method, path, *, root_path="", query="", headers=()):
    """The keys that a request locks."""
    found = RuleSet(rules).find(method, path, root_path=root_path)
    named = dict(headers)
    if found is None:
        return None
    return found.keys(query=query, headers=lambda name: [named[name]] if name in named else [])


ITEMS = [Rule("/items", key="items")]
SHOP = [Rule("/shops/{shop}/items/{item:int}", key="{shop}:{item}")]


class TestMatching:
    @pytest.mark.parametrize(
        ("path", "keys"),
        [
            ("/items", ["items"]),
            ("/items\n", ["items"]),
            ("/items-archive", None),
            ("/items/7", None),
            ("/Items", None),
            ("/old/items", None),
            ("/items\nx", None),
            ("/items\n\n", None),
            ("", None),
            ("/items/", ["items"]),
            ("//items//", ["items"]),
        ],
    )
    def test_a_path_is_matched_as_routers_match_it(self, path, keys):
        """Neither more than the path is locked, nor less, by what a router takes for the same."""
        assert locked(ITEMS, "POST", path) == keys

    @pytest.mark.parametrize("path", ["/items", "/items\n", "/items-archive"])
    def test_naive_matching_is_wrong(self, path):
        """``re.match`` locks too much, ``fullmatch`` and ``==`` too little: here it is seen."""
        right = locked(ITEMS, "POST", path) is not None
        naive = [re.match("/items", path), re.fullmatch("/items", path), path == "/items"]
        wrong = [bool(each) != right for each in naive]
        assert (
            wrong
            == {
                "/items": [False, False, False],
                "/items\n": [False, True, True],
                "/items-archive": [True, False, False],
            }[path]
        )

    @pytest.mark.parametrize(
        ("path", "root_path", "keys"),
        [
            ("/api/items", "/api", ["items"]),
            ("/items", "/api", ["items"]),
            ("/apiitems", "/api", ["items"]),  # Litestar takes it to /items.
            ("/api/items", "", None),
            ("/api/api/items", "/api", None),
        ],
    )
    def test_what_is_before_the_application_is_no_part_of_the_path(self, path, root_path, keys):
        """Where a server or a mount has put the application makes no difference to its rules."""
        assert locked(ITEMS, "POST", path, root_path=root_path) == keys

    def test_a_rule_may_name_the_root_path_too(self):
        """A path that is written in full is locked as well."""
        rules = [Rule("/api/items", key="items")]
        assert locked(rules, "POST", "/api/items", root_path="/api") == ["items"]

    def test_a_rule_with_a_slash_at_the_end_is_the_lenient_routers_too(self):
        """A router that does not mind slashes has one endpoint for both paths: so has the rule."""
        assert locked([Rule("/items/", key="items")], "POST", "/items") == ["items"]

    def test_the_exact_path_goes_before_the_lenient_one(self):
        """What a router tells apart is told apart."""
        rules = [Rule("/items", key="one"), Rule("/items/", key="two")]
        assert locked(rules, "GET", "/items") == ["one"]
        assert locked(rules, "GET", "/items/") == ["two"]

    def test_a_mounted_route_is_locked_whose_mount_was_confused(self):
        """Starlette's mounts leave their own part in a path that ends with a newline."""
        rules = [Rule("/shops/{shop}/items", key="shop:{shop}")]
        assert locked(rules, "POST", "/shops/items\n") == ["shop:shops"]
        rules = [Rule("/{tenant}/{shop}/items", key="{tenant}:{shop}")]
        with pytest.raises(InvalidKey):
            locked(rules, "POST", "/shops/items\n")

    def test_a_request_never_has_a_rule_read_again(self):
        """A URL that ends with a newline is only matched: what it may mean is known from the start."""
        rules = RuleSet([Rule(f"/a{n}/b/{{x}}/{{y}}/c", key="{x}:{y}") for n in range(50)])
        calls = collections.Counter()

        def count(frame, event, _arg):
            if event == "call":
                calls[frame.f_code.co_name] += 1

        sys.setprofile(count)
        try:
            found = rules.find("POST", "/nothing/of/this\n")
        finally:
            sys.setprofile(None)
        assert found is None
        assert {"match"} < set(calls)
        assert not {"parse", "_parsed", "compile"} & set(calls)

    @pytest.mark.parametrize(
        ("methods", "method", "matches"),
        [
            (None, "POST", True),
            (None, "BREW", True),
            (None, "WEBSOCKET", False),
            (["POST"], "POST", True),
            (["post"], "POST", True),
            (["POST"], "post", True),
            (["POST"], "GET", False),
            (["GET"], "HEAD", True),
            (["HEAD"], "GET", False),
            (["POST"], "BREW", False),
            (["WEBSOCKET"], "WEBSOCKET", True),
            (["WEBSOCKET"], "GET", False),
        ],
    )
    def test_methods(self, methods, method, matches):
        """All but websockets unless they are named; HEAD comes with GET, in any case."""
        rules = [Rule("/items", key="items", methods=methods)]
        assert (locked(rules, method, "/items") is not None) is matches

    def test_the_first_match_wins(self):
        """The order of the rules is theirs to say; an exempt one ends the search."""
        rules = [
            Rule("/items/health", exempt=True),
            Rule("/items/{item:int}", key="item:{item}"),
            Rule("/items/{name}", key="name:{name}"),
        ]
        assert locked(rules, "GET", "/items/health") is None
        assert locked(rules, "GET", "/items/7") == ["item:7"]
        assert locked(rules, "GET", "/items/x") == ["name:x"]

    def test_a_regular_expression_has_to_match_the_whole_path(self):
        """As with templates, neither a longer path slips in nor a newline past."""
        rules = [Rule(re.compile(r"/items/(?P<item>\d+)(?:\.(?P<form>\w+))?"), key="item:{item}")]
        assert locked(rules, "GET", "/items/7") == ["item:7"]
        assert locked(rules, "GET", "/items/7\n") == ["item:7"]
        assert locked(rules, "GET", "/items/7.json") == ["item:7"]
        assert locked(rules, "GET", "/items/7/archive") is None
        assert locked(rules, "GET", "/old/items/7") is None


class TestKeys:
    def test_a_key_is_of_the_value_that_the_endpoint_sees(self):
        """``/items/7`` and ``/items/007`` are one item to an endpoint that takes an ``int``."""
        assert locked(SHOP, "GET", "/shops/a/items/007") == ["a:7"]
        rules = [Rule("/{id:uuid}", key="{id}")]
        uuid = "0123abcd-0123-0123-0123-0123456789ab"
        assert locked(rules, "GET", f"/{uuid.replace('-', '').upper()}") == [uuid]
        assert locked([Rule("/{x:float}", key="{x}")], "GET", "/1.50") == ["1.5"]

    def test_values_of_query_and_headers(self):
        """A key is made of any of a request's parts, and may be several."""
        rules = [Rule("/{shop}", key=["{shop}:{query.item}", "user:{header.X-User}"])]
        keys = locked(rules, "GET", "/a", query="item=b%20c", headers={"x-user": "me"})
        assert keys == ["a:b%20c", "user:me"]

    @pytest.mark.parametrize(
        "path", ["/shops/" + 600 * "x" + "/items/7", "/shops/a/items/" + 5000 * "7"]
    )
    def test_keys_of_hostile_paths_are_bounded(self, path):
        """What makes a key too long, or a number that Python does not read, is the client's error."""
        with pytest.raises(InvalidKey):
            locked(SHOP, "GET", path)

    def test_a_group_that_took_no_part_makes_no_key(self):
        """A key that cannot be filled in is an error, never a key of less."""
        rules = [Rule(re.compile("/items(?:/(?P<item>[^/]+))?"), key="item:{item}")]
        with pytest.raises(InvalidKey):
            locked(rules, "GET", "/items")


class TestRefusals:
    @pytest.mark.parametrize(
        "path", ["/items/*", r"/items/\d+", "/items/<int:pk>", "/items/:id", "/items/(?P<pk>.+)"]
    )
    def test_the_syntax_of_others_is_refused(self, path):
        """A path that would match nothing but itself is no rule, and the error says how to write it."""
        with pytest.raises(ConfigurationError, match=r"matched as it stands: .*\{name:int\}"):
            Rule(path, key="x")
        assert Rule(re.compile(re.escape(path)), key="x").path.match(path) is not None

    @pytest.mark.parametrize(
        ("path", "problem"),
        [
            ("items", 'must start with "/"'),
            ("", 'must start with "/"'),
            (b"/b", "must be a string"),
            (None, "must be a string"),
            (re.compile(b"/items"), "must be a string"),
            ("/{item", "a placeholder is"),
            ("/{item-id}", "a placeholder is"),
            ("/{item:slug}", "converter 'slug'.*regular expression"),
            ("/{a}/{a}", "repeats the parameter a"),
            ("/{a}{b}", "takes long"),
            ("/{a}-{b}-{c}", "takes long"),
            ("/{a}-{b}.json", "takes long"),
            ("/{a:float}.{b}x", "takes long"),
            ("/{p:path}-{b}", "takes long"),
            ("/{a}-{p:path}", "takes long"),
            ("/{p:path}/x/{q:path}", "two placeholders of kind 'path'"),
        ],
    )
    def test_paths(self, path, problem):
        """What is no path, or would take long to match, is refused with what is wrong with it."""
        with pytest.raises(ConfigurationError, match=problem):
            Rule(path, key="x")

    @pytest.mark.parametrize(
        ("fields", "problem"),
        [
            ({}, "has no key"),
            ({"key": []}, "has no key"),
            ({"key": "x", "exempt": True}, "exempt and locks nothing"),
            ({"ttl": 5, "exempt": True}, "exempt and locks nothing"),
            ({"exempt": "yes"}, "must be True or False"),
            ({"key": "{shop}"}, "needs the path parameter 'shop', but /items/{item} has item"),
            ({"key": "{path.shop}"}, "needs the path parameter 'shop'"),
            ({"key": "{cookie.shop}"}, "one of path, query, header"),
            ({"key": "{item"}, "unmatched brace"),
            ({"key": 7}, "key=7 must be a template"),
            ({"key": "x", "methods": "POST"}, "must be a list"),
            ({"key": "x", "methods": 7}, "must be a list"),
            ({"key": "x", "methods": []}, "is empty"),
            ({"key": "x", "methods": ["PSOT"]}, "method 'PSOT' is unknown"),
            ({"key": "x", "methods": [None]}, "method None is unknown"),
            ({"key": "x", "ttl": 0}, "ttl=0"),
            ({"key": "x", "wait": "5"}, "wait='5' is not a duration"),
            ({"key": "x", "max_waiters": -1}, "max_waiters=-1"),
        ],
    )
    def test_fields(self, fields, problem):
        """What cannot work is said when the rule is made."""
        with pytest.raises(ConfigurationError, match=problem):
            Rule("/items/{item}", **fields)

    @pytest.mark.parametrize(
        ("first", "second"),
        [
            (Rule("/items", key="a"), Rule("/items", key="b")),
            (Rule("/items/{a}", key="a"), Rule("/items/new", key="b")),
            (Rule("/items/{a}", key="a"), Rule("/items/{b}", key="b")),
            (Rule("/items/{a}", key="a"), Rule("/items/{b:int}", key="b")),
            (Rule("/items/{a}", key="a"), Rule("/items/{b:uuid}", key="b")),
            (Rule("/items/{a:float}", key="a"), Rule("/items/{b:int}", key="b")),
            (Rule("/items/{a}", key="a"), Rule("/items/{b}.{c}", key="b")),
            (Rule("/{p:path}", key="a"), Rule("/items/{b}/c", key="b")),
            (Rule("/{p:path}", exempt=True), Rule("/items", key="b")),
            (Rule("/items", key="a"), Rule("/items", exempt=True, methods=["GET"])),
            (
                Rule("/items", key="a", methods=["GET", "PUT"]),
                Rule("/items", key="b", methods=["HEAD"]),
            ),
            (Rule(re.compile("/items.*"), key="a"), Rule("/items", key="b")),
            (Rule(re.compile("/items.*"), key="a"), Rule(re.compile("/items.*"), key="b")),
        ],
    )
    def test_a_rule_that_another_hides(self, first, second):
        """A rule that can never match is refused, with the names of both."""
        with pytest.raises(ConfigurationError, match=r"rules\[1\], .* never match: rules\[0\]"):
            RuleSet([first, second])

    @pytest.mark.parametrize(
        ("first", "second"),
        [
            (Rule("/items/new", key="a"), Rule("/items/{a}", key="b")),
            (Rule("/items/{a:int}", key="a"), Rule("/items/{a}", key="b")),
            (Rule("/items/{a:uuid}", key="a"), Rule("/items/{a:int}", key="b")),
            (Rule("/items/{a:int}", key="a"), Rule("/items/{a:float}", key="b")),
            (Rule("/items/{a}", key="a"), Rule("/items/{p:path}", key="b")),
            (Rule("/items/{a}.{b}", key="a"), Rule("/items/{a}", key="b")),
            (Rule("/{p:path}/x", key="a"), Rule("/{p:path}", key="b")),
            (Rule("/items", key="a", methods=["GET"]), Rule("/items", key="b")),
            (Rule("/items", key="a"), Rule("/items", key="b", methods=["WEBSOCKET"])),
            (Rule("/items", key="a"), Rule("/items/", key="b")),
            (Rule(re.compile("/items/(?!7$).*"), key="a"), Rule("/items/{a}", key="b")),
            (Rule("/items/{a}", key="a"), Rule(re.compile("/items/7"), key="b")),
        ],
    )
    def test_a_rule_that_none_hides(self, first, second):
        """Rules that only overlap stand side by side."""
        assert len(RuleSet([first, second])) == 2


class TestPlainData:
    ENTRIES = (
        {"path": "/shops/{shop}/items", "methods": ["POST"], "key": "shop:{shop}", "ttl": 5},
        {"regex": "/old/(?P<item>[0-9]+)", "key": ["item:{item}", "all"], "wait": 0.5},
        {"path": "/health", "exempt": True},
    )

    def test_from_a_list(self):
        """Settings hold plain mappings, among rules or instead of them."""
        rules = RuleSet([*self.ENTRIES, Rule("/x", key="x")])
        assert [rule.options for rule in rules] == [{"ttl": 5}, {"wait": 0.5}, {}, {}]
        assert locked([*self.ENTRIES], "POST", "/shops/a/items") == ["shop:a"]
        assert locked([*self.ENTRIES], "GET", "/old/7") == ["item:7", "all"]

    def test_from_the_environment(self):
        """A variable holds them as JSON, where null waits without end."""
        (rule,) = RuleSet('[{"path": "/x", "key": "x", "wait": null}]')
        assert rule.options == {"wait": None}
        assert len(RuleSet(json.dumps(self.ENTRIES))) == 3

    def test_from_toml(self):
        """A table of tables keeps its order; TOML's infinity waits without end."""
        table = tomllib.loads("""
            [rules.new]
            path = "/items/new"
            key = "new"
            wait = inf
            [rules.items]
            path = "/items/{item}"
            methods = ["PUT", "DELETE"]
            key = "item:{item}"
        """)
        new, items = RuleSet(table["rules"])
        assert new.options == {"wait": None}
        assert items.methods == {"PUT", "DELETE"}

    @pytest.mark.parametrize(
        ("rules", "problem"),
        [
            ("[{", "^rules is not JSON"),
            (7, "^rules is 7: give a list"),
            ("8", "^rules is 8: give a list"),
            ([7], r"^rules\[0\] is 7: give a Rule"),
            ({"new": "/items"}, r"^rules\.new is '/items': give a Rule"),
            ([{"path": "/x", "key": "x", "metods": []}], r"^rules\[0\] has 'metods'.*methods"),
            ({"new": {"key": "x"}}, r"^rules\.new: give either path or regex"),
            (
                [{"path": "/x", "regex": "/x", "key": "x"}],
                r"^rules\[0\]: give either path or regex",
            ),
            ([{"regex": "(", "key": "x"}], r"^rules\[0\]: regex cannot be read: missing \)"),
            ([{"regex": 7, "key": "x"}], r"^rules\[0\]: regex cannot be read"),
            ([{"path": 7, "key": "x"}], r"^rules\[0\]: path 7 must be a string"),
            ([{"path": "/x", "key": "x", "ttl": "5"}], r"^rules\[0\]: ttl='5'"),
            ([{"path": "/x", "key": "{y}"}], r"^rules\[0\]: key '{y}' needs"),
            ([{"path": "/x", "key": "x", "ttl": math.inf}], r"^rules\[0\]: ttl=inf"),
            (
                {"a": {"path": "/{x}", "key": "x"}, "b": {"path": "/y", "key": "y"}},
                r"^rules\.b, .* never match: rules\.a,",
            ),
        ],
    )
    def test_an_error_names_the_entry(self, rules, problem):
        """Whoever has written it finds what is wrong where it is."""
        with pytest.raises(ConfigurationError, match=problem):
            RuleSet(rules)

    def test_the_whole_has_the_name_that_its_user_knows(self):
        """Django's settings are called by their name."""
        with pytest.raises(ConfigurationError, match=r"^WEBLOCK\['RULES'\]\[0\] is 7"):
            RuleSet([7], name="WEBLOCK['RULES']")


TEMPLATES = [
    "/{a}x/{b}.json",
    "/{a}.{b}",
    "/{a}-{n:int}",
    "/{n:int}-{a}.{b}",
    "/{n:float}-{m:float}-{a}",
    "/{p:path}/{a}.{b}/x",
    "/{p:path}.json",
]
HOSTILE = ["-", ".", "/", "x/", ".json", ".json/", "1-", "1.1-", "a-b.", "7", "/a.b"]


def hostile_paths(size):
    """Paths of about ``size`` characters that leave a matcher many places to split them at."""
    for piece in HOSTILE:
        for end in ("", "/", "\n/x"):
            yield "/" + piece * (size // len(piece)) + end


class TestOtherRouters:
    """Spellings that another router than Starlette's may take for the value that a rule is about."""

    @pytest.mark.parametrize("spelling", ["\u0667", "+7", "0_7", " 7", "\u20037", "07\n", "\uff17"])
    def test_spellings_of_a_number_are_one_key(self, spelling):
        """Whatever ``int()`` reads as the number locks what the number locks."""
        assert locked(SHOP, "POST", f"/shops/a/items/{spelling}") == ["a:7"]

    @pytest.mark.parametrize("value", ["x", "7.0", "", "\u00b2", "7a"])
    def test_what_is_no_number_locks_nothing(self, value):
        """Another route may be beside: what nobody takes for a number is not refused."""
        assert locked(SHOP, "POST", f"/shops/a/items/{value}") is None

    def test_a_uuid_in_another_form(self):
        """Braces and ``urn:uuid:`` are read as ``uuid.UUID`` reads them."""
        uuid = "0123abcd-0123-0123-0123-0123456789ab"
        rules = [Rule("/u/{u:uuid}", key="{u}")]
        for spelling in (uuid, f"{{{uuid}}}", f"urn:uuid:{uuid}", uuid.replace("-", "").upper()):
            assert locked(rules, "POST", f"/u/{spelling}") == [uuid]

    def test_digits_of_other_scripts_match_regular_expressions(self):
        r"""``[0-9]`` in a rule is what ``\d`` of the router is: digits of every script."""
        rules = [Rule(re.compile("/re/(?P<pk>[0-9]+)"), key="re:{pk}")]
        assert locked(rules, "POST", "/re/\u0661\uff17") == ["re:17"]

    def test_numbers_beside_one_another(self):
        """Where placeholders share a segment, digits of all scripts are read, but no signs."""
        rules = [Rule("/{year:int}-{month:int}", key="{year}:{month}")]
        assert locked(rules, "POST", "/2026-\u0667") == ["2026:7"]
        assert locked(rules, "POST", "/2026-+7") is None

    def test_both_rules_hold_where_either_may_be_meant(self):
        """The one that matches decides, and the one before it, which may be meant, is held besides."""
        rules = [Rule("/items/{item:int}", key="item:{item}"), Rule("/items/{name}", key="{name}")]
        assert locked(rules, "POST", "/items/+7") == ["%2B7", "item:7"]
        assert locked(rules, "POST", "/items/7") == ["item:7"]
        exempt = [rules[0], Rule("/items/{name}", exempt=True)]
        assert locked(exempt, "POST", "/items/+7") == ["item:7"]
        assert locked(exempt, "POST", "/items/new") is None


def steps_for(regex, path):
    """The steps that a match takes, by a counter that finds just what ``re`` finds."""
    end, steps = StepCounter(regex).match(path)
    found = regex.match(path)
    assert end == (None if found is None else found.end())
    return steps


def steepest_growth(regex, size):
    """How many times the steps of a path its fourfold takes, for the worst of the hostile paths."""
    pairs = zip(hostile_paths(size), hostile_paths(4 * size), strict=True)
    return max(steps_for(regex, long) / steps_for(regex, short) for short, long in pairs)


@pytest.mark.parametrize("template", TEMPLATES)
def test_matching_takes_steps_in_proportion_to_the_length(template):
    """No URL keeps the event loop: four times the length takes four times the steps, not sixteen."""
    path = Rule(template, key="x").path
    for regex in (path.regex, path.lenient or path.regex):
        assert steepest_growth(regex, 200) < 4.5


class CountedRegex:
    """A regular expression that counts the steps of its matches."""

    def __init__(self, regex):
        self._regex, self.steps = regex, 0

    def match(self, path):
        """As ``re`` does."""
        self.steps += steps_for(self._regex, path)
        return self._regex.match(path)


def counted_regexes(path):
    """Make a template, and those below its mounts, count their steps; return the counters."""
    for template in (path, *path.below_mounts):
        for name in ("regex", "lenient"):
            if regex := getattr(template, name):
                counted = CountedRegex(regex)
                object.__setattr__(template, name, counted)
                yield counted


LONG_PATHS = [
    "/%s",
    "%s",
    "/%s/y",
    "/%s/y\n",
    "/shops/%s/items\n",
    "/%s/items/y/%s\n",
    "/s/%s/items/x",
]


@pytest.mark.parametrize("long", LONG_PATHS)
def test_a_long_path_is_read_by_few_of_many_rules(long):
    """Newlines or letters without end: a rule reads them only if the path has its fixed segments."""
    path = long.replace("%s", "\n" * 300)
    templates = (
        "/{{shop}}/x{n}",
        "/shops{n}/{{shop}}/z/{{item:int}}",
        "/{{shop}}/x{n}/{{item}}/end",
    )
    rules = RuleSet([Rule(each.format(n=n), key="x") for n in range(20) for each in templates])
    regexes = [regex for rule in rules for regex in counted_regexes(rule.path)]
    assert rules.find("POST", path) is None
    assert sum(regex.steps for regex in regexes) < 3 * len(path)


def test_long_paths_match_as_short_ones_do():
    """The look at the segments of a long path refuses nothing that the expressions match."""
    templates = [*TEMPLATES, "/{shop}/items", "/items", "/{name}.{ext}", "/a/{rest:path}/b"]
    for path in (Rule(template, key="x").path for template in templates):
        for sample in path.samples():
            long = sample.replace("7", 120 * "7").replace("\ue0f0", 120 * "a")
            for spelling in (long, f"{long}\n", f"{long}/", f"{long}\n\n", f"/a{long}"):
                found = path.regex.match(spelling)
                assert path.match(spelling) == (found and found.groupdict())
                doubtful = path.lenient and path.lenient.match(spelling)
                assert not doubtful or path._has_literals_of(spelling)


def test_a_naive_regular_expression_takes_the_square_of_the_length():
    """What Starlette itself makes of such a template: here it is seen to be slow."""
    assert steepest_growth(re.compile("^/(?P<a>[^/]+)-(?P<b>[^/]+).json$"), 50) > 14
