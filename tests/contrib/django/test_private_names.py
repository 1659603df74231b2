"""The private names of Django and django-ninja that weblock uses still mean what they did."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from django.db import connection, transaction
from django.http import HttpResponse, StreamingHttpResponse
from django.test import TestCase
from django.utils.functional import SimpleLazyObject, empty
from ninja import NinjaAPI

from weblock.contrib.django.internals import (
    close_together,
    is_ninja_operation,
    is_of_test_case,
    stands_for,
)


class BlockOfTestCase(TestCase):
    def test_it_is_told_from_others(self) -> None:
        """The ``atomic`` block around a test is known from one that the test has opened."""
        with transaction.atomic():
            blocks = [is_of_test_case(block) for block in connection.atomic_blocks]
        assert len(blocks) > 1
        assert blocks == [True] * (len(blocks) - 1) + [False]


def test_a_lazy_object_is_seen_through_without_reading_it() -> None:
    """What nothing has read stays unread, also inside of another lazy object."""
    read: list[str] = []
    inner = SimpleLazyObject(lambda: read.append("inner") or "row")
    outer = SimpleLazyObject(lambda: inner)
    assert stands_for(outer) is stands_for(inner) is empty
    bool(outer)
    assert read == ["inner"]
    assert stands_for(outer) == stands_for(inner) == stands_for("row") == "row"


@pytest.mark.django_db  # Connections that other tests have opened are looked at when a response closes.
def test_a_response_closes_what_it_replaces() -> None:
    """The content of a response that was replaced is closed when its replacement is, and not before."""
    closed = []

    def content() -> Iterator[bytes]:
        try:
            yield b"never read to the end"
        finally:
            closed.append(True)

    body = content()
    next(body)
    former, response = StreamingHttpResponse(body), HttpResponse()
    close_together(response, former)
    assert not closed
    response.close()
    assert closed


def test_operations_of_django_ninja_are_known() -> None:
    """A function that django-ninja has registered is known from one that it has not."""

    def operation(request: object) -> None:
        pass

    assert not is_ninja_operation(operation)
    NinjaAPI(urls_namespace="weblock-private-names").get("/")(operation)
    assert is_ninja_operation(operation)
