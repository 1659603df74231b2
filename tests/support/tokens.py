"""Tokens of ``hand_over`` that were damaged or forged."""

from __future__ import annotations

import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from hashlib import sha256
from typing import Any


def sealed(facts: str) -> str:
    """Return a token with any JSON, and with the right checksum."""
    text = urlsafe_b64encode(facts.encode()).decode().rstrip("=")
    return f"weblock1.{text}.{sha256(text.encode()).hexdigest()[:8]}"


def facts_of(token: str) -> list[Any]:
    """Return the JSON in a token: its secret, and the key, fence and limit of each lease."""
    text = token.split(".")[1]
    facts: list[Any] = json.loads(urlsafe_b64decode(text + "=" * (-len(text) % 4)))
    return facts
