"""A key's state as bytes: every engine that stores bytes depends on this."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weblock import ConfigurationError
from weblock._core import table
from weblock._core.table import SHARED, Claim, Gone, Grant, Held, KeyState, Moment, Place, Voided
from weblock.stores.codec import VERSION, from_bytes, to_bytes

texts = st.text(st.characters())  # Lone surrogates too.
times = st.integers(0, 10**15).map(lambda microseconds: microseconds / 10**6)
claims = st.builds(Claim, texts, texts, times, texts, st.integers(1, SHARED))
grants = st.builds(Grant, claims, st.integers(1, 2**63 - 1), times, times, st.booleans())
places = st.builds(Place, claims, times)
states = st.builds(
    KeyState,
    fence=st.integers(0, 2**63 - 1),
    grants=st.lists(grants, max_size=4).map(tuple),
    places=st.lists(places, max_size=4).map(lambda all_: {each.claim.owner: each for each in all_}),
    voided=st.lists(st.builds(Voided, texts, times), max_size=3).map(tuple),
    asked=st.integers(0, 2**63 - 1),
)


def claim(owner: str, limit: int = 1) -> Claim:
    return Claim(owner, "process", 10.0, "host:1", limit)


@given(states)
def test_a_state_comes_back_as_it_was_written(state: KeyState) -> None:
    """Whatever a label has in it, it neither changes nor reaches another cell or line."""
    data = to_bytes(state)
    assert b"\n" not in data
    assert from_bytes(data, "here") == state


@given(states, times, times)
def test_a_renewal_takes_as_much_room_as_the_lease(
    state: KeyState, since: float, until: float
) -> None:
    """On a full disk a lease is renewed, and a place refreshed, in the room that it had."""
    renewed = state._replace(
        grants=tuple(
            each._replace(since=since, until=until, confirmed=True) for each in state.grants
        ),
        places={owner: each._replace(until=until) for owner, each in state.places.items()},
        voided=tuple(each._replace(until=until) for each in state.voided),
    )
    assert len(to_bytes(renewed)) == len(to_bytes(state))


@pytest.mark.parametrize("limit", [1, SHARED])
def test_a_release_that_passes_the_key_on_takes_no_more_room(limit: int) -> None:
    """On a full disk the first waiter gets the key, and so do all readers behind a writer."""
    state = table.acquire(KeyState(), Moment(1e6, 10**15), claim("w"), room=0).state
    for number in range(50):
        waiter = claim(f"reader {number}", limit=limit)
        state = table.acquire(state, Moment(1e6 + 1, 10**15), waiter, room=100).state
    released = table.release(state, Moment(1e6 + 2, 10**15), "w").state
    assert len(released.grants) == (1 if limit == 1 else 50)
    assert len(to_bytes(released)) <= len(to_bytes(state))


def test_what_was_rounded_is_still_the_same_lease() -> None:
    """A lease that is read ends within a microsecond of what its holder was told."""
    now = 1234.123456789
    step = table.acquire(KeyState(), Moment(now, 1), claim("a"), room=0)
    read = from_bytes(to_bytes(step.state), "here")
    assert isinstance(step.answer, Held)
    assert read.grant is not None
    assert read.grant.until == pytest.approx(step.answer.until, abs=1e-6)
    assert not isinstance(table.refresh(read, Moment(now + 5, 1), "a", 10.0).answer, Gone)


@given(states, st.text(st.characters(categories=["L", "N"]), min_size=1))
def test_another_version_is_named_and_not_read(state: KeyState, version: str) -> None:
    """The error says which version was found where, and which one this weblock reads."""
    if version == VERSION:
        return
    data = version.encode() + to_bytes(state).removeprefix(VERSION.encode())
    with pytest.raises(ConfigurationError, match="/locks has a state in the format") as refusal:
        from_bytes(data, "/locks")
    assert repr(version[:20]) in str(refusal.value)
    assert f"the format {VERSION!r}" in str(refusal.value)


@given(st.binary())
def test_bytes_of_other_programs_are_rejected(data: bytes) -> None:
    """Whatever they are: no lease is guessed."""
    for foreign in (data, VERSION.encode() + b"\t" + data, to_bytes(KeyState(7)) + b"\t" + data):
        with pytest.raises(ConfigurationError, match=r"has a (state in the format|damaged state)"):
            from_bytes(foreign, "here")


@given(states.filter(lambda state: state.grants or state.queue), st.data())
def test_a_state_that_was_cut_is_rejected(state: KeyState, data: st.DataObject) -> None:
    """At any byte, except where a whole lease or place is missing."""
    whole = to_bytes(state)
    cut = whole[: data.draw(st.integers(0, len(whole) - 1))]
    if not whole[len(cut) :].startswith(b"\t"):
        with pytest.raises(ConfigurationError):
            from_bytes(cut, "here")
