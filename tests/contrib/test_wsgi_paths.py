"""What rules lock beside what the routers of WSGI frameworks reach, on paths that nobody would think of."""

import re

import bottle
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from werkzeug.exceptions import HTTPException
from werkzeug.routing import Map
from werkzeug.routing import Rule as Route

from weblock import ConfigurationError, InvalidKey
from weblock.contrib.kit.rules import Rule, RuleSet
from weblock.contrib.wsgi.layer import find
from weblock.contrib.wsgi.request import headers_of, path_of, query_of
from weblock.errors import StrangePath
from weblock.keys import canonical

from .gateway import environ_of

TEMPLATES = [
    "/items",
    "/items/",
    "/é",
    "/items/{a}",
    "/items/{a}/",
    "/items/{a:int}",
    "/items/{a:float}",
    "/{a}/items/{b:int}",
    "/files/{a:path}",
    "/x-{b:int}",
    "/{a:int}.json",
]

PIECES = ["items", "files", "/", "/", "//", "7", "007", "7.50", "-", ".json", ";v=1", "é", "\u0667"]
WILD = ["\n", "%2F", "%", " ", "..", "\r", "a", "\x00"]

piece = st.sampled_from([*PIECES, *WILD]).map(str.encode) | st.binary(max_size=2)
raw_path = st.lists(piece, max_size=7).map(lambda pieces: b"/" + b"".join(pieces))


@st.composite
def near_misses(draw):
    path = draw(st.sampled_from(TEMPLATES)).encode()
    for kind in (b"{a:int}", b"{b:int}", b"{a:float}", b"{a:path}", b"{a}", b"{b}"):
        path = path.replace(
            kind, draw(st.sampled_from(["7", "007", "7.5", "a", "\u0667"])).encode()
        )
    place = draw(st.integers(0, len(path)))
    return path[:place] + draw(st.just(b"") | piece) + path[place:]


def rules_of(templates):
    found = []
    for number, template in enumerate(templates):
        names = re.findall(r"\{(\w+)", template)
        key = [f"route{number}", *(f"{number}:{name}:{{{name}}}" for name in names)]
        found.append(Rule(template, key=key))
    try:
        return RuleSet(found)
    except ConfigurationError:  # Some rule is hidden.
        assume(False)


def werkzeug(templates, environ):
    """The number of the route that Werkzeug reaches, and the values that its view is given."""
    routes = [
        Route(re.sub(r"\{(\w+):?(\w*)\}", _werkzeug_place, template), endpoint=number)
        for number, template in enumerate(templates)
    ]
    try:
        return Map(routes).bind_to_environ(environ).match()
    except HTTPException:  # It redirects, or there is no such path.
        return None


def _werkzeug_place(found):
    name, kind = found.groups()
    return f"<{kind or 'string'}:{name}>"


def bottles(templates, environ):
    router = bottle.Router()
    for number, template in enumerate(templates):
        router.add(re.sub(r"\{(\w+:?\w*)\}", r"<\1>", template), "POST", number)
    # As its application does before it asks the router.
    path = environ["PATH_INFO"].encode("latin-1").decode("utf-8", "ignore")
    try:
        return router.match({**environ, "PATH_INFO": path})
    except bottle.HTTPError:
        return None


ROUTERS = pytest.mark.parametrize("router", [werkzeug, bottles])


@ROUTERS
@example([TEMPLATES[0]], b"/it\xffems", "")
@example([TEMPLATES[0]], b"//items", "")
@example(["/items", "/items/"], b"//items/", "")
@example(["/items/{a}/", "/items/{a:int}"], b"/items/\xd9\xa7", "")
@example([TEMPLATES[5]], b"/items/\xd9\xa7", "/api")
@example([TEMPLATES[3]], b"/items/\xff", "")
@given(
    st.lists(st.sampled_from(TEMPLATES), min_size=1, max_size=3, unique=True),
    raw_path | near_misses(),
    st.sampled_from(["", "", "/api", "/items", "/\xc3\xa9"]),
)
def test_what_is_reached_is_locked(router, templates, path, script_name):
    """No path passes by the lock of the route that it reaches, and equal values are one key."""
    environ = environ_of(SCRIPT_NAME=script_name, PATH_INFO=path.decode("latin-1"))
    reached = router(templates, environ)
    if reached is None:
        return
    number, values = reached
    try:
        found = find(rules_of(templates), environ, "")
        assert found is not None
        keys = found.keys(query=query_of(environ), headers=headers_of(environ))
    except InvalidKey:
        return  # The request is refused.
    assert f"route{number}" in keys
    for name, value in values.items():
        template = Rule(templates[number], key=f"{number}:{name}:{{{name}}}").lock.keys[0]
        try:
            assert template.fill({name: canonical(value)}) in keys
        except InvalidKey:
            continue


@pytest.mark.parametrize(
    ("script_name", "path_info", "root_path"),
    [
        ("", "/items", ""),
        ("/api", "/items", ""),
        ("", "/api/items", "/api"),
        ("/v1", "/api/items", "/v1/api"),
        ("", "items", ""),
        ("", "/items/", ""),
        ("/caf\xc3\xa9", "/items", ""),
    ],
)
def test_spellings_of_one_path(script_name, path_info, root_path):
    """Mounted by the server or by a dispatcher, with a slash at the end, or without one at the start."""
    environ = environ_of(SCRIPT_NAME=script_name, PATH_INFO=path_info)
    assert find(RuleSet([Rule("/items", key="x")]), environ, root_path)


@pytest.mark.parametrize("path_info", ["//items", "/it\xffems", "/other\xff", "/items\n"])
def test_a_strange_path_is_refused(path_info):
    """Bytes that are no text, control characters and empty segments are each framework's own reading."""
    environ = environ_of(PATH_INFO=path_info)
    with pytest.raises(StrangePath):
        find(RuleSet([Rule("/items", key="x")]), environ, "")
    assert find(RuleSet([Rule("/items", key="x", methods=["PUT"])]), environ, "") is None


@pytest.mark.parametrize(
    "path", ["/items;v=1", "/items%2F", "/items-archive", "/", "/ite", "/cafe\u0301"]
)
def test_other_paths_are_not_locked(path):
    """What no framework takes for the path of a rule is none of its business."""
    assert (
        find(RuleSet([Rule("/items", key="x"), Rule("/café", key="x")]), environ_of(path), "")
        is None
    )


def test_a_path_is_shown_as_text():
    """Labels and logs have the path as people write it, whatever its bytes are."""
    assert path_of(environ_of("/cafés")) == "/cafés"
    assert path_of(environ_of(SCRIPT_NAME="/api", PATH_INFO="/\xff")) == "/api/\ufffd"
