"""The token by which a lease moves from one process to another.

A token carries a random secret, and the key, fence and limit of each lease. The owner that ``hand_over``
stores in the engine for a lease is a digest of the whole token. An engine replaces an owner only if it
is the stored one, so a token in which anything was changed finds no lease, on any engine.
"""

from __future__ import annotations

import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Sequence
from contextlib import suppress
from hashlib import sha256
from typing import Final, NamedTuple

from ..errors import ConfigurationError
from ..keys import check_key, unqualified
from .table import SHARED

_FORMAT: Final = "weblock1."
"""The beginning of every token. It names the version of the format."""


class Facts(NamedTuple):
    """The facts of one lease that a token carries."""

    key: str
    fence: int
    limit: int


class OnItsWay(NamedTuple):
    """The lease of one key between two holders. ``owner`` is its owner in the engine."""

    key: str
    fence: int
    limit: int
    owner: str


def token_of(secret: str, leases: Sequence[Facts]) -> str:
    """Return the token of leases that move together: letters, digits, ``.``, ``-`` and ``_``.

    It ends with a checksum, which tells a damaged token from one whose lease has ended.
    """
    facts = json.dumps([secret, *leases], separators=(",", ":"))
    text = urlsafe_b64encode(facts.encode()).decode().rstrip("=")
    return f"{_FORMAT}{text}.{_digest(text)[:8]}"


def leases_in(token: object) -> list[OnItsWay]:
    """Return the leases that a token names.

    Raises:
        ConfigurationError: The value is not a token, or a part of the token is wrong or missing.
    """
    if not isinstance(token, str) or not token.startswith(_FORMAT):
        raise ConfigurationError(
            f"take_over was given a {type(token).__name__} that is not a token: pass the string that"
            " lease.hand_over() returned"
        )
    text, _, checksum = token.removeprefix(_FORMAT).partition(".")
    leases: list[OnItsWay] = []
    with suppress(ValueError, TypeError, RecursionError):
        if checksum == _digest(text)[:8]:
            _, *facts = json.loads(urlsafe_b64decode(text + "=" * (-len(text) % 4)))
            leases = [OnItsWay(*Facts(*each), _owner(text, i)) for i, each in enumerate(facts)]
    if not leases or not all(map(_is_sound, leases)):
        # The error must not show the token, which is a secret.
        raise ConfigurationError(
            f"take_over was given a token that is damaged: of its {len(token)} characters, some are"
            " missing or wrong. Pass on the whole string that lease.hand_over() returned"
        )
    for lease in leases:
        check_key(unqualified(lease.key))
    return leases


def _is_sound(lease: OnItsWay) -> bool:
    types = [type(fact) for fact in lease]
    return types == [str, int, int, str] and 1 <= lease.limit <= SHARED


def _owner(text: str, number: int) -> str:
    """Return the owner of one of the leases of a token with this text."""
    return _digest(f"{number} {text}")[:32]


def _digest(text: str) -> str:
    return sha256(text.encode()).hexdigest()
