"""The printable secret by which a lease moves on from one process to another."""

from __future__ import annotations

import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Sequence
from typing import Final, NamedTuple

from ..errors import ConfigurationError

_FORMAT: Final = "weblock1."
"""What every token begins with: a later version of weblock that writes others can tell them apart."""


class OnItsWay(NamedTuple):
    """The lease of one key, without a holder. ``owner`` is the secret by which it is taken over."""

    key: str
    owner: str
    fence: int
    limit: int = 1


def token_of(leases: Sequence[OnItsWay]) -> str:
    """Return the token of leases that move on together; letters, digits, ``.``, ``-`` and ``_``."""
    # Those of an exclusive lease are as in weblock 1.0, which cannot read others.
    facts = [lease if lease.limit > 1 else lease[:3] for lease in leases]
    text = json.dumps(facts, separators=(",", ":"))
    return _FORMAT + urlsafe_b64encode(text.encode()).decode().rstrip("=")


def leases_in(token: str) -> list[OnItsWay]:
    """Return the leases that a token names.

    Raises:
        ConfigurationError: It is not a token, or not all of one.
    """
    if not str(token).startswith(_FORMAT):
        raise ConfigurationError(
            f"take_over was given a {type(token).__name__} that is not a token: pass the string that"
            " lease.hand_over() returned"
        )
    text = token.removeprefix(_FORMAT)
    try:
        leases = json.loads(urlsafe_b64decode(text + "=" * (-len(text) % 4)))
        named = [
            OnItsWay(str(key), str(owner), *map(int, numbers)) for key, owner, *numbers in leases
        ]
    except (ValueError, TypeError):
        named = []
    if not named:  # Without the token, which is a secret.
        raise ConfigurationError(
            f"take_over was given a token that is damaged: of its {len(token)} characters, some are"
            " missing or wrong. Pass on the whole string that lease.hand_over() returned"
        )
    return named
