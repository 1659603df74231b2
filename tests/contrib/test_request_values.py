"""What keys are filled in from: path, query, headers and cookies of a request."""

import pytest
from pydantic import SecretBytes, SecretStr

from weblock import ConfigurationError, InvalidKey
from weblock.contrib.kit.spec import request_values
from weblock.keys import KeyTemplate

HEADERS = {
    "x-tenant": ["acme"],
    "x-twice": ["1", "2"],
    "x-empty": [""],
    "cookie": [
        'a=7; b="7"',
        'c=%37 ;d="\\067";e=\u00c3\u00a4; f=%C3%A4; twice=1; twice=2; same=7; same=%37',
    ],
}


def key(text, *, path=(), query=""):
    template = KeyTemplate.parse(text)
    values = request_values(
        template, path=dict(path), query=query, headers=lambda name: HEADERS.get(name, [])
    )
    return template.fill(values)


@pytest.mark.parametrize(
    ("text", "filled"),
    [
        ("item:{id}", "item:7"),
        ("item:{path.id}", "item:7"),
        ("{query.q}", "a%20b%3Ac"),
        ("{header.X-Tenant}:{path.id}:{query.q}", "acme:7:a%20b%3Ac"),
        ("all", "all"),
        *((f"{{cookie.{name}}}", "7") for name in ("a", "b", "c", "d", "same")),
        *((f"{{cookie.{name}}}", "ä") for name in ("e", "f")),
    ],
)
def test_each_prefix_names_a_source(text, filled):
    """Each source has its prefix, and a cookie that frameworks read as one value is one value."""
    assert key(text, path={"id": 7}, query="q=a+b%3Ac&r=1") == filled


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{id}", "needs 'id'"),
        ("{query.q}", "needs 'query.q'"),
        ("{query.blank}", "empty value"),
        ("{query.Q}", "needs 'query.Q'"),
        ("{header.x-none}", "needs 'header.x-none'"),
        ("{header.x-empty}", "empty value"),
        ("{query.twice}", "needs one query value of 'twice', and the request has 2"),
        ("{header.x-twice}", "needs one header value"),
        ("{cookie.none}", "needs 'cookie.none'"),
        ("{cookie.A}", "needs 'cookie.A'"),
        ("{cookie.twice}", "needs one cookie value of 'twice', and the request has 2"),
    ],
)
def test_what_a_request_lacks_is_the_requesters_fault(text, problem):
    """A value that is missing, empty, or there twice, makes no key."""
    with pytest.raises(InvalidKey, match=problem):
        key(text, path={}, query="blank=&twice=1&twice=1")


@pytest.mark.parametrize(
    ("sent", "name"),
    [
        ("shop.example", "shop.example"),
        ("Shop.Example:80", "shop.example"),
        ("shop.example:8443", "shop.example"),
        ("shop.example.", "shop.example"),
        ("shop.example.:443", "shop.example"),
        ("192.0.2.1:8000", "192.0.2.1"),
        ("[2001:DB8::1]:8000", "%5B2001%3Adb8%3A%3A1%5D"),
        ("[2001:db8::1]", "%5B2001%3Adb8%3A%3A1%5D"),
    ],
)
def test_a_host_is_its_name_alone(sent, name):
    """One site is one key, with its port or without, and however its name is written."""
    template = KeyTemplate.parse("{header.Host}")
    values = request_values(template, path={}, query="", headers=lambda _: [sent])
    assert template.fill(values) == name


@pytest.mark.parametrize("sent", [[], [""], [":80"], ["a", "b"]])
def test_a_host_without_a_name_makes_no_key(sent):
    """As with every header that is missing, empty or repeated."""
    template = KeyTemplate.parse("{header.host}")
    with pytest.raises(InvalidKey):
        template.fill(request_values(template, path={}, query="", headers=lambda _: sent))


def test_another_prefix_is_refused():
    """A prefix that no request has is said when the template is looked at."""
    with pytest.raises(ConfigurationError, match="one of path, query, header"):
        KeyTemplate.parse("{body.id}").in_request()


def test_what_is_no_utf_8_still_makes_one_key():
    """A query that cannot be decoded is no error of the server's."""
    assert key("{query.q}", query="q=%ff%fe") == "\ufffd\ufffd"


@pytest.mark.parametrize("secret", [SecretStr("a"), SecretBytes(b"a")])
def test_a_secret_makes_no_key(secret):
    """All secrets of Pydantic have the same text, so that all of them would be one key."""
    with pytest.raises(ConfigurationError, match="Use a digest"):
        KeyTemplate.parse("login:{token}").fill({"token": secret})
