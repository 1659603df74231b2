"""Rules by URL: which requests they are about, what these lock, and which rules are refused."""

import json
import math
import re
import time
import tomllib

import pytest

from weblock import ConfigurationError, InvalidKey
from weblock.contrib.kit.rules import Rule, RuleSet
from weblock.errors import StrangePath

STRANGE = "400 strange_path"


def locked(rules, method, path, *, root_path="", query="", headers=()):
    """The keys that a request locks; ``None`` for none, and ``STRANGE`` if it is refused."""
    try:
        found = RuleSet(rules).find(method, path, root_path=root_path)
    except StrangePath:
        return STRANGE
    named = dict(headers)
    if found is None:
        return None
    return list(
        found.keys(query=query, headers=lambda name: [named[name]] if name in named else [])
    )


ITEMS = [Rule("/items", key="items")]
SHOP = [Rule("/shops/{shop}/items/{item:int}", key="{shop}:{item}")]


class TestMatching:
    @pytest.mark.parametrize(
        ("path", "keys"),
        [
            ("/items", ["items"]),
            ("/items-archive", None),
            ("/items/7", None),
            ("/Items", None),
            ("/old/items", None),
            ("", None),
            ("/items/", ["items"]),
            ("/items%2F", None),
            ("/items;v=1", None),
            ("/items/caf\u00e9", None),
            ("/items\n", STRANGE),
            ("/items\nx", STRANGE),
            ("/other\x7f", STRANGE),
            ("/other\x85", STRANGE),
            ("/other\ufffd", STRANGE),
            ("/\ud800other", STRANGE),
            ("//items", STRANGE),
            ("/items//", STRANGE),
            ("/./items", STRANGE),
            ("/old/../items", STRANGE),
            ("/../items/", STRANGE),
            ("items", STRANGE),
            ("//other", None),
            ("/old/../other", STRANGE),
            ("/.../.other/..x", None),
        ],
    )
    def test_a_path_is_locked_or_refused_or_left_alone(self, path, keys):
        """A rule locks its path. Another spelling that a router may take for it is refused."""
        assert locked(ITEMS, "POST", path) == keys

    @pytest.mark.parametrize(
        ("path", "root_path", "keys"),
        [
            ("/api/items", "/api", ["items"]),
            ("/items", "/api", ["items"]),
            ("/apiitems", "/api", STRANGE),  # Litestar takes it to /items.
            ("/else/api/items", "/api", STRANGE),
            ("/api//items", "/api", STRANGE),
            ("/api/../items", "/api", STRANGE),
            ("/api", "/api", None),
            ("/api/items", "", None),
            ("/api/api/items", "/api", None),
        ],
    )
    def test_what_is_before_the_application_is_no_part_of_the_path(self, path, root_path, keys):
        """Where a server or a mount has put the application makes no difference to its rules."""
        assert locked(ITEMS, "POST", path, root_path=root_path) == keys

    def test_a_rule_does_not_name_the_root_path(self):
        """Where the root path is no part of the path, the rule's own path is the whole."""
        rules = [Rule("/api/items", key="items")]
        assert locked(rules, "POST", "/api/items", root_path="/api") is None
        assert locked(rules, "POST", "/api/items", root_path="/shop") == ["items"]

    def test_a_rule_with_a_slash_at_the_end_is_the_lenient_routers_too(self):
        """A router that does not mind slashes has one endpoint for both paths: so has the rule."""
        assert locked([Rule("/items/", key="items")], "POST", "/items") == ["items"]

    def test_the_exact_path_goes_before_the_lenient_one(self):
        """What a router tells apart is told apart."""
        rules = [Rule("/items", key="one"), Rule("/items/", key="two")]
        assert locked(rules, "GET", "/items") == ["one"]
        assert locked(rules, "GET", "/items/") == ["two"]

    def test_a_final_slash_alone_is_not_refused(self):
        """The path as it is written decides, unless a router without slashes would find another rule."""
        rules = [Rule("/files/{name:path}", key="file:{name}"), Rule("/files", key="files")]
        assert locked(rules, "GET", "/files") == ["files"]
        assert locked(rules, "GET", "/files/") == STRANGE
        rules = [Rule("/items/new/", key="new"), Rule("/items/{name}", key="{name}")]
        assert locked(rules, "GET", "/items/new/") == ["new"]
        assert locked(rules, "GET", "/items/new") == STRANGE
        assert locked(rules, "GET", "/items/other/") == ["other"]
        regexes = [Rule(re.compile(f"/items/[0-9]+{end}"), key=f"x{end}") for end in ("/", "")]
        assert locked(regexes, "GET", "/items/7/") == ["x/"]
        assert locked(regexes, "GET", "/items/7") == ["x"]

    def test_only_methods_with_rules_are_looked_at(self):
        """A path without any rule for its method is the application's own affair."""
        rules = [Rule("/items", key="items", methods=["POST"])]
        assert locked(rules, "POST", "/other\n") == STRANGE
        assert locked(rules, "GET", "/items\n") is None

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

    def test_a_function_is_given_what_it_names(self):
        """Path parameters as the rule converts them, and the scope or environ; ``None`` locks nothing."""
        rules = RuleSet(
            [Rule("/items/{item:int}", key=lambda item, scope: scope and f"{item}:{scope}")]
        )
        found = rules.find("POST", "/items/07")
        given = {"query": "", "headers": lambda _name: []}
        assert found.keys(**given, scope="a") == ("7:a",)
        assert found.keys(**given, scope=None) == ()

    def test_a_group_that_took_no_part_makes_no_key(self):
        """A key that cannot be filled in is an error, never a key of less."""
        rules = [Rule(re.compile("/items(?:/(?P<item>[^/]+))?"), key="item:{item}")]
        with pytest.raises(InvalidKey):
            locked(rules, "GET", "/items")


async def _of_item(item):
    return item


class TestRefusals:
    @pytest.mark.parametrize(
        "path", ["/items/*", r"/items/\d+", "/items/<int:pk>", "/items/:id", "/items/(?P<pk>.+)"]
    )
    def test_the_syntax_of_others_is_refused(self, path):
        """A path that would match nothing but itself is no rule, and the error says how to write it."""
        with pytest.raises(ConfigurationError, match=r"matched literally: .*\{name:int\}"):
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
            ("/{a}{b}", "a segment has one placeholder"),
            ("/{year:int}-{month:int}", "a segment has one placeholder"),
            ("/{p:path}-{b}", "a segment has one placeholder"),
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
            ({"key": "{body.shop}"}, "one of path, query, header"),
            ({"key": "{item"}, "unmatched brace"),
            ({"key": 7}, "key=7 must be a template"),
            ({"key": lambda shop: shop}, "cannot be called for /items/{item}: missing .*'shop'"),
            ({"key": _of_item}, "_of_item is async"),
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
            (Rule("/items/{a}", key="a"), Rule("/items/{b}.json", key="b")),
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
            (Rule("/items/{a}.json", key="a"), Rule("/items/{a}", key="b")),
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
        assert [rule.lock.options for rule in rules] == [{"ttl": 5}, {"wait": 0.5}, {}, {}]
        assert locked([*self.ENTRIES], "POST", "/shops/a/items") == ["shop:a"]
        assert locked([*self.ENTRIES], "GET", "/old/7") == ["all", "item:7"]

    def test_from_the_environment(self):
        """A variable holds them as JSON, where null waits without end."""
        (rule,) = RuleSet('[{"path": "/x", "key": "x", "wait": null}]')
        assert rule.lock.options == {"wait": None}
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
        assert new.lock.options == {"wait": None}
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
    "/{a}.json/",
    "/a-{n:int}",
    "/{n:float}/{m:float}x/{a}",
    "/{p:path}/{a}.b/x",
    "/{p:path}.json",
    "/{u:uuid}",
]
HOSTILE = ["-", ".", "/", "x/", ".json", ".json/", "1-", "1.1-", "a-b.", "7", "/a.b"]


def hostile_paths(size):
    """Paths of about ``size`` characters that leave a matcher many places to split them at."""
    for piece in HOSTILE:
        for end in ("", "/", "\n/x"):
            yield "/" + piece * (size // len(piece)) + end


UUID = "0123abcd-0123-0123-0123-0123456789ab"


class TestOtherSpellings:
    """Spellings that a framework may take for a value, although Starlette's router does not."""

    @pytest.mark.parametrize(
        ("kind", "plain", "spellings"),
        [
            (
                "int",
                "7",
                ["+7", "-7", "7.0", "7.", " 7", "7 ", "\u20037", "0__7", "\u0667", "\uff17"],
            ),
            ("float", "7.5", ["+7.5", "nan", "inf", "1e3", ".5", "5.", "1_0.5", " 7.5", "\u0667"]),
            ("uuid", UUID, [f"{{{UUID}}}", f"urn:uuid:{UUID}", f"{UUID[:-2]}-ab"]),
        ],
    )
    def test_a_value_in_another_spelling_is_refused(self, kind, plain, spellings):
        """Whatever Python or Pydantic reads as a value of the type; text is left to other rules."""
        rules = [
            Rule(f"/items/{{x:{kind}}}/end", key="{x}"),
            Rule("/items/{name}/end", exempt=True),
        ]
        assert locked(rules, "POST", f"/items/{plain}/end") == [plain]
        assert locked(rules, "POST", "/items/some-name/end") is None
        for spelling in spellings:
            assert locked(rules[:1], "POST", f"/items/{spelling}/end") == STRANGE
            assert locked(rules, "POST", f"/items/{spelling}/end") == STRANGE

    @pytest.mark.parametrize("value", ["x", "7.5", "1e3", "nan", "\u00b2", "7a", "--7", "_"])
    def test_what_is_no_integer_locks_nothing(self, value):
        """Another route may be beside: what no framework reads as an integer is not refused."""
        assert locked(SHOP, "POST", f"/shops/a/items/{value}") is None

    def test_text_is_kept_as_it_is(self):
        """A text placeholder takes digits of every script, ``%`` and ``;``, and dots and slashes in a path."""
        assert locked([Rule("/{x}", key="{x}")], "POST", "/\u0667;v=%2F") == ["\u0667%3Bv%3D%252F"]
        rules = [Rule("/files/{x:path}", key="{x}")]
        assert locked(rules, "POST", "/files/a/b") == ["a%2Fb"]
        # Routers that read several slashes as one give their endpoint the other text.
        assert locked(rules, "POST", "/files/a//b") == ["a%2F%2Fb", "a%2Fb"]
        assert locked(rules, "POST", "/files/../items") == STRANGE

    @pytest.mark.parametrize("spelling", ["\u0661\uff17", "+17", "17.0", " 17"])
    def test_numbers_of_regular_expressions(self, spelling):
        r"""``[0-9]+`` in a rule is ``\d+`` in another router, or an integer of an endpoint."""
        assert locked([Rule(re.compile("/re/07"), key="x")], "POST", "/re/\u0660\u0667") == STRANGE
        rules = [Rule(re.compile("/re/(?P<pk>[0-9]+)"), key="re:{pk}")]
        assert locked(rules, "POST", "/re/17") == ["re:17"]
        assert locked(rules, "POST", f"/re/{spelling}") == STRANGE

    def test_the_rule_before_it_may_be_meant(self):
        """Where a path is written for one rule and may be read for another, it is refused."""
        rules = [Rule("/items/{item:int}", key="item:{item}"), Rule("/items/{name}", key="{name}")]
        assert locked(rules, "POST", "/items/+7") == STRANGE
        assert locked(rules, "POST", "/items/7") == ["item:7"]
        assert locked(rules, "POST", "/items/new") == ["new"]


@pytest.mark.parametrize("template", TEMPLATES)
def test_no_url_keeps_the_event_loop(template):
    """A path that is 32 times as long costs about 32 times the processor time, not its square."""
    path = Rule(template, key="x").path

    def cost(size):
        began = time.thread_time()
        for hostile in hostile_paths(size):
            path.regex.fullmatch(hostile)
            path.wide.fullmatch(hostile)
        return time.thread_time() - began

    assert cost(64_000) < 200 * cost(2_000)


class CountedRegex:
    """A regular expression that counts the paths that it reads."""

    def __init__(self, regex):
        self._regex, self.read = regex, 0

    def fullmatch(self, path):
        self.read += 1
        return self._regex.fullmatch(path)


def counted_regexes(path):
    """Make a template count what it reads; return the counters."""
    for name in ("regex", "wide"):
        counted = CountedRegex(getattr(path, name))
        object.__setattr__(path, name, counted)
        yield counted


LONG_PATHS = ["/%s", "/%s/y", "/%s//y", "/shops/%s/items/", "/%s/items/y/%s", "/s/%s/items/x"]


@pytest.mark.parametrize("long", LONG_PATHS)
def test_a_long_path_is_read_by_few_of_many_rules(long):
    """Letters without end: a rule reads them only if the path has its fixed segments."""
    path = long.replace("%s", "\u00e9" * 300)
    templates = (
        "/{{shop}}/x{n}",
        "/shops{n}/{{shop}}/z/{{item:int}}",
        "/{{shop}}/x{n}/{{item}}/end",
    )
    rules = RuleSet([Rule(each.format(n=n), key="x") for n in range(20) for each in templates])
    regexes = [regex for rule in rules for regex in counted_regexes(rule.path)]
    assert rules.find("POST", path) is None
    assert sum(regex.read for regex in regexes) < 3


def test_long_paths_match_as_short_ones_do():
    """The look at the segments of a long path refuses nothing that the expressions match."""
    templates = [
        *TEMPLATES,
        "/{shop}/items",
        "/items",
        "/{name}.ext",
        "/a/{rest:path}/b",
        "/a/{b}/",
    ]
    for path in (Rule(template, key="x").path for template in templates):
        for sample in path.samples():
            long = sample.replace("7", 120 * "7").replace("\ue0f0", 120 * "a")
            for spelling in (long, f"{long}/", f"{long}//", f"/a{long}"):
                found = path.regex.fullmatch(spelling)
                assert path.match(spelling) == (found and found.groupdict())
                wide = path.wide.fullmatch(spelling)
                assert not wide or path._has_literals_of(spelling)
