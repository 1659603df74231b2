"""The commands that run scripts, byte by byte."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weblock.stores.redis.calls import Call, Layout, _around_owner, packed
from weblock.stores.redis.scripts import ACQUIRE, RELEASE, Script

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)

FACTS = ("run:id", "60000000", "")


def command_of(script: Script, key: str, owner: str, *others: str) -> tuple[Call, bytes]:
    """A call, and its command as hiredis packs it."""
    layout = Layout("prefix:é", 1)
    bucket, keys = layout.of_key(key)
    call = Call(script, bucket, keys, (owner, *others))
    parts = ("EVALSHA", script.sha, len(call.keys), *call.keys, *FACTS, *call.args)
    return call, packed(*parts)


@pytest.mark.parametrize("script", [ACQUIRE, RELEASE], ids=lambda script: script.name)
@given(
    key=TEXTS,
    owners=st.lists(TEXTS, min_size=1, max_size=3),
    others=st.lists(TEXTS, min_size=4, max_size=4),
    ticket=st.sampled_from(["0", "1764115200000000"]),
)
def test_a_command_that_is_put_together_is_what_hiredis_packs(
    script: Script, key: str, owners: list[str], others: list[str], ticket: str
) -> None:
    """What was packed for an earlier owner serves the next one, in any alphabet and of any length."""
    for owner in owners:
        call, packed_whole = command_of(script, key, owner, *others, ticket)
        assert call.by_name(*FACTS) == packed_whole


def test_no_owner_is_remembered_for_later_commands() -> None:
    """An owner is a secret: what is kept for later commands grows with keys, and not with owners."""
    sizes: set[int] = set()
    for number in range(10):
        for script in (ACQUIRE, RELEASE):
            call, _ = command_of(script, "one key", f"owner {number}", *"abcd", "0")
            call.by_name(*FACTS)
        sizes.add(_around_owner.cache_info().currsize)
    assert len(sizes) == 1
