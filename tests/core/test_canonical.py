"""Equal values make one key, however they are spelled or typed."""

from __future__ import annotations

import datetime as dt
import decimal
import enum
import uuid
from decimal import Decimal

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from weblock import ConfigurationError, InvalidKey
from weblock.keys import KeyTemplate, canonical

OFFSETS = st.integers(-14 * 60, 14 * 60).map(lambda by: dt.timezone(dt.timedelta(minutes=by)))


class Colour(enum.Enum):
    RED = "red"


class Shade(str, enum.Enum):  # noqa: UP042 - as projects still have them
    DARK = "dark"


class Size(enum.IntEnum):
    LARGE = 7


class Loud(int):
    def __str__(self) -> str:
        return f"{int(self)}!"


def utc(*when: int) -> dt.datetime:
    return dt.datetime(*when, tzinfo=dt.UTC)


ONE_HOUR_EAST = dt.timezone(dt.timedelta(hours=1))
TWO_HOURS_EAST = dt.timezone(dt.timedelta(hours=2))


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ([7, 7.0, Decimal(7), Decimal("7.00"), Decimal("0.7E1"), Size.LARGE, Loud(7)], "7"),
        ([1.5, Decimal("1.5"), Decimal("1.50"), Decimal("15E-1")], "1.5"),
        ([0, 0.0, -0.0, Decimal("-0.00")], "0"),
        ([1000, 1e3, Decimal("1E+3")], "1000"),
        ([Decimal("1E+900000"), Decimal("10E+899999")], "1E+900000"),
        ([Colour.RED, "red"], "red"),
        ([Shade.DARK, "dark"], "dark"),
        (
            [uuid.UUID("{ABCDEF00-0000-0000-0000-000000000001}")],
            "abcdef00-0000-0000-0000-000000000001",
        ),
        (
            [utc(2026, 1, 1, 12), dt.datetime(2026, 1, 1, 13, tzinfo=ONE_HOUR_EAST)],
            "2026-01-01T12:00:00+00:00",
        ),
        (
            [
                dt.datetime(1, 1, 1, 0, 30, tzinfo=ONE_HOUR_EAST),
                dt.datetime(1, 1, 1, 1, 30, tzinfo=TWO_HOURS_EAST),
            ],
            "-1 day, 23:30:00 UTC",
        ),
        ([dt.time(12, tzinfo=dt.UTC), dt.time(13, tzinfo=ONE_HOUR_EAST)], "12:00:00+00:00"),
        (
            [dt.time(0, 30, tzinfo=ONE_HOUR_EAST), dt.time(1, 30, tzinfo=TWO_HOURS_EAST)],
            "23:30:00+00:00-1",
        ),
        ([dt.time(12)], "12:00:00"),
        ([dt.datetime(2026, 1, 1, 12)], "2026-01-01T12:00:00"),  # noqa: DTZ001 - naive on purpose
        ([dt.date(2026, 1, 1)], "2026-01-01"),
        ([Decimal("NaN")], "NaN"),
        ([float("inf")], "Infinity"),
        ([True], "True"),
    ],
)
def test_equal_values_have_one_text(values: list[object], text: str) -> None:
    """Precision, time zone, numeric type and the way in which a type prints itself do not count."""
    assert {canonical(each) for each in values} == {text}


@given(st.decimals(allow_nan=False), st.decimals(allow_nan=False))
def test_different_numbers_never_meet(one: Decimal, two: Decimal) -> None:
    """Nothing is rounded, whatever precision the context of the caller has."""
    assume(one != two)
    with decimal.localcontext(prec=3):
        assert canonical(one) != canonical(two)


@given(st.decimals(allow_nan=False, allow_infinity=False), st.integers(0, 5))
def test_trailing_zeros_do_not_count(number: Decimal, zeros: int) -> None:
    """A number is the same with more digits of precision, also where it has many."""
    sign, digits, exponent = number.as_tuple()
    assert isinstance(exponent, int)
    assert canonical(Decimal((sign, (*digits, *[0] * zeros), exponent - zeros))) == canonical(
        number
    )


@given(st.datetimes(timezones=st.timezones()))
def test_an_aware_time_is_the_same_in_every_zone(moment: dt.datetime) -> None:
    """Two users in different time zones who mean one moment lock one key."""
    try:
        elsewhere = moment.astimezone(ONE_HOUR_EAST)
        moment.astimezone(dt.UTC)
    except OverflowError:
        return
    assert canonical(elsewhere) == canonical(moment)


@pytest.mark.parametrize(
    ("template", "spellings", "key"),
    [
        ("item:{pk:int}", ["7", "07", "+7", " 7", "0_7", "\u0667", 7], "item:7"),
        (
            "item:{pk:uuid}",
            ["ABCDEF00-0000-0000-0000-000000000001", "{abcdef00000000000000000000000001}"],
            "item:abcdef00-0000-0000-0000-000000000001",
        ),
        ("user:{query.name:lower}", ["Ada", "ADA", "ada"], "user:ada"),
        ("user:{header.x-user:str}", ["Ada"], "user:Ada"),
        ("shade:{0:str}", [Shade.DARK, "dark"], "shade:dark"),
        ("shade:{0:lower}", [Shade.DARK, "DARK"], "shade:dark"),
    ],
)
def test_a_template_converts_what_is_still_text(
    template: str, spellings: list[object], key: str
) -> None:
    """Where a framework hands over text, the template says what value it stands for."""
    parsed = KeyTemplate.parse(template)
    (name,) = parsed.names
    assert {parsed.fill({name: each}) for each in spellings} == {key}


def test_text_that_does_not_convert_is_the_requesters_error() -> None:
    """It is refused with what was wanted, before anything is locked."""
    with pytest.raises(InvalidKey, match=r"'seven' for 'pk', which 'int' cannot convert"):
        KeyTemplate.parse("item:{pk:int}").fill({"pk": "seven"})
    with pytest.raises(InvalidKey, match="cannot convert"):
        KeyTemplate.parse("item:{pk:int}").fill({"pk": "9" * 5000})


def test_an_unknown_converter_is_refused() -> None:
    """The error lists those that there are."""
    with pytest.raises(
        ConfigurationError, match=r"converter 'integer'; available: int, lower, str"
    ):
        KeyTemplate.parse("item:{pk:integer}")


@given(st.times(timezones=OFFSETS), st.times(timezones=OFFSETS))
def test_times_have_one_text_if_they_are_equal(one: dt.time, other: dt.time) -> None:
    """Aware times of a day are one key if they are the same time in UTC, and two keys otherwise."""
    assert (canonical(one) == canonical(other)) == (one == other)


class Order:
    """As a model without ``__str__``: two objects may be one row."""


@pytest.mark.parametrize("value", [Order(), iter([]), lambda: None, memoryview(b"")])
def test_an_address_makes_no_key(value: object) -> None:
    """Each object would be another key, so that nothing would be locked, and nothing would say so."""
    template = KeyTemplate.parse("order:{order}")
    with pytest.raises(ConfigurationError, match="whose text contains its address"):
        template.fill({"order": value})


@pytest.mark.parametrize(
    "value",
    [{"a", "b"}, frozenset("ab"), {"a": 1, "b": 2}, [1.0], (Decimal("1.0"),), bytearray(b"a")],
)
def test_a_collection_makes_no_key(value: object) -> None:
    """Equal ones have different texts, those of sets even in each process: they would be two keys."""
    with pytest.raises(ConfigurationError, match="Lock one key for each element"):
        KeyTemplate.parse("tags:{tags}").fill({"tags": value})
