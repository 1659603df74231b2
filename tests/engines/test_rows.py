"""How states are written down in record files."""

from __future__ import annotations

import pytest

from weblock._core import table
from weblock._core.table import SHARED, Claim, Gone, Held, KeyState, Moment
from weblock.stores.file.rows import line_of, name_in, state_in

NAME = "default:zähler 1".encode()


def claim(owner: str, label: str = "host:1", limit: int = 1) -> Claim:
    """A claim of a process."""
    return Claim(owner, "process", 10.0, label, limit)


def crowded(*labels: str) -> KeyState:
    """One holds, others wait, and one has given up in doubt."""
    state, moment = KeyState(7), Moment(100.5, 1)
    for number, label in enumerate(labels):
        state = table.acquire(state, moment, claim(f"owner {number}", label), room=100).state
    return table.release(state, moment, "in doubt", void=30).state


@pytest.mark.parametrize(
    "label",
    ["host:1", "", "tab\tand\nline\r\0", 'quotes " and \\', "zähler ✓ 鍵 \U0001f511", "\ud800"],
)
def test_a_state_comes_back_as_it_was_written(label: str) -> None:
    """Whatever a label has in it, it neither changes nor reaches another cell or line."""
    state = crowded(label, "other", label)
    line = line_of(NAME, state)
    assert b"\n" not in line
    assert name_in(line) == NAME
    assert state_in(line) == state
    assert state_in(line_of(NAME, KeyState(7))) == KeyState(7)


def test_a_time_takes_as_much_room_whatever_it_is() -> None:
    """On a full disk a lease is renewed in the room that it had."""
    lengths = set()
    for now in (1000.0, 1000.5, 1234.000001, 1234.123456789, 9876.1 + 0.2):
        moment = Moment(now, 10**15)
        granted = table.acquire(KeyState(), moment, claim("a"), room=0).state
        queued = table.acquire(granted, moment, claim("b"), room=1).state
        renewed = table.refresh(queued, Moment(now + 1 / 3, 1), "a", 10.0).state
        lengths |= {len(line_of(NAME, queued)), len(line_of(NAME, renewed))}
    assert max(lengths) - min(lengths) <= 1  # "true" and "false"


def test_what_was_rounded_is_still_the_same_lease() -> None:
    """A lease that is read ends within a microsecond of what its holder was told."""
    now = 1234.123456789
    step = table.acquire(KeyState(), Moment(now, 1), claim("a"), room=0)
    read = state_in(line_of(NAME, step.state))
    assert isinstance(step.answer, Held)
    assert read.grant is not None
    assert read.grant.until == pytest.approx(step.answer.until, abs=1e-6)
    assert not isinstance(table.refresh(read, Moment(now + 5, 1), "a", 10.0).answer, Gone)


def test_several_leases_come_back_as_they_were_written() -> None:
    """With their limits, and with those of the waiters."""
    state, moment = KeyState(7), Moment(100.5, 1)
    for owner, limit in (("a", SHARED), ("b", 3), ("c", SHARED), ("d", 1), ("e", SHARED)):
        state = table.acquire(state, moment, claim(owner, limit=limit), room=100).state
    assert (len(state.grants), len(state.queue)) == (3, 2)
    assert state_in(line_of(NAME, state)) == state


def test_an_exclusive_lease_is_written_as_before_there_were_others() -> None:
    """Processes of weblock 1.0 lock in the same directory."""
    state = table.acquire(KeyState(7), Moment(100.5, 1), claim("a"), room=0).state
    state = table.acquire(state, Moment(101.5, 1), claim("b"), room=1).state
    lease = b'[8,[["a","process",10.0,"host:1"],8,100.500000,110.500000,true],[]]'
    place = b'[["b","process",10.0,"host:1"],105.500000]'
    assert line_of(b"key", state) == b"\t".join((b"key", lease, place))


def test_waiters_that_are_let_in_together_take_no_more_room() -> None:
    """On a full disk a release passes the key on to all readers behind it."""
    state = table.acquire(KeyState(), Moment(1e6, 10**15), claim("w"), room=0).state
    for number in range(50):
        waiter = claim(f"reader {number}", limit=SHARED)
        state = table.acquire(state, Moment(1e6 + 1, 10**15), waiter, room=100).state
    released = table.release(state, Moment(1e6 + 2, 10**15), "w").state
    assert (len(released.grants), len(released.queue)) == (50, 0)
    assert len(line_of(NAME, released)) <= len(line_of(NAME, state))
